"""Wide ResNet for 32x32 images (Zagoruyko and Komodakis, 2016)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from davis.zoo.activations import Activation


class _Block(nn.Module):
    """Pre-activation: norm and nonlinearity stand before each convolution; no dropout."""

    def __init__(self, channels: int, width: int, stride: int, act: Activation) -> None:
        super().__init__()
        self.act = act
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = None if channels == width else nn.Conv2d(channels, width, 1, stride=stride, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        ready = self.act(self.norm1(maps))
        new: Tensor = self.conv2(self.act(self.norm2(self.conv1(ready))))
        return new + (maps if self.shortcut is None else self.shortcut(ready))


class WideResNet(nn.Module):
    """Three stages of (depth - 4) / 6 blocks with 16, 32 and 64 times ``factor`` channels."""

    def __init__(self, classes: int, *, depth: int = 28, factor: int = 10, act: Activation = F.relu) -> None:
        super().__init__()
        self.act = act
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        parts: list[nn.Module] = []
        channels = 16
        for stage in range(3):
            for position in range((depth - 4) // 6):
                width = 16 * factor << stage
                parts.append(_Block(channels, width, 2 if stage > 0 and position == 0 else 1, act))
                channels = width
        self.blocks = nn.Sequential(*parts)
        self.norm = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.act(self.norm(self.blocks(self.stem(images))))
        logits: Tensor = self.head(maps.mean((2, 3)))
        return logits
