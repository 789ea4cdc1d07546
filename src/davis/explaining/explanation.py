"""What `explain` hands back: plain values and arrays, which draw and save themselves."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from davis.explaining.drawing import FADED, LEGEND, RINGS, enlarged, heated, sheet
from davis.explaining.files import SUFFIXES, write_arrays, write_picture, write_values

Array = NDArray[Any]
ENOUGH = 0.95  # of what they explain, below which the heat map or the channels come with a warning


@final
@dataclass(frozen=True)
class Channel:
    """One channel of the last map, and what it did."""

    index: int
    moved: float  # what it adds to the score when the detector's pooling takes the mean's place
    mean: float
    pooled: float  # what the detector's pooling made of it
    x: int  # where it peaks, in pixels: its maximum, or its minimum where a signed pooling goes down; the first one
    y: int


@final
@dataclass(frozen=True)
class Neighbour:
    """One of the nearest in-distribution images that a bank holds."""

    row: int  # in the bank
    distance: float  # between unit vectors, or raw ones where the score compares those
    label: int  # the class that the classifier reads from its features


@final
@dataclass(frozen=True)
class Explanation:
    """Everything that `explain` found about one image and one detector, alone or fused with others."""

    spec: str
    score: float
    plain: float  # the score of the same detector with average pooling
    silent: float  # the score of a map of zeros
    label: int  # the class that the classifier names
    probability: float
    channels: list[Channel]  # those that moved the score most, the strongest first; none that moved nothing
    neighbours: list[Neighbour]  # the nearest first; empty where the detector keeps no bank
    moved: Array  # (channel,) adds up to score - plain
    places: Array  # (rows, columns) what each position of the map adds to the score
    heat: Array  # (height, width) the same over the image
    picture: Array  # (height, width, 3) uint8, what the classifier saw
    p_value: float | None = None  # how likely an in-distribution image scores as low, where held-out scores are known
    is_ood: bool | None = None  # the verdict, and the threshold it rests on, where the detector is calibrated
    threshold: float | None = None  # none where each predicted class has its own
    held_out: int | None = None  # the scores among which the p-value is a rank; none where it is no rank

    @property
    def remainder(self) -> float:
        """What the places leave unsaid of score - silent: near 0 for a score that grows out of silence smoothly."""
        return self.score - self.silent - float(self.places.sum())

    @property
    def accounted(self) -> float:
        """The share of score - silent that the places add up to, from 0 to 1."""
        return _accounted(self.score - self.silent, float(self.places.sum()))

    @property
    def is_accounted(self) -> bool:
        """Whether the heat map is an explanation of the score."""
        return self.accounted >= ENOUGH

    @property
    def accounted_by_channels(self) -> float:
        """The share of score - plain that the channels add up to, from 0 to 1."""
        return _accounted(self.score - self.plain, float(self.moved.sum()))

    @property
    def warnings(self) -> list[str]:
        """What to know before the heat map or the channels are believed, a sentence each; mostly nothing."""
        said = []
        if not self.is_accounted:
            said.append(f"the heat map accounts for {self.accounted:.0%} of the score, and says nothing of the rest")
        if self.accounted_by_channels < ENOUGH:
            said.append(f"the channels account for {self.accounted_by_channels:.0%} of what the pooling changed")
        return said

    @property
    def p_text(self) -> str | None:
        """The p-value with its sign, ``= 0.41``; ``<= 0.0007`` where no lower one can come out."""
        return _p_text(self.p_value, self.held_out)

    @property
    def branches(self) -> list[Explanation]:
        """This one alone, as nothing is fused."""
        return [self]

    @property
    def decisive(self) -> Explanation:
        """This one."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """The plain values, for JSON; the arrays are left out."""
        fields = ("spec", "score", "plain", "silent", "remainder", "accounted", "accounted_by_channels", "warnings")
        found: dict[str, Any] = {name: getattr(self, name) for name in (*fields, "label", "probability")}
        found["silent"], found["remainder"] = _finite(self.silent), _finite(self.remainder)
        found |= _verdict(self)
        found["channels"] = [dict(vars(channel)) for channel in self.channels]
        found["neighbours"] = [dict(vars(neighbour)) for neighbour in self.neighbours]
        return found

    def mask(self, share: float = 0.2) -> Array:
        """(height, width) bool: the marked region, the share of the image that adds most to the score."""
        if not 0 < share < 1:
            raise ValueError(f"the share of the image to mark must lie between 0 and 1, got {share}")
        order = np.argsort(-self.heat, axis=None, kind="stable")
        marked = np.zeros(self.heat.size, dtype=bool)
        marked[order[: round(share * self.heat.size)]] = True
        return marked.reshape(self.heat.shape)

    def draw(self, *, channels: int = 5) -> Image.Image:
        """The picture under its heat map, numbers where the strongest channels peak.

        A map that accounts for little of the score is drawn that much fainter.
        """
        rows, columns = self.places.shape
        height, width = self.heat.shape
        points = [  # the middle of the position, however the pixel of it was rounded
            ((channel.x * columns // width + 0.5) / columns, (channel.y * rows // height + 0.5) / rows)
            for channel in self.channels[:channels]
        ]
        return heated(self.picture, self.heat, points, share=1.0 if self.is_accounted else self.accounted)

    def save(
        self, folder: str | os.PathLike[str], name: str = "explanation", *, classes: Sequence[str] | None = None
    ) -> list[Path]:
        """Write NAME.png (the picture and its heat map), NAME.npz (the arrays) and NAME.json (the rest).

        ``classes`` are the names of the classes, for the caption.
        """
        return _save(self, folder, name, self.arrays(), classes)

    def arrays(self) -> dict[str, Array]:
        """What NAME.npz holds."""
        return {**_arrays(self), "picture": self.picture}


@final
@dataclass(frozen=True)
class FusedExplanation:
    """What `explain` found about one image and fused detectors: an explanation of each, and which of them decides.

    The fused score itself has no heat map: it ranks each detector's score, and a rank has no useful slope.
    """

    spec: str
    score: float  # fused
    label: int
    probability: float
    branches: list[Explanation]  # the one that decides first, by their weighted log p
    picture: Array
    p_value: float | None = None
    is_ood: bool | None = None
    threshold: float | None = None
    held_out: int | None = None

    @property
    def p_text(self) -> str | None:
        """The p-value with its sign, as of one detector."""
        return _p_text(self.p_value, self.held_out)

    @property
    def decisive(self) -> Explanation:
        """The explanation of the detector with the lowest p-value, weights counted in."""
        return self.branches[0]

    def to_dict(self) -> dict[str, Any]:
        """The plain values, for JSON; the arrays are left out."""
        fields = ("spec", "score", "label", "probability")
        found: dict[str, Any] = {name: getattr(self, name) for name in fields} | _verdict(self)
        found["branches"] = [branch.to_dict() for branch in self.branches]
        return found

    def draw(self, *, channels: int = 5) -> Image.Image:
        """The picture under the heat map of the detector that decides."""
        return self.decisive.draw(channels=channels)

    def save(
        self, folder: str | os.PathLike[str], name: str = "explanation", *, classes: Sequence[str] | None = None
    ) -> list[Path]:
        """Write NAME.png (every heat map, the decisive one first), NAME.npz (the arrays) and NAME.json (the rest).

        ``classes`` are the names of the classes, for the caption.
        """
        return _save(self, folder, name, self.arrays(), classes)

    def arrays(self) -> dict[str, Array]:
        """What NAME.npz holds: each array with one entry per branch, in their order, and the picture."""
        each = [_arrays(branch) for branch in self.branches]
        return {**{name: np.stack([one[name] for one in each]) for name in each[0]}, "picture": self.picture}


def _arrays(found: Explanation) -> dict[str, Array]:
    return {"heat": found.heat, "places": found.places, "moved": found.moved, "mask": found.mask()}


def _save(
    found: Explanation | FusedExplanation,
    folder: str | os.PathLike[str],
    name: str,
    arrays: dict[str, Array],
    classes: Sequence[str] | None,
) -> list[Path]:
    if classes is not None and found.label >= len(classes):
        raise ValueError(
            f"the network names class {found.label}, and classes holds {len(classes)} names; give one for each, from 0"
        )
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    files = [place / f"{name}.{suffix}" for suffix in SUFFIXES]
    panels = [
        (enlarged(found.picture), _answer(found, classes)),
        *((branch.draw(), _caption(branch)) for branch in found.branches),
    ]
    legend = [LEGEND]
    if any(branch.channels for branch in found.branches):
        legend.append(RINGS)
    if not all(branch.is_accounted for branch in found.branches):
        legend.append(FADED)
    write_picture(files[0], sheet(panels, " ".join(legend)))
    write_arrays(files[1], arrays)
    write_values(files[2], found.to_dict())
    return files


def _answer(found: Explanation | FusedExplanation, classes: Sequence[str] | None) -> str:
    """What the classifier says, and whether the detector lets it."""
    named = f"class {found.label}" if classes is None else classes[found.label]
    lines = [f"The network says: {named}, probability {found.probability:.2f}"]
    if isinstance(found, FusedExplanation):
        lines.append(f"fused score {found.score:.4g}{_ranked(found)}")
    if found.is_ood is not None:
        limit = "" if found.threshold is None else f": the score is {_side(found)} the threshold {found.threshold:.4g}"
        lines.append(("Refused as OOD" if found.is_ood else "Accepted") + limit)
    return "\n".join(lines)


def _side(found: Explanation | FusedExplanation) -> str:
    if found.is_ood:
        return "below"
    return "at" if found.score == found.threshold else "above"


def _caption(found: Explanation) -> str:
    moved = "" if found.score == found.plain else f" ({found.plain:.4g} with mean pooling, on another scale)"
    beware = "".join(f"\nBeware: {warning}." for warning in found.warnings)
    return f"{found.spec}\nscore {found.score:.4g}{moved}{_ranked(found)}{beware}"


def _ranked(found: Explanation | FusedExplanation) -> str:
    return "" if found.p_text is None else f"\np-value {found.p_text}"


def _p_text(value: float | None, held_out: int | None) -> str | None:
    if value is None:
        return None
    least = held_out is not None and value <= 1 / (held_out + 1)  # the image alone: it may be rarer than that
    shown = f"{value:.4f}" if value >= 1e-3 else f"{value:.1g}"
    return f"{'<=' if least else '='} {shown}"


def _verdict(found: Explanation | FusedExplanation) -> dict[str, Any]:
    verdict = None if found.is_ood is None else "OOD" if found.is_ood else "ok"
    return {"p_value": found.p_value, "verdict": verdict, "threshold": found.threshold}


def _accounted(whole: float, parts: float) -> float:
    """What is missing from the parts or stands in them too much is not accounted for."""
    if whole == parts:
        return 1.0
    return max(0.0, 1 - abs(1 - parts / whole)) if whole and math.isfinite(whole) else 0.0


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
