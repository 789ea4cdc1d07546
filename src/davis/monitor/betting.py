"""Test martingales: capital that grows only when the bets' hypothesis is wrong.

The start is 1, bets are fair (or worse) under the hypothesis, so the capital reaches 1 / bound with a probability of at
most ``bound``, ever (Ville's inequality).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, log1p
from typing import final

_LARGE = 1e100  # beyond it the capital is counted in another unit, so that it neither overflows nor vanishes

# Densities on (0, 1) that are high at small p: 1 - w + w k p^(k - 1). A small w stands for a few very low scores among
# ordinary ones, w = 1 for a stream that has moved as a whole. Vovk's power martingale has w = 1.
_SHARES = (0.03, 0.1, 0.3, 1.0)
_POWERS = (0.2, 0.6)
P_VALUE_BETS = len(_SHARES) * len(_POWERS)

# Flag rates that are bet on, as shares of the way from alpha to 1.
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
FLAG_BETS = len(_STEPS)


@final
class Capital:
    """One unit, spread over several bets and over the times at which they start.

    A shift may come late, and a bet that began early has lost everything by then. So the part
    1 - 1 / (1 + log(1 + t)) of the unit is at stake after step t, and the rest still waits: a mixture over bets and
    starting times, each of which is a test martingale, and so one itself. Waiting costs about log t + 2 log log t in
    the logarithm of the capital.
    """

    def __init__(self, bets: int, *, steps: int = 0, stakes: Sequence[float] = (), log_unit: float = 0.0) -> None:
        self.steps = steps
        self.stakes = list(stakes) or [0.0] * bets  # what each bet holds, in units of exp(log_unit)
        self.log_unit = log_unit

    def bet(self, factors: Sequence[float]) -> None:
        """Multiply each bet by what one observation returned on it."""
        share = (_waiting(self.steps) - _waiting(self.steps + 1)) / len(self.stakes) * exp(-self.log_unit)
        self.stakes = [(stake + share) * factor for stake, factor in zip(self.stakes, factors, strict=True)]
        self.steps += 1
        largest = max(self.stakes)
        if largest > _LARGE or (self.log_unit > 0.0 and largest < 1.0 / _LARGE):
            unit = max(0.0, self.log_unit + log(largest))
            scale = exp(self.log_unit - unit)
            self.stakes = [stake * scale for stake in self.stakes]
            self.log_unit = unit

    @property
    def log_value(self) -> float:
        """The logarithm of the capital."""
        return self.log_unit + log(sum(self.stakes) + _waiting(self.steps) * exp(-self.log_unit))


def p_value_factors(p_value: float) -> list[float]:
    """What a p-value returns on each bet; fair if p-values are independent and uniform."""
    powers = [power * p_value ** (power - 1.0) for power in _POWERS]
    return [1.0 - share + share * value for value in powers for share in _SHARES]


def flag_factors(alpha: float) -> tuple[list[float], list[float]]:
    """What a score that is not flagged, and one that is, return on each bet; fair or worse if flags are alpha or rarer.

    A bet is the likelihood ratio of a rate r > alpha against alpha. Under a true rate q its mean is linear in q, 1 at
    q = alpha, and not above 1 below that.
    """
    rates = [alpha + step * (1.0 - alpha) for step in _STEPS]
    return [(1.0 - rate) / (1.0 - alpha) for rate in rates], [rate / alpha for rate in rates]


def _waiting(steps: int) -> float:
    return 1.0 / (1.0 + log1p(steps))
