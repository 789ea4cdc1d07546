"""MobileNet-v2 for 32x32 images (Sandler et al., 2018), with the strides and the last width of the paper's code."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from davis.zoo.activations import Activation

# expansion, channels, blocks, stride of the first: the stem and the first two stages keep 32x32, the last map is 4x4
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class _Block(nn.Module):
    """Inverted residual: 1x1 to more channels, 3x3 in each of them, 1x1 back without a nonlinearity."""

    def __init__(self, channels: int, width: int, stride: int, expansion: int, act: Activation) -> None:
        super().__init__()
        self.act = act
        hidden = channels * expansion
        self.expand = nn.Conv2d(channels, hidden, 1, bias=False) if expansion > 1 else None
        self.norm1 = nn.BatchNorm2d(hidden) if expansion > 1 else None
        self.depthwise = nn.Conv2d(hidden, hidden, 3, stride=stride, padding=1, groups=hidden, bias=False)
        self.norm2 = nn.BatchNorm2d(hidden)
        self.project = nn.Conv2d(hidden, width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(width)
        self.residual = stride == 1 and channels == width

    def forward(self, maps: Tensor) -> Tensor:
        new = maps
        if self.expand is not None and self.norm1 is not None:
            new = self.act(self.norm1(self.expand(new)))
        new = self.act(self.norm2(self.depthwise(new)))
        projected: Tensor = self.norm3(self.project(new))
        return maps + projected if self.residual else projected


class MobileNetV2(nn.Module):
    """Seven stages of inverted residuals and a 1x1 convolution to ``last`` channels."""

    def __init__(self, classes: int, *, last: int = 512, act: Activation = F.relu6) -> None:
        super().__init__()
        self.act = act
        self.stem = nn.Conv2d(3, 32, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(32)
        parts: list[nn.Module] = []
        channels = 32
        for expansion, width, count, stride in _STAGES:
            for position in range(count):
                parts.append(_Block(channels, width, stride if position == 0 else 1, expansion, act))
                channels = width
        self.blocks = nn.Sequential(*parts)
        self.conv = nn.Conv2d(channels, last, 1, bias=False)
        self.norm = nn.BatchNorm2d(last)
        self.head = nn.Linear(last, classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.blocks(self.act(self.norm1(self.stem(images))))
        maps = self.act(self.norm(self.conv(maps)))
        logits: Tensor = self.head(maps.mean((2, 3)))
        return logits
