"""Scores that compare features with what training left behind: a mean, class means, bin weights."""

from __future__ import annotations

from math import ceil
from typing import Literal, final

import torch
from torch import Tensor

from davis.stages.base import Score
from davis.stages.confidence import energy, generalised_entropy, max_probability
from davis.statistics import Statistics
from davis.types import Classifier, Features, Logits, Scores, double, length


@final
class Fdbd(Score, name="fdbd"):
    """fDBD (Liu and Qin, 2024): the sum of distances to the other classes' decision boundaries.

    sum over c of |f_y - f_c| / ||w_y - w_c||, over the distance to the training mean, or over
    ||h|| with ``normalizer=feature``. Classes whose weights are equal (to 1e-6 of
    their length) have no boundary and add 0.
    """

    needs = frozenset({"mean"})
    mean: Tensor

    def __init__(self, *, normalizer: Literal["distance", "feature"] = "distance") -> None:
        super().__init__()
        self.normalizer = normalizer

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        self.mean = statistics.mean

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        weight, f, h = double(classifier.weight), double(logits), double(features)
        predicted = f.argmax(1)
        squares = weight.square().sum(1)
        lengths = squares[predicted, None] + squares
        between = lengths - 2 * weight[predicted] @ weight.T  # the matrix form: no (batch, class, channel) array
        apart = between > 1e-12 * lengths
        gaps = (f.gather(1, predicted[:, None]) - f).abs()
        distances = torch.where(apart, gaps / torch.where(apart, between, 1).sqrt(), 0)
        origin = self.mean if self.normalizer == "distance" else torch.zeros_like(self.mean)
        return distances.sum(1) / _divisor(length(h - origin))


@final
class Nci(Score, name="nci"):
    """NCI (Liu and Qin, 2025): <w_y, h - mean> / ||h - mean|| + alpha * ||h||_1."""

    needs = frozenset({"mean"})
    mean: Tensor

    def __init__(self, *, alpha: float = 0.0001) -> None:
        super().__init__()
        self.alpha = alpha

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        self.mean = statistics.mean

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        h = double(features)
        centred = h - self.mean
        weight = double(classifier.weight)[logits.argmax(1)]
        proximity = (weight * centred).sum(1) / _divisor(length(centred))
        return proximity + self.alpha * h.abs().sum(1)


@final
class CaRef(Score, name="caref"):
    """CARef (Ling et al., 2025): minus ||h - mean of the predicted class||_1 / ||h||_1."""

    needs = frozenset({"mean", "class_means", "predicted_means"})
    means: Tensor

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        self.means = _means_of_predicted(statistics)

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        h = double(features)
        error = (h - self.means[logits.argmax(1)]).abs().sum(1)
        return -error / _divisor(h.abs().sum(1))


@final
class CadRef(Score, name="cadref"):
    """CADRef (Ling et al., 2025): CARef with the error split by the sign of the class weight.

    The part that speaks for the class is weighed by this image's confidence, the rest by the mean
    confidence in training; ``logit`` names the confidence.
    """

    needs = frozenset({"mean", "class_means", "predicted_means", "sample"})
    means: Tensor
    confidence: Tensor

    def __init__(self, *, logit: Literal["energy", "maxlogit", "msp", "gen"] = "energy") -> None:
        super().__init__()
        self.logit = logit

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        self.means = _means_of_predicted(statistics)
        confidences = self._confidence(statistics.sample.logits)
        if confidences.min() <= 0:
            self.warn(f"confidence {self.logit!r} is not positive on all training images; scores may flip")
        self.confidence = confidences.mean()

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        h = double(features)
        predicted = logits.argmax(1)
        signed = (h - self.means[predicted]) * double(classifier.weight)[predicted].sign()
        positive = signed.relu().sum(1) / self._confidence(logits)
        negative = (-signed).relu().sum(1) / self.confidence
        return -(positive + negative) / _divisor(h.abs().sum(1))

    def _confidence(self, logits: Logits) -> Scores:
        if self.logit == "energy":
            confidence = energy(logits)
        elif self.logit == "maxlogit":
            confidence = double(logits).amax(1)
        elif self.logit == "msp":
            confidence = max_probability(logits)
        else:
            confidence = 1 / _divisor(generalised_entropy(logits, 0.1, max(10, logits.shape[1] // 10)))
        return torch.where(confidence == 0, 1e-12, confidence)


@final
class OptFs(Score, name="optfs"):
    """OptFS (Zhao et al., 2024): features weighed by the bin they fall into.

    A bin's weight is what its features contribute on average to the predicted class; the bins are
    100 equal steps from the 0.1th to the 99.9th percentile, and features outside become 0.
    ``vanilla`` sums w_y h'; ``energy`` takes the energy of the shaped logits.
    """

    needs = frozenset({"quantiles", "sample"})
    edges: Tensor
    weights: Tensor

    def __init__(self, *, score: Literal["vanilla", "energy"] = "vanilla") -> None:
        super().__init__()
        self.score = score

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        low, high = statistics.quantile(0.001), statistics.quantile(0.999)
        width = float(high - low) / 100
        if width <= 0:
            raise ValueError("optfs: nearly all training features are equal, so there are no bins to weigh them by")
        # NumPy's arange: rounding decides between 100 and 101 bins, as in the original.
        bins = ceil(float(high - low) / width)
        self.edges = low + width * torch.arange(bins + 1, device=low.device, dtype=low.dtype)
        sample = statistics.sample
        influence = torch.zeros(bins + 1, device=low.device, dtype=low.dtype)
        for h, f in zip(sample.features.split(4096), sample.logits.split(4096), strict=True):
            contribution = double(h) * double(classifier.weight.detach())[f.argmax(1)]
            influence.index_add_(0, self._bins(h).flatten(), contribution.flatten())
        influence[-1] = 0  # the bin that gathers everything outside
        influence = influence / len(sample.features)
        self.weights = 1000 * influence / _divisor(influence.norm())

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        shaped = double(features) * self.weights[self._bins(features)]
        weight = double(classifier.weight)
        if self.score == "vanilla":
            return (weight[logits.argmax(1)] * shaped).sum(1)
        return energy(shaped @ weight.T + double(classifier.bias))

    def _bins(self, features: Features) -> Tensor:
        """The bin of each entry; the last bin gathers what lies outside all of them."""
        outside = len(self.edges) - 1
        index = torch.bucketize(double(features), self.edges, right=True) - 1
        return torch.where((index < 0) | (index >= outside), outside, index)


def _divisor(size: Tensor) -> Tensor:
    """A length to divide by: 1 in the place of 0."""
    return torch.where(size > 0, size, 1)


def _means_of_predicted(statistics: Statistics) -> Tensor:
    """(class, channel) means by predicted class.

    A class never predicted falls back on its labelled images, and without any on the mean of all.
    """
    means, counts = statistics.predicted_means
    labelled, labels = statistics.class_means
    fallback = torch.where(labels[:, None] > 0, labelled, statistics.mean)
    return torch.where(counts[:, None] > 0, means, fallback)
