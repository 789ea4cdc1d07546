"""What a monitor was asked to do, and what it promises."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from re import fullmatch
from typing import Literal, TypeAlias, get_args

Method: TypeAlias = Literal["online", "flags"]
METHODS: tuple[str, ...] = get_args(Method)
CAPACITY = 100_000  # scores of the online reference: 0.8 MB


@dataclass(frozen=True)
class Settings:
    """All that stays the same while a stream is watched; checked when made."""

    method: str
    bound: float  # on the probability of a false alarm, ever
    alpha: float  # the flag rate that the threshold promises not to exceed
    delta: float  # the probability, over calibration draws, that it does
    threshold: float | None  # None where there are too few calibration scores to promise one
    seed: int
    window: int
    capacity: int
    confidence: float  # of the interval for the flag rate
    calibration_count: int
    calibration_sha256: str

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}")
        for name in ("bound", "alpha", "delta", "confidence"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, float | int) or not 0 < value < 1:
                raise ValueError(f"{name} must lie between 0 and 1; got {value!r}")
            object.__setattr__(self, name, float(value))
        for name, least in (("seed", 0), ("window", 1), ("capacity", 1), ("calibration_count", 1)):
            number: object = getattr(self, name)
            if type(number) is not int or number < least:
                raise ValueError(f"{name} must be a whole number from {least} on; got {number!r}")
        threshold: object = self.threshold
        if threshold is not None:
            if isinstance(threshold, bool) or not isinstance(threshold, float | int) or not isfinite(threshold):
                raise ValueError(f"threshold must be a finite number; got {threshold!r}")
            object.__setattr__(self, "threshold", float(threshold))
        elif self.method == "flags":
            raise ValueError("method 'flags' needs a threshold")
        digest: object = self.calibration_sha256
        if not isinstance(digest, str) or not fullmatch("[0-9a-f]{64}", digest):
            raise ValueError(f"calibration_sha256 must be 64 hexadecimal digits; got {digest!r}")

    @property
    def false_alarm_bound(self) -> float:
        """What the probability of a false alarm of one test, at any time, does not exceed."""
        return self.bound if self.method == "online" else self.bound + self.delta

    @property
    def promise(self) -> str:
        """The guarantee and what it assumes, in words."""
        if self.method == "online":
            return (
                f"if the stream is exchangeable with the calibration scores, an alarm is ever raised "
                f"with a probability of at most {self.bound:g}"
            )
        return (
            f"if stream and calibration scores are independent draws of one law, an alarm is ever raised "
            f"with a probability of at most {self.bound + self.delta:g}: {self.bound:g}, and {self.delta:g} that the "
            f"threshold flags more than {self.alpha:g} of that law"
        )
