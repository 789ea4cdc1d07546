"""What the kinds of sets share: digests, batches that count their broken pictures, one report for each of those."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from davis.data import ImageError, OnError, Preprocessing
from davis.types import Images

Batches: TypeAlias = Iterator[tuple[Images, Tensor | None, int]]
Numbered: TypeAlias = Iterator[tuple[list[int], Tensor]]

_UNKNOWN = -1  # the label of a picture that has none, among others that do


def digest_of(preprocessing: Preprocessing) -> hashlib._Hash:
    """The beginning of every fingerprint."""
    return hashlib.sha256(json.dumps(preprocessing.to_dict(), sort_keys=True).encode())


def add_file(digest: hashlib._Hash, file: Path) -> None:
    """Puts the contents of a file into a digest."""
    with file.open("rb") as stream:
        while part := stream.read(1 << 20):
            digest.update(part)


def once(on_error: OnError | None) -> OnError | None:
    """The same report, but one for each place, however often the set is read."""
    if on_error is None:
        return None
    told: set[Path] = set()

    def report(place: Path, error: ImageError) -> None:
        if place not in told:
            told.add(place)
            on_error(place, error)

    return report


def prepared(place: Path, opening: Callable[[], Image.Image], preprocessing: Preprocessing) -> Tensor | ImageError:
    """The picture as a tensor, or what is wrong with it."""
    try:
        return preprocessing(opening())
    except Exception as error:  # decoders of broken files raise nearly anything
        return broken(place, error)


def broken(place: Path, error: Exception) -> ImageError:
    """The same trouble in one line that says where."""
    return ImageError(f"cannot read {place}: {reason(error)}")


def reason(error: Exception) -> str:
    """One line."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or of an unknown kind"
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def numbered(
    outcomes: Iterable[Tensor | ImageError], size: int, place: Callable[[int], Path], report: OnError | None
) -> Numbered:
    """Batches of what was decoded, behind the positions; a batch with nothing in it is left out."""
    kept: dict[int, Tensor] = {}
    for position, outcome in enumerate(outcomes):
        if position % size == 0 and kept:
            yield list(kept), torch.stack(list(kept.values()))
            kept = {}
        if isinstance(outcome, Tensor):
            kept[position] = outcome
        elif report is None:
            raise outcome
        else:
            report(place(position), outcome)
    if kept:
        yield list(kept), torch.stack(list(kept.values()))


def counted(
    batches: Numbered, labels: Sequence[int | None] | None, count: int, size: int, shape: tuple[int, int, int]
) -> Batches:
    """Each batch with its labels and how many pictures it took, the broken ones in and before it counted."""
    done = 0
    for positions, images in batches:
        end = min((positions[0] // size + 1) * size, count)
        yield images, _labels_at(labels, positions), end - done
        done = end
    if done < count:
        yield torch.empty(0, *shape), _labels_at(labels, []), count - done


def _labels_at(labels: Sequence[int | None] | None, positions: list[int]) -> Tensor | None:
    if labels is None:
        return None
    chosen = [labels[position] for position in positions]
    if chosen and all(label is None for label in chosen):
        return None
    return torch.tensor([_UNKNOWN if label is None else label for label in chosen], dtype=torch.int64)
