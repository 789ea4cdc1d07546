"""What a monitor reports while it watches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Alarm:
    """The evidence reached 1 / bound."""

    at: int  # the number of the score, from 1, at which it did
    test: int  # which test: 1, and one more after each reset
    e_value: float


@dataclass(frozen=True)
class Window:
    """Scores one after another, in short."""

    first: int  # number of its first score in the stream, from 1
    count: int
    flagged: int | None  # None where there is no threshold
    flag_rate: float | None
    mean: float
    low: float  # the 5th percentile
    median: float
    high: float  # the 95th
    e_value: float  # of the test at the window's end
    alarms: tuple[int, ...]  # numbers of the scores at which an alarm was raised

    @classmethod
    def of(
        cls, scores: Sequence[float], *, last: int, threshold: float | None, e_value: float, alarms: tuple[int, ...]
    ) -> Window:
        """The window of these scores, the last of which has this number in the stream."""
        values = np.array(scores)
        low, median, high = (float(value) for value in np.quantile(values, (0.05, 0.5, 0.95)))
        flagged = None if threshold is None else int((values < threshold).sum())
        return cls(
            first=last - len(values) + 1,
            count=len(values),
            flagged=flagged,
            flag_rate=None if flagged is None else flagged / len(values),
            mean=float(values.mean()),
            low=low,
            median=median,
            high=high,
            e_value=e_value,
            alarms=alarms,
        )
