"""The paper's CIFAR networks, as factories: ``davis.zoo:cifar10_densenet101`` is a model name everywhere."""

import torch

from davis.zoo.densenet import DenseNet as DenseNet
from davis.zoo.densenet import from_authors as from_authors


def cifar10_densenet101() -> DenseNet:
    """DenseNet-BC of depth 100 and growth 12, which the paper calls DenseNet-101, for ten classes."""
    return _channels_last(DenseNet(10))


def cifar100_densenet101() -> DenseNet:
    """The same for a hundred classes."""
    return _channels_last(DenseNet(100))


def _channels_last(model: DenseNet) -> DenseNet:
    """The same network in the memory layout that is about twice as fast on a CPU."""
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return model
