"""Classes by the names of their folders: how they are numbered, and whether a model and other images have the same."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class ClassFolders(Protocol):
    """A set whose labels are the numbers of its class folders."""

    name: str
    classes: tuple[str, ...]
    labels: list[int] | None

    @property
    def place(self) -> Path: ...


def numbered_classes(names: Sequence[str], known: Sequence[str] = ()) -> tuple[tuple[str, ...], list[int] | None]:
    """The classes in order, those known beside, and the number of each name's; one folder alone is no class."""
    classes = tuple(sorted({*names, *known}))
    if not names or len(classes) < 2:
        return (), None
    numbers = {name: number for number, name in enumerate(classes)}
    return classes, [numbers[name] for name in names]


def agree_on_classes(sets: Sequence[object], outputs: int) -> None:
    """Number the class folders of in-distribution sets alike, or leave labels out, with a warning that says why.

    Labels that do not mean the model's classes would change accuracies and fits without a word. The order of the
    classes is that of a set with a folder for each output; another set may lack some of them.
    """
    named = [images for images in sets if isinstance(images, ClassFolders) and images.labels is not None]
    whole = [images for images in named if len(images.classes) == outputs]
    other = next((images for images in whole if images.classes != whole[0].classes), None)
    if other is not None:
        mine, theirs = next(pair for pair in zip(whole[0].classes, other.classes, strict=True) if pair[0] != pair[1])
        _forget(named, f"{whole[0].place} and {other.place} name their classes differently ({mine!r}, {theirs!r})")
        return
    for images in named:
        strange = [name for name in images.classes if whole and name not in whole[0].classes]
        if not whole or strange:
            why = f", {strange[0]!r} not among those of {whole[0].place}" if whole else ""
            folders = f"{len(images.classes)} class folders"
            _forget([images], f"{images.place} has {folders}{why} and the model {outputs} classes")
        elif images.classes != whole[0].classes:
            inside = [images.classes[label] for label in images.labels or []]
            images.classes, images.labels = numbered_classes(inside, whole[0].classes)


def check_labels(name: str, labels: Tensor | None, outputs: int) -> None:
    """Refuse labels that name no class of the model."""
    if labels is None or len(labels) == 0:
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= outputs:
        raise ValueError(
            f"the labels of {name} lie in {low}..{high} and the model's classes in 0..{outputs - 1}; "
            "number them from 0, or leave them out"
        )


def _forget(named: Sequence[ClassFolders], why: str) -> None:
    for images in named:
        images.classes, images.labels = (), None
    warnings.warn(
        f"{why}: not used as labels (test images: no accuracy; fit images: predicted classes)",
        stacklevel=3,
    )
