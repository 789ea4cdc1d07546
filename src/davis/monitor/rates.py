"""How often scores are flagged: the threshold that promises a rate, and the rate that was seen."""

from __future__ import annotations

from math import log

import numpy as np

from davis.ranks import least_count, rank_of
from davis.scores_file import Values

# Slopes of the bets behind the interval, from a rate known to 1e-3 after 1e6 scores to one or two scores.
_SLOPES = 0.005 * 2.0 ** (np.arange(23) / 2)
_HALVINGS = 50


def threshold_of(scores: Values, *, alpha: float, delta: float) -> float:
    """The score below which one is flagged: a new ID score is, with probability at most alpha.

    That holds with confidence 1 - delta over the draw of the n calibration scores. The chance to fall below the k-th
    smallest of them has a Beta(k, n + 1 - k) law (ties make it smaller), so k is the largest number for which that law
    puts at least 1 - delta on [0, alpha].
    """
    rank = rank_of(len(scores), alpha=alpha, delta=delta)
    if rank < 1:
        raise ValueError(
            f"{len(scores)} calibration scores are too few to promise a flag rate of at most alpha={alpha} with "
            f"confidence 1 - delta={1 - delta:g}; {least_count(alpha=alpha, delta=delta)} are needed"
        )
    return float(np.partition(scores, rank - 1)[rank - 1])


def interval_of(flagged: int, count: int, *, confidence: float) -> tuple[float, float]:
    """Limits for the average flag probability of a stream, right at all times together with this confidence.

    With q_i the probability of a flag given the past and any slope s, exp(s S_t - sum of log(1 - q_i + q_i e^s)) is a
    martingale; that logarithm is concave in q, so t times its value at the average of the q_i is at least the sum.
    A mixture over slopes, one for either side, and Ville's inequality give the limits. The rate may change over time:
    the average so far is what is covered.

    >>> interval_of(0, 0, confidence=0.95)
    (0.0, 1.0)
    """
    each = (1.0 - confidence) / 2.0
    return _lower(flagged, count, each), 1.0 - _lower(count - flagged, count, each)


def _lower(hits: int, count: int, error: float) -> float:
    """The largest rate, to rounding, such that it and all below it are refused."""
    if hits == 0:
        return 0.0
    refused, kept = 0.0, hits / count  # at the observed rate no bet has won anything
    for _ in range(_HALVINGS):
        rate = (refused + kept) / 2.0
        exponents = _SLOPES * hits - count * np.log1p(rate * np.expm1(_SLOPES))
        if np.logaddexp.reduce(exponents) - log(len(_SLOPES)) >= -log(error):
            refused = rate
        else:
            kept = rate
    return refused
