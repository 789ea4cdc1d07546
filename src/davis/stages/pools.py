"""Pools: which numbers of the last map become the features."""

from __future__ import annotations

from typing import Literal, final

import torch

from davis.stages.base import Pool
from davis.types import Activations, Features


@final
class Mean(Pool, name="mean"):
    """Global average pooling, the classifier's own: h = mu."""

    def forward(self, activations: Activations) -> Features:
        return activations.mean


@final
class Max(Pool, name="max"):
    """DAVIS(m): the strongest activation of each channel, h = max.

    ``signed`` takes the least one of channels with a negative mean, for maps that go far below zero, such as Tanh's: a
    channel's evidence then grows in its own direction. Maps without negative values give the same either way.
    """

    def __init__(self, *, signed: bool = False) -> None:
        super().__init__()
        self.signed = signed

    def statistics(self) -> frozenset[str]:
        return frozenset({"max", "min"} if self.signed else {"max"})

    def forward(self, activations: Activations) -> Features:
        largest = _read(activations, "max")
        return torch.where(activations.mean < 0, _read(activations, "min"), largest) if self.signed else largest


@final
class Davis(Pool, name="davis"):
    """DAVIS(mu, sigma): h = mu + gamma * sigma over the positions of each channel.

    The standard deviation is the unbiased one (``ddof=1``), as in the authors' code; it is 0 on a
    map of one position. Biased and unbiased differ by 15% on 2x2 maps, so a gamma does not carry
    over between them. ``signed`` takes gamma * sigma away from a negative mu, as ``max(signed=true)`` does.
    """

    reads = frozenset({"std"})

    def __init__(self, *, gamma: float = 1, ddof: int = 1, signed: bool = False) -> None:
        super().__init__()
        self.gamma = gamma
        self.ddof = ddof
        self.signed = signed
        if ddof not in (0, 1):
            raise self.refuse("ddof", "0 or 1")

    def forward(self, activations: Activations) -> Features:
        added = self.gamma * _deviation(activations, self.ddof)
        if self.signed:
            added = torch.where(activations.mean < 0, -added, added)
        return activations.mean + added


@final
class Unified(Pool, name="unified"):
    """All three statistics in one sum: h = max + mu + gamma * sigma."""

    reads = frozenset({"std", "max"})

    def __init__(self, *, gamma: float = 1, ddof: int = 1) -> None:
        super().__init__()
        self.gamma = gamma
        self.ddof = ddof
        if ddof not in (0, 1):
            raise self.refuse("ddof", "0 or 1")

    def forward(self, activations: Activations) -> Features:
        return _read(activations, "max") + activations.mean + self.gamma * _deviation(activations, self.ddof)


@final
class Median(Pool, name="median"):
    """The middle value of each channel; of two middle values the lower one, or their mean."""

    def __init__(self, *, ties: Literal["lower", "mean"] = "lower") -> None:
        super().__init__()
        self.ties = ties

    def statistics(self) -> frozenset[str]:
        return frozenset({"median" if self.ties == "lower" else "median_mean"})

    def forward(self, activations: Activations) -> Features:
        return _read(activations, "median" if self.ties == "lower" else "median_mean")


@final
class Entropy(Pool, name="entropy"):
    """How evenly a channel is spread over its positions.

    ``softmax``: the entropy e of the softmax over positions; ``official``: 1 / e, what the authors'
    code feeds to the scores; ``paper``: the entropy of map / sum(map), as the paper prints it.
    """

    def __init__(self, *, variant: Literal["official", "softmax", "paper"] = "official") -> None:
        super().__init__()
        self.variant = variant

    def statistics(self) -> frozenset[str]:
        return frozenset({"entropy_paper" if self.variant == "paper" else "entropy"})

    def forward(self, activations: Activations) -> Features:
        if self.variant == "paper":
            return _read(activations, "entropy_paper")
        entropy = _read(activations, "entropy")
        if self.variant == "softmax":
            return entropy
        # A map of one position has no spread; its reciprocal is bounded instead of infinite.
        return 1 / torch.where(entropy.abs() < 1e-6, 1e-6, entropy)


def _deviation(activations: Activations, ddof: int) -> Features:
    std = _read(activations, "std")
    if ddof == 1:
        return std
    positions = activations.positions.to(std.dtype)[:, None]
    return std * ((positions - 1) / positions).sqrt()


def _read(activations: Activations, statistic: str) -> Features:
    features: Features | None = getattr(activations, statistic)
    if features is None:
        held = [name for name in Activations._fields[2:] if getattr(activations, name) is not None]
        raise ValueError(
            f"the activations were taken without {statistic!r} (they hold: {', '.join(held)}); "
            f"take them with backbone(images, statistics={{{statistic!r}}})"
        )
    return features
