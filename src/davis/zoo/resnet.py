"""ResNet for 32x32 images (He et al., 2016): a 3x3 stem, no pooling before the first stage."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from davis.zoo.activations import Activation


class _Block(nn.Module):
    """Two 3x3 convolutions around which the input is led; a 1x1 convolution where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int, act: Activation) -> None:
        super().__init__()
        self.act = act
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, maps: Tensor) -> Tensor:
        new = self.norm2(self.conv2(self.act(self.norm1(self.conv1(maps)))))
        return self.act(new + self.shortcut(maps))


class ResNet(nn.Module):
    """Four stages of basic blocks; channels double and sides halve from one to the next."""

    def __init__(self, classes: int, *, blocks: Sequence[int], width: int = 64, act: Activation = F.relu) -> None:
        super().__init__()
        self.act = act
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        parts: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for position in range(count):
                stride = 2 if stage > 0 and position == 0 else 1
                parts.append(_Block(channels, width << stage, stride, act))
                channels = width << stage
        self.blocks = nn.Sequential(*parts)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.blocks(self.act(self.norm(self.stem(images))))
        logits: Tensor = self.head(maps.mean((2, 3)))
        return logits
