"""Several streams watched at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import TYPE_CHECKING

from davis.monitor.rates import interval_of

if TYPE_CHECKING:
    from davis.monitor.stream import Monitor


@dataclass(frozen=True)
class Merged:
    """What independent streams say together."""

    streams: int
    count: int
    flagged: int | None
    flag_rate: float | None
    interval: tuple[float, float] | None
    e_value: float  # the average
    alarm: bool  # it has reached 1 / bound
    false_alarm_bound: float
    anytime: bool  # whether the bound holds however often one looks, or for one look at a time chosen beforehand


def merge(monitors: Sequence[Monitor]) -> Merged:
    """Counts add, e-values of the present tests average.

    The average of test martingales of independent streams is a test martingale, so looking at all times is covered.
    Streams ranked online against the *same* calibration scores are not independent: each e-value is still one, and so
    is their average, but only for one look, since one stream tells about the others' calibration. Given the
    threshold, flags of independent streams are independent; each distinct calibration set adds its delta.
    """
    if not monitors:
        raise ValueError("there is no monitor to merge")
    first = monitors[0].settings
    for other in monitors[1:]:
        for name in ("method", "bound", "alpha", "delta", "confidence"):
            if getattr(other.settings, name) != getattr(first, name):
                raise ValueError(
                    f"monitors must agree to be merged; {name} is {getattr(first, name)!r} in one "
                    f"and {getattr(other.settings, name)!r} in another"
                )
    if len({id(monitor) for monitor in monitors}) < len(monitors):
        raise ValueError("a monitor was given twice; independent streams are merged, each once")
    calibrations = len({monitor.settings.calibration_sha256 for monitor in monitors})
    count = sum(monitor.count for monitor in monitors)
    flags = [monitor.flagged for monitor in monitors]
    known = [flagged for flagged in flags if flagged is not None]
    flagged = sum(known) if len(known) == len(flags) else None
    e_value = fsum(monitor.e_value / len(monitors) for monitor in monitors)
    return Merged(
        streams=len(monitors),
        count=count,
        flagged=flagged,
        flag_rate=None if flagged is None or not count else flagged / count,
        interval=None if flagged is None else interval_of(flagged, count, confidence=first.confidence),
        e_value=e_value,
        alarm=e_value >= 1.0 / first.bound,
        false_alarm_bound=first.bound + (first.delta * calibrations if first.method == "flags" else 0.0),
        anytime=first.method == "flags" or calibrations == len(monitors),
    )
