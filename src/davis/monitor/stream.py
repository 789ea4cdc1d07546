"""The monitor: scores in, windows and alarms out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from math import exp, isfinite, log
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike

from davis.monitor.betting import FLAG_BETS, P_VALUE_BETS, Capital, flag_factors, p_value_factors
from davis.monitor.events import Alarm, Window
from davis.monitor.rates import interval_of, threshold_of
from davis.monitor.reference import Reference
from davis.monitor.settings import CAPACITY, Method, Settings
from davis.monitor.state import read_state, write_state
from davis.monitor.together import Merged, merge
from davis.ranks import least_count
from davis.scores_file import checked, scores_sha256

AfterAlarm: TypeAlias = Literal["latch", "reset", "stop"]

_STATE: dict[str, tuple[type, ...]] = {
    "settings": (dict,),
    "count": (int,),
    "flagged": (int,),
    "test": (int,),
    "alarms": (int,),
    "alarm": (dict, type(None)),
    "recent": (list,),
    "recent_alarms": (list,),
    "capital": (dict,),
    "reference": (list, type(None)),
}


@final
class Monitor:
    """Watches a stream of scores (higher = more in-distribution) for a shift towards lower ones.

    ``online`` tests whether the stream is exchangeable with the calibration scores, ``flags`` whether scores fall
    below a threshold more often than a share ``alpha``; docs/monitor.md says what each promises.

    >>> random = np.random.default_rng(0)
    >>> monitor = Monitor(random.normal(0, 1, 500), bound=0.01, window=1000)
    >>> events = monitor.update(random.normal(0, 1, 2000))
    >>> [type(event).__name__ for event in events], monitor.alarm
    (['Window', 'Window'], None)
    >>> _ = monitor.update(random.normal(-1, 1, 100))
    >>> monitor.alarm is not None and monitor.e_value > 100
    True
    """

    def __init__(
        self,
        calibration_scores: ArrayLike,
        *,
        bound: float = 0.01,
        method: Method = "online",
        alpha: float = 0.05,
        delta: float = 0.01,
        threshold: float | None = None,
        seed: int = 0,
        window: int = 1000,
        capacity: int | None = None,
        confidence: float = 0.95,
    ) -> None:
        scores = checked(calibration_scores, name="calibration scores")
        if len(scores) > 1 and scores.min() == scores.max():
            raise ValueError(f"all {len(scores)} calibration scores are {scores[0]:g}; a detector that works varies")
        settings: dict[str, Any] = {
            "method": method,
            "bound": bound,
            "alpha": alpha,
            "delta": delta,
            "threshold": 0.0 if threshold is None else threshold,
            "seed": seed,
            "window": window,
            "capacity": max(CAPACITY, len(scores)) if capacity is None else capacity,
            "confidence": confidence,
            "calibration_count": len(scores),
            "calibration_sha256": scores_sha256(scores),
        }
        Settings(**settings)  # alpha and delta must be sound before a threshold is taken from them
        if threshold is None:
            promised = method == "flags" or len(scores) >= least_count(alpha=alpha, delta=delta)
            settings["threshold"] = threshold_of(scores, alpha=alpha, delta=delta) if promised else None
        self.settings = Settings(**settings)
        self.count = 0  # scores seen
        self.test = 0
        self.alarms = 0  # raised so far, over all tests
        self._flagged = 0
        self._recent: list[float] = []  # the unfinished window
        self._recent_alarms: list[int] = []
        self._reference = Reference(scores, capacity=self.settings.capacity) if method == "online" else None
        self._flag_factors = flag_factors(self.settings.alpha)
        self.reset()

    # -- watching ---------------------------------------------------------------------------------

    def update(self, scores: ArrayLike, *, after_alarm: AfterAlarm = "latch") -> list[Window | Alarm]:
        """Take scores in, in their order; what happened meanwhile: windows that ended, alarms.

        An alarm stands until ``reset`` (``latch``), or a new test begins at once (``reset``), or the scores behind it
        are left alone (``stop``; ``count`` says how many were taken). Bad scores are refused before any is taken.
        """
        if after_alarm not in ("latch", "reset", "stop"):
            raise ValueError(f"after_alarm must be one of latch, reset, stop; got {after_alarm!r}")
        values = np.atleast_1d(np.asarray(scores))
        if values.size == 0:
            return []
        events: list[Window | Alarm] = []
        rows = checked(values, name="scores")
        for score, (tie, drop) in zip(rows.tolist(), self._draws(len(rows)), strict=True):
            raised = self._take(score, tie, drop)
            if raised:
                events.append(raised)
            if len(self._recent) == self.settings.window:
                events.append(self._end_window())
            if raised and after_alarm == "stop":
                break
            if raised and after_alarm == "reset":
                self.reset()
        return events

    def reset(self) -> None:
        """Begin a new test, whose bound counts anew; scores seen, flags and the online reference stay.

        Online p-values to come are independent of those that led here, and so are flags given the threshold: the new
        test keeps its promise although it begins at an alarm.
        """
        self.test += 1
        self.alarm: Alarm | None = None
        self._capital = Capital(P_VALUE_BETS if self._reference is not None else FLAG_BETS)

    def _take(self, score: float, tie: float, drop: float) -> Alarm | None:
        settings = self.settings
        flag = settings.threshold is not None and score < settings.threshold
        if self._reference is not None:
            factors = p_value_factors(self._reference.join(score, tie=tie, drop=drop))
        else:
            factors = self._flag_factors[flag]
        self._capital.bet(factors)
        self.count += 1
        self._flagged += flag
        self._recent.append(score)
        if self.alarm is not None or self._capital.log_value < -log(settings.bound):
            return None
        self.alarm = Alarm(at=self.count, test=self.test, e_value=self.e_value)
        self.alarms += 1
        self._recent_alarms.append(self.count)
        return self.alarm

    def _draws(self, count: int) -> list[list[float]]:
        """Two uniform draws from (0, 1) for each of the next scores: a function of the seed and of ``self.count``.

        The calibration scores take part, so that streams with one seed and different ones do not share draws.
        """
        bits = np.random.PCG64([self.settings.seed, int(self.settings.calibration_sha256[:16], 16)])
        bits.advance(2 * self.count)
        drawn: list[list[float]] = (((bits.random_raw(2 * count) >> 11) + 0.5) * 2.0**-53).reshape(-1, 2).tolist()
        return drawn

    # -- what is known ----------------------------------------------------------------------------

    @property
    def log10_e_value(self) -> float:
        """The evidence against 'no shift' of the present test, as a power of ten."""
        return self._capital.log_value / log(10.0)

    @property
    def e_value(self) -> float:
        """The evidence itself: the capital of a gambler who bets on a shift; 1 at the start, at most 1e308."""
        return exp(min(self._capital.log_value, 709.0))

    @property
    def threshold(self) -> float | None:
        """The score below which one is flagged; None where the calibration scores are too few to promise a rate."""
        return self.settings.threshold

    @property
    def flagged(self) -> int | None:
        """How many scores were flagged."""
        return None if self.threshold is None else self._flagged

    @property
    def flag_rate(self) -> float | None:
        """The share of scores that were flagged. It is not the share of OOD images, which scores cannot tell."""
        return None if self.threshold is None or not self.count else self._flagged / self.count

    @property
    def interval(self) -> tuple[float, float] | None:
        """Limits for the average probability of a flag so far, right at all times together with ``confidence``."""
        if self.threshold is None:
            return None
        return interval_of(self._flagged, self.count, confidence=self.settings.confidence)

    @property
    def window(self) -> Window | None:
        """The window that has not ended yet."""
        return self._summarise() if self._recent else None

    def summary(self) -> dict[str, Any]:
        """All of it with all that it rests on, ready for JSON."""
        return {
            "scores": self.count,
            "alarm": None if self.alarm is None else asdict(self.alarm),
            "alarms": self.alarms,
            "test": self.test,
            "e_value": self.e_value,
            "log10_e_value": self.log10_e_value,
            "flagged": self.flagged,
            "flag_rate": self.flag_rate,
            "flag_interval": self.interval,
            "confidence": self.settings.confidence,
            "method": self.settings.method,
            "bound": self.settings.bound,
            "alpha": self.settings.alpha,
            "delta": self.settings.delta,
            "false_alarm_bound": self.settings.false_alarm_bound,
            "promise": self.settings.promise,
            "threshold": self.threshold,
            "seed": self.settings.seed,
            "n": self.settings.calibration_count,
            "calibration_sha256": self.settings.calibration_sha256,
        }

    def _summarise(self) -> Window:
        return Window.of(
            self._recent,
            last=self.count,
            threshold=self.threshold,
            e_value=self.e_value,
            alarms=tuple(self._recent_alarms),
        )

    def _end_window(self) -> Window:
        ended = self._summarise()
        self._recent, self._recent_alarms = [], []
        return ended

    # -- several streams, and disk ----------------------------------------------------------------

    @staticmethod
    def merge(monitors: Sequence[Monitor]) -> Merged:
        """What several streams say together: counts add, e-values average."""
        return merge(monitors)

    def save(self, file: str | os.PathLike[str]) -> Path:
        """Write the whole state to a JSON file, replaced whole or not at all."""
        state = {
            "settings": asdict(self.settings),
            "count": self.count,
            "flagged": self._flagged,
            "test": self.test,
            "alarms": self.alarms,
            "alarm": None if self.alarm is None else asdict(self.alarm),
            "recent": self._recent,
            "recent_alarms": self._recent_alarms,
            "capital": vars(self._capital),
            "reference": None if self._reference is None else self._reference.scores.tolist(),
        }
        return write_state(state, file)

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> Monitor:
        """The monitor that was saved there; it goes on to the same bits as if it had never stopped."""
        state = read_state(file, _STATE)
        monitor = cls.__new__(cls)
        try:
            monitor._restore(state)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file} is not a monitor's state: {error}") from None
        return monitor

    def _restore(self, state: dict[str, Any]) -> None:
        self.settings = Settings(**state["settings"])
        self.count, self._flagged, self.test, self.alarms = (
            state[name] for name in ("count", "flagged", "test", "alarms")
        )
        self.alarm = None if state["alarm"] is None else Alarm(**state["alarm"])
        self._recent, self._recent_alarms = state["recent"], state["recent_alarms"]
        self._reference = None
        self._flag_factors = flag_factors(self.settings.alpha)
        bets = FLAG_BETS
        if self.settings.method == "online":
            bets = P_VALUE_BETS
            self._reference = Reference(checked(state["reference"] or []), capacity=self.settings.capacity)
        self._capital = Capital(bets, **state["capital"])
        numbers = [*self._recent, *self._capital.stakes, self._capital.log_unit]
        if not all(type(number) is float and isfinite(number) for number in numbers):
            raise ValueError("a number in it is not finite")
        counts = [self._flagged, self.alarms, self._capital.steps, len(self._recent), *self._recent_alarms]
        sound = all(type(count) is int and 0 <= count <= self.count for count in counts)
        if not sound or self.test < 1 or len(self._capital.stakes) != bets or len(self._recent) >= self.settings.window:
            raise ValueError("its counts do not fit together")
