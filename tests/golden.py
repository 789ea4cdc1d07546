"""The golden scores (../shared/golden) and the two models that they were computed on."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

FOLDER = Path(__file__).resolve().parent.parent.parent / "shared" / "golden"

POOLS = {
    "mean": "mean",
    "max": "max",
    "mean+0.5std": "davis(gamma=0.5)",
    "mean+3std": "davis(gamma=3)",
    "median": "median",
    "entropy": "entropy",
    "all0.5": "unified(gamma=0.5)",
}


@cache
def arrays() -> dict[str, np.ndarray]:
    with np.load(FOLDER / "golden.npz") as file:
        return {key: file[key] for key in file.files}


@cache
def entries() -> list[dict[str, Any]]:
    if not FOLDER.is_dir():
        return []
    return json.loads((FOLDER / "golden.json").read_text())["entries"]


def tensor(key: str, dtype: torch.dtype = torch.float64) -> Tensor:
    value = torch.from_numpy(arrays()[key])
    return value.to(dtype) if value.is_floating_point() else value


class MapModel(nn.Module):
    """A classifier whose last map is its input."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.body = nn.Identity()
        self.head = last_layer(case)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))


class ConvModel(nn.Module):
    """The small convolutional network of the methods that need input gradients."""

    def __init__(self, case: str) -> None:
        super().__init__()
        weight = tensor(f"in|{case}|net_conv_w")
        self.conv = nn.Conv2d(3, len(weight), 3, stride=2, padding=1)
        self.conv.load_state_dict({"weight": weight, "bias": tensor(f"in|{case}|net_conv_b")})
        self.act = nn.ReLU() if case == "relu" else nn.GELU()
        self.head = last_layer(case)
        self.double()
        with torch.no_grad():
            self.conv.weight.copy_(weight)
            self.conv.bias.copy_(tensor(f"in|{case}|net_conv_b"))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.act(self.conv(images)).mean((2, 3)))


def last_layer(case: str) -> nn.Linear:
    weight = tensor(f"in|{case}|W")
    head = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(tensor(f"in|{case}|b"))
    return head


def uses_network(method: str) -> bool:
    return method.startswith(("odin", "adascale", "net_", "combood_extreme"))
