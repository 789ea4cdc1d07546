"""What `explain` hands back: plain values and arrays, which draw and save themselves."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from davis.explaining.drawing import LEGEND, enlarged, heated, sheet

Array = NDArray[Any]
SUFFIXES = ("png", "npz", "json")  # of the files of an explanation


@final
@dataclass(frozen=True)
class Channel:
    """One channel of the last map, and what it did."""

    index: int
    moved: float  # what it adds to the score when the detector's pooling takes the mean's place
    mean: float
    pooled: float  # what the detector's pooling made of it
    x: int  # where its maximum sits in the image, in pixels; the first place where several hold it
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
    log_p: float | None = None  # of a fused detector: the log of the score's rank among held-out ones

    @property
    def p_value(self) -> float | None:
        """Of a fused detector: how likely an in-distribution image scores as low."""
        return None if self.log_p is None else math.exp(self.log_p)

    @property
    def remainder(self) -> float:
        """What the places leave unsaid of score - silent: near 0 for a score that grows out of silence smoothly."""
        return self.score - self.silent - float(self.places.sum())

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
        fields = ("spec", "score", "plain", "silent", "remainder", "label", "probability")
        found: dict[str, Any] = {name: getattr(self, name) for name in fields}
        found["silent"], found["remainder"] = _finite(self.silent), _finite(self.remainder)
        if self.log_p is not None:
            found["log_p"], found["p_value"] = self.log_p, self.p_value
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
        """The picture under its heat map, numbers where the strongest channels have their maxima."""
        rows, columns = self.places.shape
        height, width = self.heat.shape
        points = [  # the middle of the position, however the pixel of it was rounded
            ((channel.x * columns // width + 0.5) / columns, (channel.y * rows // height + 0.5) / rows)
            for channel in self.channels[:channels]
        ]
        return heated(self.picture, self.heat, points)

    def save(self, folder: str | os.PathLike[str], name: str = "explanation") -> list[Path]:
        """Write NAME.png (the picture and its heat map), NAME.npz (the arrays) and NAME.json (the rest)."""
        return _save(self, folder, name, self.arrays())

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

    @property
    def decisive(self) -> Explanation:
        """The explanation of the detector with the lowest p-value, weights counted in."""
        return self.branches[0]

    def to_dict(self) -> dict[str, Any]:
        """The plain values, for JSON; the arrays are left out."""
        fields = ("spec", "score", "label", "probability")
        found: dict[str, Any] = {name: getattr(self, name) for name in fields}
        found["branches"] = [branch.to_dict() for branch in self.branches]
        return found

    def draw(self, *, channels: int = 5) -> Image.Image:
        """The picture under the heat map of the detector that decides."""
        return self.decisive.draw(channels=channels)

    def save(self, folder: str | os.PathLike[str], name: str = "explanation") -> list[Path]:
        """Write NAME.png (every heat map, the decisive one first), NAME.npz (the arrays) and NAME.json (the rest)."""
        return _save(self, folder, name, self.arrays())

    def arrays(self) -> dict[str, Array]:
        """What NAME.npz holds: each array with one entry per branch, in their order, and the picture."""
        each = [_arrays(branch) for branch in self.branches]
        return {**{name: np.stack([one[name] for one in each]) for name in each[0]}, "picture": self.picture}


def _arrays(found: Explanation) -> dict[str, Array]:
    return {"heat": found.heat, "places": found.places, "moved": found.moved, "mask": found.mask()}


def _save(
    found: Explanation | FusedExplanation, folder: str | os.PathLike[str], name: str, arrays: dict[str, Array]
) -> list[Path]:
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    files = [place / f"{name}.{suffix}" for suffix in SUFFIXES]
    seen = f"class {found.label}, probability {found.probability:.2f}"
    if isinstance(found, FusedExplanation):
        seen += f"\nfused score {found.score:.4g}"
    panels = [(enlarged(found.picture), seen), *((branch.draw(), _caption(branch)) for branch in found.branches)]
    sheet(panels, LEGEND).save(files[0])
    stored: dict[str, Any] = arrays  # to mypy, an array might be the argument allow_pickle
    np.savez_compressed(files[1], **stored)
    files[2].write_text(json.dumps(found.to_dict(), indent=2) + "\n", encoding="utf-8")
    return files


def _caption(found: Explanation) -> str:
    moved = "" if found.score == found.plain else f", {found.plain:.4g} with mean pooling"
    ranked = "" if found.p_value is None else f"\np-value {found.p_value:.2g}"
    return f"{found.spec}\nscore {found.score:.4g}{moved}{ranked}"


def _finite(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None
