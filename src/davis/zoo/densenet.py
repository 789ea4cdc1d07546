"""DenseNet-BC for 32x32 images (Huang et al., 2017)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from davis.zoo.activations import Activation


class _Layer(nn.Module):
    """Bottleneck layer: its new features are appended to what it was given."""

    def __init__(self, channels: int, growth: int, act: Activation) -> None:
        super().__init__()
        self.act = act
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        new = self.conv2(self.act(self.norm2(self.conv1(self.act(self.norm1(maps))))))
        return torch.cat([maps, new], 1)


class _Transition(nn.Module):
    """Halves the channels and each side of the map."""

    def __init__(self, channels: int, act: Activation) -> None:
        super().__init__()
        self.act = act
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels // 2, 1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(self.act(self.norm(maps))), 2)


class DenseNet(nn.Module):
    """Three dense blocks of equal depth, with bottlenecks and compression by one half."""

    def __init__(self, classes: int, *, depth: int = 100, growth: int = 12, act: Activation = F.relu) -> None:
        super().__init__()
        self.act = act
        layers = (depth - 4) // 6
        channels = 2 * growth
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        parts: list[nn.Module] = []
        for block in range(3):
            for _ in range(layers):
                parts.append(_Layer(channels, growth, act))
                channels += growth
            if block < 2:
                parts.append(_Transition(channels, act))
                channels //= 2
        self.blocks = nn.Sequential(*parts)
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.act(self.norm(self.blocks(self.stem(images))))
        logits: Tensor = self.head(maps.mean((2, 3)))
        return logits


def from_authors(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The DAVIS authors' DenseNet-101 checkpoint with its keys renamed to ours.

    encoder.conv1 -> stem; encoder.block{b}.layer.{i}.bn{n}, conv{n} -> blocks.{17 (b - 1) + i}.norm{n},
    conv{n}; encoder.trans{b}.bn1, conv1 -> blocks.{17 b - 1}.norm, conv; encoder.bn1 -> norm;
    output_layer -> head.
    """
    renamed = {}
    for key, tensor in state.items():
        parts = key.split(".")
        if parts[:2] == ["encoder", "conv1"]:
            parts[:2] = ["stem"]
        elif parts[:2] == ["encoder", "bn1"]:
            parts[:2] = ["norm"]
        elif parts[0] == "output_layer":
            parts[0] = "head"
        elif parts[0] == "encoder" and parts[1].startswith("block"):
            position = 17 * (int(parts[1][5:]) - 1) + int(parts[3])
            parts[:5] = ["blocks", str(position), parts[4].replace("bn", "norm")]
        elif parts[0] == "encoder" and parts[1].startswith("trans"):
            position = 17 * int(parts[1][5:]) - 1
            parts[:3] = ["blocks", str(position), "norm" if parts[2].startswith("bn") else "conv"]
        else:
            raise ValueError(f"{key!r} is no key of the authors' DenseNet-101 checkpoint")
        renamed[".".join(parts)] = tensor
    return renamed
