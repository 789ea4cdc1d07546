"""The nonlinearities that the networks can be built with, and how their convolutions begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation: TypeAlias = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "gelu": F.gelu,
    "tanh": torch.tanh,
}


def initialise(model: nn.Module) -> None:
    """Draw the convolutions from N(0, 2 / fan_out) (He et al., 2015), as the paper's code does for every activation."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
