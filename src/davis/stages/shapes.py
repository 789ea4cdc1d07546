"""Shapes: what is done to features before the last layer."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor

from davis.stages.base import Shape
from davis.stages.topk import kept, largest, quotient, ratio
from davis.statistics import Statistics
from davis.types import Classifier, Features, double


def _scaled(features: Features, exponent: Tensor) -> Features:
    """Features times exp(exponent); an undefined ratio counts as 0 and leaves them as they are."""
    return (double(features) * exponent.exp()).to(features.dtype)


@final
class React(Shape, name="react"):
    """ReAct (Sun et al., 2021): h' = min(h, c), c the p-th percentile of all training activations."""

    needs = frozenset({"quantiles"})
    clip: Tensor

    def __init__(self, *, p: float = 90) -> None:
        super().__init__()
        self.p = p
        self.check_percent("p")

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        self.clip = statistics.quantile(self.p / 100)

    def forward(self, features: Features) -> Features:
        return torch.minimum(features, self.clip.to(features.dtype))


@final
class AshS(Shape, name="ash_s"):
    """ASH-S (Djurisic et al., 2023): keep the top channels, times exp(sum before / sum after).

    ``rectify`` takes both sums over the positive part only, for networks with signed features.
    """

    def __init__(self, *, p: float = 90, rectify: bool = False) -> None:
        super().__init__()
        self.p = p
        self.rectify = rectify
        self.check_percent("p")

    def forward(self, features: Features) -> Features:
        count = kept(features.shape[1], self.p)
        summed = features.relu() if self.rectify else features
        return _scaled(features * largest(features, count), ratio(summed, count, undefined=0))


@final
class AshP(Shape, name="ash_p"):
    """ASH-P (Djurisic et al., 2023): keep the top channels as they are, the rest becomes 0."""

    def __init__(self, *, p: float = 90) -> None:
        super().__init__()
        self.p = p
        self.check_percent("p")

    def forward(self, features: Features) -> Features:
        return features * largest(features, kept(features.shape[1], self.p))


@final
class AshB(Shape, name="ash_b"):
    """ASH-B (Djurisic et al., 2023): each of the k top channels becomes sum / k, the rest 0."""

    def __init__(self, *, p: float = 90) -> None:
        super().__init__()
        self.p = p
        self.check_percent("p")

    def forward(self, features: Features) -> Features:
        count = kept(features.shape[1], self.p)
        level = double(features).sum(1, keepdim=True) / max(count, 1)
        return largest(features, count) * level.to(features.dtype)


@final
class Scale(Shape, name="scale"):
    """SCALE (Xu et al., 2024): h' = h * exp(sum of all / sum of the top channels); nothing is pruned.

    ``rule=quantile_higher`` counts the top channels as the DAVIS authors do: those at or above the
    percentile rounded up to a value that occurs. At 512 channels both rules agree, at 2048 they
    differ by one channel.
    """

    def __init__(
        self, *, p: float = 85, rule: Literal["topk", "quantile_higher"] = "topk", rectify: bool = False
    ) -> None:
        super().__init__()
        self.p = p
        self.rule = rule
        self.rectify = rectify
        self.check_percent("p")

    def forward(self, features: Features) -> Features:
        channels = features.shape[1]
        summed = features.relu() if self.rectify else features
        if self.rule == "topk":
            return _scaled(features, ratio(summed, kept(channels, self.p), undefined=0))
        ordered = summed.sort(dim=1).values
        threshold = ordered[:, _rank_above(channels, self.p), None]
        precise = double(summed)
        top = torch.where(summed >= threshold, precise, 0).sum(1, keepdim=True)
        return _scaled(features, quotient(precise.sum(1, keepdim=True), top, undefined=0))


def _rank_above(channels: int, p: float) -> int:
    """The index that ``quantile(..., interpolation="higher")`` picks, without its rounding noise."""
    return int(-((-(channels - 1) * p) // 100))


@final
class Bats(Shape, name="bats"):
    """BATS (Zhu et al., 2022): each channel is clipped to its training mean +- lam standard deviations."""

    needs = frozenset({"mean", "variance"})
    low: Tensor
    high: Tensor

    def __init__(self, *, lam: float = 3.25) -> None:
        super().__init__()
        self.lam = lam
        self.check_positive("lam")

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        spread = self.lam * statistics.variance.sqrt()
        self.low = statistics.mean - spread
        self.high = statistics.mean + spread

    def forward(self, features: Features) -> Features:
        return torch.maximum(torch.minimum(features, self.high.to(features.dtype)), self.low.to(features.dtype))


@final
class Laps(Shape, name="laps"):
    """LAPS (He et al., 2024): BATS with a width per channel.

    up = lam + m * (mean of means - mean) + n * (mean of stds - std); low turns the sign of m. ``m``
    is in the units of the features: tune it anew when the pooling changes their size.
    """

    needs = frozenset({"mean", "variance"})
    low: Tensor
    high: Tensor

    def __init__(self, *, lam: float = 1.5, m: float = 13, n: float = 0) -> None:
        super().__init__()
        self.lam = lam
        self.m = m
        self.n = n

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        mean, std = statistics.mean, statistics.variance.sqrt()
        by_mean = self.m * (mean.mean() - mean)
        by_std = self.n * (std.mean() - std)
        self.high = mean + std * (self.lam + by_mean + by_std)
        self.low = mean - std * (self.lam - by_mean + by_std)

    def forward(self, features: Features) -> Features:
        return torch.maximum(torch.minimum(features, self.high.to(features.dtype)), self.low.to(features.dtype))
