"""Scores from the covariance of training features. Decompositions and projections are float64."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor

from davis.stages.base import Score
from davis.stages.confidence import energy
from davis.statistics import Statistics
from davis.types import Classifier, Features, Logits, Scores, double, length

RANK_CUTOFF = 1e-12
"""Eigenvalues below this share of the largest count as 0 in a pseudo-inverse."""


@final
class Mahalanobis(Score, name="mahalanobis"):
    """Mahalanobis (Lee et al., 2018): minus the squared distance to the nearest class mean.

    Class means by label; one covariance within classes, pseudo-inverted. ``shrinkage`` a blends it
    with a multiple of the identity, (1 - a) S + a tr(S) / n I. Classes without images are left out.
    """

    needs = frozenset({"mean", "covariance", "class_means"})
    mean: Tensor
    whitening: Tensor  # (channel, rank): distances there are Mahalanobis distances
    centres: Tensor  # (class, rank)

    def __init__(self, *, shrinkage: float = 0) -> None:
        super().__init__()
        self.shrinkage = shrinkage
        if not 0 <= shrinkage <= 1:
            raise self.refuse("shrinkage", "from 0 to 1")

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        _warn_if_few(self, statistics)
        means, counts = statistics.class_means
        seen = counts > 0
        deviations = means[seen] - statistics.mean
        between = deviations.T @ (deviations * counts[seen, None]) / statistics.count
        within = statistics.covariance - between
        if self.shrinkage > 0:
            target = within.diagonal().mean() * torch.eye(len(within), dtype=within.dtype, device=within.device)
            within = (1 - self.shrinkage) * within + self.shrinkage * target
        values, vectors = torch.linalg.eigh(within)
        # Against the total spread: what is left of a difference of two equal matrices is noise.
        floor = RANK_CUTOFF * torch.maximum(values.max(), statistics.covariance.diagonal().max())
        keep = values > floor
        if not keep.any():
            self.warn("features do not vary within classes; every image scores 0: fit on more images")
        self.mean = statistics.mean
        self.whitening = vectors[:, keep] / values[keep].sqrt()
        self.centres = deviations @ self.whitening

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        white = (double(features) - self.mean) @ self.whitening
        squares = white.square().sum(1, keepdim=True) + self.centres.square().sum(1)
        return -(squares - 2 * white @ self.centres.T).amin(1).clamp_min(0)


@final
class Vim(Score, name="vim"):
    """ViM (Wang et al., 2022): energy minus alpha times the length of the residual.

    The residual lies in the directions of least spread around the origin u = -pinv(W) b, all but
    the ``d`` strongest; alpha makes it as large as the largest logit on training data. ``auto``:
    1000 from 2048 channels, 512 from 768, else half.
    """

    needs = frozenset({"mean", "covariance", "sample"})
    origin: Tensor
    residual: Tensor
    alpha: Tensor

    def __init__(self, *, d: int | Literal["auto"] = "auto") -> None:
        super().__init__()
        self.d = d
        if not isinstance(d, str):
            self.check_positive("d")

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        _warn_if_few(self, statistics)
        channels = len(statistics.mean)
        d = self.dimension(channels)
        if d >= channels:
            raise ValueError(f"vim: d={d} leaves no residual of {channels} channels; choose a smaller d")
        weight, bias = double(classifier.weight.detach()), double(classifier.bias.detach())
        self.origin = -torch.linalg.pinv(weight) @ bias
        shift = statistics.mean - self.origin
        _, vectors = torch.linalg.eigh(statistics.covariance + torch.outer(shift, shift))
        self.residual = vectors[:, : channels - d].contiguous()
        sample = statistics.sample
        size = torch.cat([self._length(chunk) for chunk in sample.features.split(4096)]).mean()
        largest = double(sample.logits).amax(1).mean()
        spread = statistics.covariance.diagonal().sum().sqrt() + shift.square().sum().sqrt()
        if size <= 1e-6 * spread:
            self.warn(f"training features leave no residual beyond {d} dimensions; the score is energy alone")
            self.alpha = torch.zeros_like(size)
        else:
            self.alpha = largest / size

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        return energy(logits) - self.alpha * self._length(features)

    def dimension(self, channels: int) -> int:
        """The dimension of the principal space at this number of channels."""
        if self.d != "auto":
            return int(self.d)
        return 1000 if channels >= 2048 else 512 if channels >= 768 else channels // 2

    def _length(self, features: Features) -> Tensor:
        return length((double(features) - self.origin) @ self.residual)


def _warn_if_few(stage: Score, statistics: Statistics) -> None:
    if statistics.count <= len(statistics.mean):
        shape = f"{statistics.count} images for {len(statistics.mean)} channels"
        stage.warn(f"{shape}; their covariance is singular, fit on more images")


@final
class GradOrth(Score, name="gradorth"):
    """GradOrth (Behpour et al., 2023), experimental: ||p - 1/K|| * ||V' h||.

    V spans the directions that hold a share ``eps`` of the training features' energy. There is no
    official code and the paper leaves the loss and the norm open; this is one reading of it.
    """

    experimental = True
    needs = frozenset({"mean", "covariance"})
    basis: Tensor

    def __init__(self, *, eps: float = 0.97) -> None:
        super().__init__()
        self.eps = eps
        if not 0 < eps <= 1:
            raise self.refuse("eps", "a share above 0, up to 1")

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        values, vectors = torch.linalg.eigh(statistics.covariance + torch.outer(statistics.mean, statistics.mean))
        shares = values.clamp_min(0).flip(0).cumsum(0)
        rank = int((shares < self.eps * shares[-1]).sum()) + 1
        self.basis = vectors.flip(1)[:, : min(rank, len(values))].contiguous()

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        residual = double(logits).softmax(1) - 1 / logits.shape[1]
        projection = double(features) @ self.basis
        return length(residual) * length(projection)
