"""The top-k rule that ASH, SCALE, LTS and AdaSCALE share."""

from __future__ import annotations

import torch
from torch import Tensor

from davis.types import Features, double


def kept(channels: int, p: float) -> int:
    """How many channels survive at percent ``p``: the one place that turns a percent into a count.

    Python rounds halves to even, as NumPy and torch do in the original codes. One channel stays at least: with none
    all images would score the same.
    """
    return max(channels - round(channels * p / 100), 1)


def largest(features: Features, count: int) -> Tensor:
    """A boolean mask of each row's ``count`` largest entries; among equals the lowest channel wins."""
    order = features.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(features, dtype=torch.bool).scatter(1, order, True)


def ratio(features: Features, count: int, *, undefined: float) -> Tensor:
    """(batch, 1) float64: the sum of all entries over the sum of the ``count`` largest.

    ``undefined`` stands where the largest do not sum to more than 0 (a dead or an all-negative
    row): there the quotient would be NaN, or turn the row around.
    """
    precise = double(features)
    total = precise.sum(1, keepdim=True)
    return quotient(total, precise.topk(count, dim=1).values.sum(1, keepdim=True), undefined=undefined)


def quotient(total: Tensor, top: Tensor, *, undefined: float) -> Tensor:
    """total / top where top is positive, ``undefined`` elsewhere."""
    return torch.where(top > 0, total / torch.where(top > 0, top, 1), undefined)
