"""Confidence from logits alone, in float64: the formulas that several scores share."""

from __future__ import annotations

import torch

from davis.types import Logits, Scores, double


def energy(logits: Logits, t: float = 1) -> Scores:
    """t * logsumexp(f / t), minus the free energy."""
    return t * (double(logits) / t).logsumexp(1)


def max_probability(logits: Logits, t: float = 1) -> Scores:
    """The largest softmax probability, through log space so that it saturates as late as it can."""
    return (double(logits) / t).log_softmax(1).amax(1).exp()


def generalised_entropy(logits: Logits, gamma: float, m: int) -> Scores:
    """The sum of (p (1 - p))^gamma over the m largest probabilities; all of them where there are fewer.

    1 - p of the largest is taken as the sum of the others: the difference would cancel, and the
    0.1th power makes a rounding error of 1e-16 one of 2%.
    """
    probabilities = double(logits).softmax(1).sort(dim=1, descending=True).values
    of_largest = probabilities[:, 1:].sum(1, keepdim=True)
    complements = torch.cat([of_largest, 1 - probabilities[:, 1:]], 1)
    return (probabilities * complements)[:, :m].pow(gamma).sum(1)
