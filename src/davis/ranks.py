"""Which of n held-out scores may serve as a threshold: the Beta law of order statistics."""

from __future__ import annotations

from math import ceil, exp, inf, log, log1p


def rank_of(count: int, *, alpha: float, delta: float) -> int:
    """The largest k with P(Beta(k, count + 1 - k) <= alpha) >= 1 - delta; 0 if there is none.

    P(Beta(k, n + 1 - k) <= alpha) = P(Binomial(n, alpha) >= k), so lower tails of the binomial are added until they
    exceed delta.

    >>> [rank_of(n, alpha=0.05, delta=0.05) for n in (58, 59)], [rank_of(n, alpha=0.01, delta=0.05) for n in (298, 299)]
    ([0, 1], [0, 1])
    """
    log_odds = log(alpha) - log1p(-alpha)
    log_mass, log_tail = count * log1p(-alpha), -inf
    limit = log(delta) + 1e-9  # equality is enough, and logarithms are rounded
    for rank in range(count + 1):
        larger, smaller = max(log_tail, log_mass), min(log_tail, log_mass)
        log_tail = larger + log1p(exp(smaller - larger))  # P(Binomial <= rank)
        if log_tail > limit:
            return rank
        log_mass += log((count - rank) / (rank + 1)) + log_odds if rank < count else 0.0
    return count


def least_count(*, alpha: float, delta: float) -> int:
    """The fewest calibration scores with which a threshold can be promised: (1 - alpha)^n <= delta."""
    least = max(1, ceil(log(delta) / log1p(-alpha)) - 1)  # one below, for rounding
    while rank_of(least, alpha=alpha, delta=delta) < 1:
        least += 1
    return least
