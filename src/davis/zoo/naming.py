"""Networks by name: ``resnet18``, ``resnet18(act=silu)``, and factories such as ``cifar10_resnet18_silu``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import nn

from davis.stages.godin import GodinHead
from davis.zoo.activations import ACTIVATIONS, initialise
from davis.zoo.densenet import DenseNet
from davis.zoo.mobilenet import MobileNetV2
from davis.zoo.resnet import ResNet
from davis.zoo.wide_resnet import WideResNet

HeadKind: TypeAlias = Literal["linear", "godin"]
Value: TypeAlias = int | str

CLASSES = {"cifar10": 10, "cifar100": 100}
_MOST = 16  # times the paper's value, of any setting: a slip of the hand would ask for more memory than there is


class _Arch(NamedTuple):
    make: Callable[..., nn.Module]
    settings: dict[str, Value]  # with the values that make it the paper's network


def _resnet(*blocks: int) -> Callable[..., nn.Module]:
    return lambda classes, **settings: ResNet(classes, blocks=blocks, **settings)


ARCHS = {
    "densenet101": _Arch(DenseNet, {"act": "relu", "depth": 100, "growth": 12}),
    "resnet18": _Arch(_resnet(2, 2, 2, 2), {"act": "relu", "width": 64}),
    "resnet34": _Arch(_resnet(3, 4, 6, 3), {"act": "relu", "width": 64}),
    "wrn28_10": _Arch(WideResNet, {"act": "relu", "factor": 10}),
    "mobilenet_v2": _Arch(MobileNetV2, {"act": "relu6", "last": 512}),
}


def build(name: str, *, classes: int, head: HeadKind = "linear") -> nn.Module:
    """The network of that name with random weights, in the memory layout that is fastest.

    >>> sum(parameter.numel() for parameter in build("resnet18(act=silu)", classes=10).parameters())
    11173962
    """
    arch, settings = _parse(name)
    if classes < 1:
        raise ValueError(f"a network has at least one class, got classes={classes}")
    if head not in get_args(HeadKind):
        raise ValueError(f"unknown head {head!r}; known: {', '.join(get_args(HeadKind))}")
    model = ARCHS[arch].make(classes, **settings | {"act": ACTIVATIONS[str(settings["act"])]})
    initialise(model)
    if head == "godin":
        last = model.get_submodule("head")
        model.head = GodinHead(int(last.in_features), classes)  # type: ignore[arg-type]
    return channels_last(model)


def canonical(name: str) -> str:
    """The same name without spaces and without what stands at its default.

    >>> canonical("resnet18( act = silu, width = 64 )")
    'resnet18(act=silu)'
    """
    arch, settings = _parse(name)
    changed = _changed(arch, settings)
    return f"{arch}({', '.join(f'{key}={value}' for key, value in changed.items())})" if changed else arch


def slug(name: str) -> str:
    """The name as the paper's tables, files and factories spell it.

    >>> slug("resnet18(act=silu)"), slug("resnet18(width=8)")
    ('resnet18_silu', 'resnet18_width8')
    """
    arch, settings = _parse(name)
    words = [str(value) if key == "act" else f"{key}{value}" for key, value in _changed(arch, settings).items()]
    return "_".join([arch, *words])


class Trained(NamedTuple):
    """What a name such as ``cifar100_resnet18_gelu`` says."""

    dataset: str
    arch: str  # as `build` takes it
    head: HeadKind


def read_factory(name: str) -> Trained | None:
    """The network, data and head that the name of a factory stands for; None where it is none.

    >>> read_factory("cifar100_resnet18_gelu")
    Trained(dataset='cifar100', arch='resnet18(act=gelu)', head='linear')
    """
    acts = "|".join(ACTIVATIONS)
    pattern = rf"({'|'.join(CLASSES)})_({'|'.join(ARCHS)})(?:_({acts}))?(_godin)?"
    found = re.fullmatch(pattern, name)
    if found is None:
        return None
    dataset, arch, act, godin = found.groups()
    return Trained(dataset, f"{arch}(act={act})" if act else arch, "godin" if godin else "linear")


def factory(name: str) -> Callable[[], nn.Module]:
    """The maker of an untrained network for a dataset, by its name in files: ``cifar100_resnet18_gelu``."""
    found = read_factory(name)
    if found is None:
        raise AttributeError(
            f"davis.zoo has no {name!r}; factories are DATASET_ARCH, such as cifar10_resnet18 or "
            f"cifar100_resnet18_silu, of {', '.join(CLASSES)} and {', '.join(ARCHS)}"
        )
    return lambda: build(found.arch, classes=CLASSES[found.dataset], head=found.head)


def channels_last(model: nn.Module) -> nn.Module:
    """The same network in the memory layout that is about twice as fast, on a CPU as on a GPU."""
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return model


def _parse(name: str) -> tuple[str, dict[str, Value]]:
    found = re.fullmatch(r"\s*(\w+)\s*(?:\((.*)\))?\s*", name)
    if found is None:
        raise ValueError(f"cannot read the network {name!r}; write a name, or a name(act=silu)")
    arch, body = found.groups()
    if arch not in ARCHS:
        raise ValueError(f"unknown network {arch!r}; {_suggest(arch, ARCHS)}")
    settings, given = dict(ARCHS[arch].settings), set[str]()
    for part in body.split(",") if body and body.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key in given:
            raise ValueError(f"{arch} is given {key} twice: {body.strip()!r}")
        given.add(key)
        if not equals or key not in settings:
            raise ValueError(f"{arch} takes {', '.join(f'{k}={v}' for k, v in settings.items())}, not {part.strip()!r}")
        settings[key] = _value(arch, key, value)
    return arch, settings


def _value(arch: str, key: str, text: str) -> Value:
    if key == "act":
        if text not in ACTIVATIONS:
            raise ValueError(f"unknown activation {text!r} of {arch}; {_suggest(text, ACTIVATIONS)}")
        return text
    if not re.fullmatch(r"[1-9]\d*", text):
        raise ValueError(f"{key} of {arch} must be a whole number from 1, got {text!r}")
    most = _MOST * int(ARCHS[arch].settings[key])
    if int(text) > most:
        raise ValueError(f"{key} of {arch} must be at most {most}, got {text}")
    if key == "depth" and (int(text) < 10 or (int(text) - 4) % 6):
        raise ValueError(f"depth of {arch} must be 10, 16, 22 or another 6n + 4, n layers in each block, got {text}")
    return int(text)


def _changed(arch: str, settings: dict[str, Value]) -> dict[str, Value]:
    return {key: value for key, value in settings.items() if value != ARCHS[arch].settings[key]}


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
