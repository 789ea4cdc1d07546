"""Fusions: several detectors' scores as one, by their p-values among held-out in-distribution scores.

Each score s becomes log p, p its rank among the reference scores of its own detector, read off the interpolated
distribution function. Beyond the lowest twentieth of the reference a fitted tail goes on, so that scores below all of
it keep their order. The fused score is one more score: it is calibrated like any other, on images of its own, and its
promise does not rest on these p-values being exact.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from davis.stages.base import Fuse, Tail
from davis.types import Scores, double

_LOW = 0.05  # the share of the reference that its lower tail is fitted on
_FEWEST = 5  # reference scores in that tail


@final
class Fisher(Fuse, name="fisher"):
    """The sum of the log p-values (Fisher, 1925), weighted where weights are given."""

    def forward(self, scores: Tensor) -> Scores:
        return log_p_values(scores, self.reference, self.tail) @ self.shares(scores)


@final
class Minimum(Fuse, name="min"):
    """The smallest p-value, as its logarithm (Tippett, 1931); weights multiply it."""

    def forward(self, scores: Tensor) -> Scores:
        return (log_p_values(scores, self.reference, self.tail) * self.shares(scores)).amin(1)


@final
class Stouffer(Fuse, name="stouffer"):
    """The sum of the normal quantiles of the p-values (Stouffer, 1949), weighted where weights are given."""

    def forward(self, scores: Tensor) -> Scores:
        shares = self.shares(scores)
        quantiles = normal_quantiles(log_p_values(scores, self.reference, self.tail))
        return quantiles @ shares / shares.square().sum().sqrt()


def log_p_values(scores: Tensor, reference: Tensor, tail: Tail) -> Tensor:
    """(batch, detector) the log of each score's rank among its row of ``reference`` (detector, n), ascending."""
    columns = [_log_p(double(scores[:, place]), row, tail) for place, row in enumerate(double(reference))]
    return torch.stack(columns, 1)


def _log_p(scores: Scores, reference: Tensor, tail: Tail) -> Tensor:
    n = len(reference)
    below = torch.searchsorted(reference, scores.contiguous(), right=True)
    left, right = reference[(below - 1).clamp_min(0)], reference[below.clamp_max(n - 1)]
    width = right - left
    inside = torch.where(width > 0, (scores - left) / torch.where(width > 0, width, 1), 0)
    ranked = ((below + inside).clamp(1, n) / (n + 1)).log()
    if tail == "gaussian":
        centre, spread = reference.mean(), _positive(reference.std())
        normal: Tensor = torch.special.log_ndtr((scores - centre) / spread)
        return normal
    if tail == "zscore":
        return ranked + 1e-4 * (scores - reference.mean()) / _positive(reference.std())
    lowest = max(_FEWEST, math.ceil(_LOW * n))
    start = reference[lowest - 1]
    excess = (start - reference[: lowest - 1]).mean()
    depth = (start - scores).clamp_min(0) / _positive(excess)
    if tail == "exponential":
        log_tail = -depth
    else:  # generalised Pareto by its first two moments, never with an end: an end would tie scores again
        variance = (start - reference[: lowest - 1]).var(correction=0) / _positive(excess) ** 2
        shape = (0.5 * (1 - 1 / variance.clamp_min(1e-3))).clamp(0.0, 0.45)
        scale = 1 - shape
        log_tail = torch.where(shape > 1e-6, -torch.log1p(shape * depth / scale) / shape.clamp_min(1e-6), -depth)
    top = (scores - reference[-1]).clamp_min(0) / _positive(reference[-1] - reference[n // 2])
    rising = torch.log1p(-torch.exp(-top) / (n + 1))  # above all of the reference: on towards p = 1
    ranked = torch.where(scores > reference[-1], rising, ranked)
    return torch.where(scores < start, math.log(lowest / (n + 1)) + log_tail, ranked)


def normal_quantiles(log_p: Tensor) -> Tensor:
    """z with log Phi(z) = log p, also where p is too small for a float."""
    doubled = (-2 * log_p).clamp_min(1)
    far = -torch.sqrt((doubled - math.log(2 * math.pi) - doubled.log()).clamp_min(1))  # to 1 / z^3
    near, between = log_p > -20, log_p > -1e6
    quantiles = torch.where(near, torch.special.ndtri(log_p.exp().clamp_max(1 - 2**-53)), far)
    for _ in range(4):  # Newton's steps; the slope of log Phi is phi / Phi
        value = torch.special.log_ndtr(quantiles)
        slope = torch.exp(-quantiles.square() / 2 - 0.5 * math.log(2 * math.pi) - value)
        quantiles = torch.where(between & ~near, quantiles - (value - log_p) / slope, quantiles)
    return quantiles


def _positive(value: Tensor) -> Tensor:
    """The value, or 1 where a constant reference leaves nothing to measure with."""
    return torch.where(value > 0, value, torch.ones_like(value))
