"""Scores that look for neighbours in a bank of training features."""

from __future__ import annotations

from math import ceil, sqrt
from typing import Literal, final

import torch
from torch import Tensor

from davis.stages.base import NeighbourScore, Score
from davis.stages.confidence import energy
from davis.statistics import Statistics
from davis.types import Classifier, Features, Logits, Scores, double, length


@final
class Knn(NeighbourScore, name="knn"):
    """KNN (Sun et al., 2022): minus the distance to the k-th nearest training feature, on unit vectors.

    ``normalize=false, reduction=mean`` is the reading of the DAVIS paper's text: the mean distance
    to the k nearest raw features.
    """

    needs = frozenset({"sample"})
    centre: Tensor
    bank: Tensor

    def __init__(
        self,
        *,
        k: int = 50,
        normalize: bool = True,
        reduction: Literal["kth", "mean"] = "kth",
        squared: bool = False,
    ) -> None:
        super().__init__()
        self.k = k
        self.normalize = normalize
        self.reduction = reduction
        self.squared = squared
        self.check_positive("k")

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        features = statistics.sample.features
        _check_bank(self, self.k, len(features))
        rows = _unit(features) if self.normalize else features
        # Distances do not depend on the origin but the rounding of a product does: around the centre it is small.
        self.centre = rows.mean(0)
        self.bank = rows - self.centre

    def search(self, features: Features, k: int) -> Tensor:
        rows = _unit(features) if self.normalize else features
        return _nearest(rows - self.centre.to(rows.dtype), self.bank, k)

    def compared(self, features: Features) -> tuple[Features, Features]:
        return self.bank + self.centre, _unit(features) if self.normalize else features

    def from_neighbours(self, features: Features, squares: Tensor) -> Scores:
        distances = squares if self.squared else squares.sqrt()
        return -(distances[:, -1] if self.reduction == "kth" else distances.mean(1))


@final
class NnGuide(Score, name="nnguide"):
    """NNGuide (Park et al., 2023): energy times the mean of the k largest energy-weighted similarities.

    The bank is a random share ``ratio`` of the training rows, k of them at least.
    """

    needs = frozenset({"sample"})
    bank: Tensor

    def __init__(self, *, k: int = 10, ratio: float = 0.01) -> None:
        super().__init__()
        self.k = k
        self.ratio = ratio
        self.check_positive("k", "ratio")
        if ratio > 1:
            raise self.refuse("ratio", "a share of the training rows from 0 to 1")

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        sample = statistics.sample
        _check_bank(self, self.k, len(sample.features))
        rows = min(max(self.k, ceil(self.ratio * statistics.count)), len(sample.features))
        energies = energy(sample.logits[:rows])
        if energies.min() <= 0:
            self.warn("some training energies are not positive; two negatives multiply to a high score")
        self.bank = _unit(sample.features[:rows]) * energies[:, None].to(sample.features.dtype)

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        similarities = _unit(features) @ self.bank.to(features.dtype).T
        guidance = double(similarities.topk(self.k, dim=1).values).mean(1)
        return guidance * energy(logits)

    def compared(self, features: Features) -> tuple[Features, Features]:
        return _unit(self.bank), _unit(features)


@final
class CombOod(NeighbourScore, name="combood"):
    """CombOOD (Rajasekaran et al., 2024): nearest neighbour and Mahalanobis distance, both on unit vectors.

    -sqrt(channels) * log(squared distance to the k-th neighbour) - D2; D2 is taken after a
    Yeo-Johnson transform of each channel, with covariance + reg * identity.
    """

    needs = frozenset({"sample"})
    centre: Tensor
    bank: Tensor
    mean: Tensor
    scale: Tensor
    power: Tensor
    mean_after: Tensor
    scale_after: Tensor
    precision: Tensor

    def __init__(self, *, k: int = 50, reg: float = 1) -> None:
        super().__init__()
        self.k = k
        self.reg = reg
        self.check_positive("k", "reg")

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        features = statistics.sample.features
        _check_bank(self, self.k, len(features))
        unit = _unit(features)
        self.centre = unit.mean(0)
        self.bank = unit - self.centre
        self.fit_transform(unit)

    def fit_transform(self, vectors: Tensor) -> None:
        """Fit the standardisation, the power transform and the precision matrix on any vectors."""
        vectors = double(vectors)
        self.mean, self.scale = _location_and_scale(vectors)
        standard = (vectors - self.mean) / self.scale
        self.power = _yeo_johnson_powers(standard)
        powered = yeo_johnson(standard, self.power)
        self.mean_after, self.scale_after = _location_and_scale(powered)
        normal = (powered - self.mean_after) / self.scale_after
        identity = torch.eye(normal.shape[1], dtype=normal.dtype, device=normal.device)
        covariance = normal.T @ normal / max(len(normal) - 1, 1)  # centred already
        self.precision = torch.linalg.inv(covariance + self.reg * identity)

    def distance(self, vectors: Tensor) -> Tensor:
        """(batch,) the squared Mahalanobis distance after the power transform."""
        powered = yeo_johnson((double(vectors) - self.mean) / self.scale, self.power)
        normal = (powered - self.mean_after) / self.scale_after
        return ((normal @ self.precision) * normal).sum(1)

    def search(self, features: Features, k: int) -> Tensor:
        unit = _unit(features)
        return _nearest(unit - self.centre.to(unit.dtype), self.bank, k)

    def compared(self, features: Features) -> tuple[Features, Features]:
        return self.bank + self.centre, _unit(features)

    def from_neighbours(self, features: Features, squares: Tensor) -> Scores:
        # A copy of a training image has distance 0; its logarithm is bounded.
        q = squares[:, -1].clamp_min(1e-12)
        return -sqrt(features.shape[1]) * q.log() - self.distance(_unit(features))


def yeo_johnson(values: Tensor, power: Tensor) -> Tensor:
    """The Yeo-Johnson transform (2000) of each column with its own power."""
    positive, negative = values.clamp_min(0), values.clamp_max(0)
    return _box_cox(positive, power) - _box_cox(-negative, 2 - power)


def _box_cox(values: Tensor, power: Tensor) -> Tensor:
    """((1 + values)^power - 1) / power for non-negative values, and its limit at power 0."""
    logs = values.log1p()
    safe = torch.where(power.abs() < 1e-10, 1, power)
    return torch.where(power.abs() < 1e-10, logs, (logs * safe).expm1() / safe)


def _yeo_johnson_powers(values: Tensor, low: float = -20, high: float = 20) -> Tensor:
    """The power of each column that makes it most likely to be normal, by golden-section search."""
    rows = values[:10_000]  # a sample in random order; more rows move the optimum by less than its own error
    slope = (rows.sign() * rows.abs().log1p()).sum(0)

    def likelihood(power: Tensor) -> Tensor:
        variance = yeo_johnson(rows, power).var(0, correction=0)
        return (power - 1) * slope - len(rows) / 2 * variance.clamp_min(1e-300).log()

    golden = (sqrt(5) - 1) / 2
    left, right = torch.full_like(slope, low), torch.full_like(slope, high)
    for _ in range(50):
        inner_left, inner_right = right - golden * (right - left), left + golden * (right - left)
        rising = likelihood(inner_left) < likelihood(inner_right)
        left, right = torch.where(rising, inner_left, left), torch.where(rising, right, inner_right)
    constant = rows.var(0, correction=0) == 0
    return torch.where(constant, 1, (left + right) / 2)


def _location_and_scale(values: Tensor) -> tuple[Tensor, Tensor]:
    std = values.std(0, correction=0)
    return values.mean(0), torch.where(std > 1e-12, std, 1)


def _unit(features: Features) -> Features:
    """Rows divided by their length; a row of zeros stays one."""
    norms = length(double(features))[:, None]  # squares leave the range of float32 early
    return (features / torch.where(norms > 0, norms, 1)).to(features.dtype)


def _nearest(queries: Features, bank: Features, k: int) -> Tensor:
    """(batch, k) squared distances to the nearest bank rows, nearest first. By a product; cdist does not export.

    The product finds some more candidates than wanted; plain differences rank them again.
    """
    bank = bank.to(queries.dtype)
    closeness = torch.addmm(bank.square().sum(1), queries, bank.T, beta=-0.5)
    candidates = closeness.topk(min(len(bank), k + k // 4 + 8), dim=1).indices
    squares = [(queries - bank[place]).square().sum(1, dtype=_sum_type(queries)) for place in candidates.unbind(1)]
    return torch.stack(squares, 1).topk(k, dim=1, largest=False).values


def _sum_type(features: Features) -> torch.dtype:
    return torch.float32 if features.device.type == "mps" else torch.float64


def _check_bank(stage: Score, k: int, rows: int) -> None:
    if k > rows:
        raise ValueError(
            f"{stage.text()}: k={k} neighbours of {rows} training rows; use a smaller k or fit on more images "
            f"(and keep more rows, capacity=, where that is what limits them)"
        )
