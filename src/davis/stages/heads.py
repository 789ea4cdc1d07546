"""Heads: how features become logits."""

from __future__ import annotations

from typing import Literal, final

import torch.nn.functional as F
from torch import Tensor

from davis.stages.base import Head
from davis.statistics import Statistics, quantile
from davis.types import Classifier, Features, Logits


@final
class Linear(Head, name="linear"):
    """The classifier's own last layer."""

    def forward(self, features: Features, classifier: Classifier) -> Logits:
        return classifier(features)


@final
class Dice(Head, name="dice"):
    """DICE (Sun and Li, 2022): the last layer with only the weights whose contribution stands out.

    Contribution = weight * mean training feature; kept where it exceeds the p-th percentile of all
    contributions. ``contribution=gap`` takes the average-pooled mean under every pooling, as the
    authors of DAVIS do; ``pooled`` the mean of the pooling in use.
    """

    needs = frozenset({"mean", "gap_mean"})
    mask: Tensor

    def __init__(self, *, p: float = 70, contribution: Literal["gap", "pooled"] = "gap") -> None:
        super().__init__()
        self.p = p
        self.contribution = contribution
        self.check_percent("p")

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        mean = statistics.gap_mean if self.contribution == "gap" else statistics.mean
        contributions = classifier.weight.detach().double() * mean.to(classifier.weight.device)
        self.mask = contributions > quantile(contributions.flatten(), self.p / 100)

    def forward(self, features: Features, classifier: Classifier) -> Logits:
        weight = classifier.weight.to(features.dtype) * self.mask
        return F.linear(features, weight, classifier.bias.to(features.dtype))
