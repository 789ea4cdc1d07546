"""Thresholds from held-out in-distribution scores."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor

from davis.types import Scores, double


@dataclass(frozen=True)
class Calibration:
    """A threshold and what it rests on."""

    threshold: float
    tpr: float  # the share of in-distribution images that it is meant to accept
    count: int  # the held-out images it was taken from


def calibrate(scores: Scores, *, tpr: float = 0.95) -> Calibration:
    """The threshold below which a score counts as OOD, so that a share ``tpr`` of ID images passes.

    With n held-out scores and k = floor((1 - tpr) (n + 1)) it is the k-th smallest of them (split
    conformal): a new ID image scores below it with a probability of at most 1 - tpr.

    >>> import torch
    >>> calibrate(torch.arange(19.0), tpr=0.95).threshold
    0.0
    """
    if not 0 < tpr < 1:
        raise ValueError(f"tpr must lie between 0 and 1, such as 0.95 to accept 95% of ID images; got {tpr}")
    if scores.ndim != 1:
        raise ValueError(f"calibration takes a row of scores, got shape {tuple(scores.shape)}")
    if not scores.isfinite().all():
        raise ValueError(f"{int((~scores.isfinite()).sum())} of {len(scores)} scores are NaN or infinite")
    alpha = 1 - Fraction(str(float(tpr)))  # exact: in floats (1 - 0.9) * 10 is below 1
    rank = floor(alpha * (len(scores) + 1))
    if rank < 1:
        needed = ceil(1 / alpha) - 1
        raise ValueError(
            f"{len(scores)} held-out images are too few to promise tpr={tpr}; {needed} are needed, or a lower tpr"
        )
    threshold = double(scores).kthvalue(rank).values.item()
    return Calibration(threshold=threshold, tpr=float(tpr), count=len(scores))
