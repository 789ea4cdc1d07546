"""Generalised ODIN: the head that a classifier must be trained with, and its score."""

from __future__ import annotations

from typing import Literal, final

import torch
from torch import Tensor, nn

from davis.stages.base import Score
from davis.types import Classifier, Features, Logits, Scores, double, evaluating, length


@final
class GodinHead(nn.Module):
    """The decomposed last layer of GODIN (Hsu et al., 2020): logits = h(z) / g(z).

    h is a similarity to each class: ``cosine``, ``inner`` product, or ``euclid`` (minus the mean
    squared difference). g = sigmoid(batchnorm(linear(z))) is one number per image. Train with
    cross-entropy on the quotient and no weight decay on ``weight``.

    >>> head = GodinHead(8, 3, similarity="cosine").eval()
    >>> head(torch.ones(2, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, channels: int, classes: int, *, similarity: Literal["cosine", "inner", "euclid"] = "cosine"
    ) -> None:
        super().__init__()
        if similarity not in ("cosine", "inner", "euclid"):
            raise ValueError(f"similarity must be cosine, inner or euclid, got {similarity!r}")
        self.similarity = similarity
        self.weight = nn.Parameter(torch.empty(classes, channels))
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        self.bias = nn.Parameter(torch.zeros(classes)) if similarity == "inner" else None
        self.gate = nn.Sequential(nn.Linear(channels, 1), nn.BatchNorm1d(1), nn.Sigmoid())

    def numerator(self, features: Features) -> Logits:
        """(batch, class) h, before it is divided."""
        if self.similarity == "inner":
            return nn.functional.linear(features, self.weight, self.bias)
        if self.similarity == "cosine":
            unit = features / (length(features)[:, None] + 1e-4)
            return unit @ (self.weight / (length(self.weight)[:, None] + 1e-4)).T
        squares = features.square().mean(1, keepdim=True) + self.weight.square().mean(1)
        return 2 * features @ self.weight.T / features.shape[1] - squares

    def denominator(self, features: Features) -> Tensor:
        """(batch, 1) g, between 0 and 1."""
        gate: Tensor = self.gate(features)
        return gate

    def forward(self, features: Features) -> Logits:
        with torch.autocast(features.device.type, enabled=False):  # a cosine in bfloat16 has eight bits
            features = features.to(self.weight.dtype)
            return self.numerator(features) / self.denominator(features)


@final
class Godin(Score, name="godin"):
    """GODIN (Hsu et al., 2020): max_c h_c, or g, of a model that was trained with a ``GodinHead``."""

    def __init__(self, *, score: Literal["h", "g"] = "h") -> None:
        super().__init__()
        self.score = score

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        head = classifier.module
        if not isinstance(head, GodinHead):
            raise TypeError(
                f"godin scores models trained with davis.stages.GodinHead as last layer, and this one ends in "
                f"{type(head).__name__}; any other score works on it"
            )
        features = features.to(head.weight.dtype)
        with evaluating(head):
            if self.score == "g":
                return double(head.denominator(features)[:, 0])
            return double(head.numerator(features)).amax(1)
