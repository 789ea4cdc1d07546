"""What of the table is there, and opening it."""

from __future__ import annotations

import difflib
import os
import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from numpy.lib import format as npy

from davis.catalog.table import DATASETS, Dataset
from davis.data import OnError, Preprocessing, look_into
from davis.sets import AnySet, open_set
from davis.sets.formats import split_kind

State: TypeAlias = Literal["present", "missing", "wrong count"]
Role: TypeAlias = Literal["inside", "near", "far"]


class MissingDataset(FileNotFoundError):
    """A named dataset that is not there, or not all of it; or several, in ``lines`` that may be shown as such."""

    def __init__(self, text: str, *, item: str = "", origin: str = "", lines: Sequence[str] = ()) -> None:
        super().__init__("\n".join((text, *lines)))
        self.item = item  # what is said of it where several are missing
        self.origin = origin  # where to get it
        self.lines = (text, *lines)


class Row(NamedTuple):
    """What is known of one dataset in a data directory."""

    dataset: Dataset
    state: State
    path: Path  # where it is, or where it is expected first
    found: int | None  # images; None where they can only be counted by reading them all
    how: str  # what to do to have it; empty where nothing is to be done


def data_directory() -> Path:
    """Where datasets are kept: $DAVIS_DATA, else davis/data in the user's cache folder."""
    if chosen := os.environ.get("DAVIS_DATA"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "davis" / "data"


def dataset(name: str) -> Dataset:
    """The row of the table."""
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(DATASETS)}"
        raise ValueError(f"unknown dataset {name!r}; {hint}")
    return DATASETS[name]


def members(benchmark: str, role: Role, *, stand_ins: bool = False) -> list[str]:
    """The names of the sets that play a role in the benchmark of an ID dataset: the paper's, or what stands in.

    >>> members("cifar10", "near")
    ['cifar100_test', 'tiny_imagenet']
    """
    return [
        name
        for name, entry in DATASETS.items()
        if benchmark in getattr(entry, role) and bool(entry.instead_of) == stand_ins
    ]


def find(name: str, data_dir: Path | None = None) -> Path:
    """Where the dataset is; the error says what is expected where, and how to get it."""
    folder = data_dir or data_directory()
    row = _row(dataset(name), folder)
    if row.state == "present":
        return row.path
    entry = row.dataset
    if row.state == "missing":
        expected = f"{entry.count:,} images are expected at {' or '.join(entry.places)}"
        beside = _beside(name, folder)
        raise MissingDataset(
            f"{name} ({entry.what}) is not in {folder}: {expected}; to get it: {entry.origin}{beside}",
            item=f"{name} ({entry.what}): {expected}{beside}",
            origin=entry.origin,
        )
    found = f"{name}: {row.path} holds {row.found:,} images, {entry.count:,} are expected"
    raise MissingDataset(f"{found}; to get it: {entry.origin}", item=found, origin=entry.origin)


def open_dataset(
    name: str,
    preprocessing: Preprocessing,
    data_dir: Path | None = None,
    *,
    on_error: OnError | None = None,
    workers: int = 0,
) -> AnySet:
    """The named dataset, all of it there, under its own name."""
    path, entry = find(name, data_dir), dataset(name)
    split = entry.split if split_kind(path) else None
    images = open_set(path, preprocessing, name=name, split=split, on_error=on_error, workers=workers)
    if len(images) != entry.count:
        raise MissingDataset(f"{name}: {path} holds {len(images):,} images, {entry.count:,} are expected")
    return images


def inventory(data_dir: Path | None = None, names: Collection[str] = ()) -> list[Row]:
    """What is there and what is missing: every dataset, or those named."""
    chosen = [dataset(name) for name in names] if names else list(DATASETS.values())
    return [_row(entry, data_dir or data_directory()) for entry in chosen]


def count_images(path: Path) -> int | None:
    """How many images are in a file or folder; None where only reading it all would tell."""
    if path.is_dir():
        if split_kind(path):
            return None
        return len(look_into(path).pictures)
    if path.suffix != ".npz":
        return None
    try:
        with zipfile.ZipFile(path) as arrays, arrays.open("images.npy") as stream:
            read_header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
            return int(read_header(stream)[0][0])
    except (OSError, KeyError, ValueError, IndexError, zipfile.BadZipFile):
        return 0


def markdown() -> str:
    """The table for docs/data.md."""
    lines = ["| name | what | images | role | expected at | licence | how to get it |", "|---|---|---|---|---|---|---|"]
    for entry in DATASETS.values():
        places = ", ".join(f"`{place}`" for place in entry.places)
        how = f"`{entry.how}`" if entry.fetch else entry.source
        lines.append(
            f"| `{entry.name}` | {entry.what} | {entry.count:,} | {entry.role} | {places} | {entry.licence} | {how} |"
        )
    return "\n".join(lines) + "\n"


def _beside(name: str, folder: Path) -> str:
    others = [entry for entry in DATASETS.values() if entry.instead_of == name]
    present = [entry.name for entry in others if _row(entry, folder).state == "present"]
    return f"; {present[0]} is there and stands in for it, under its own name" if present else ""


def _row(entry: Dataset, data_dir: Path) -> Row:
    there = [
        (data_dir / place, count_images(data_dir / place)) for place in entry.places if (data_dir / place).exists()
    ]
    for path, found in there:
        if found in (None, entry.count):
            return Row(entry, "present", path, found, "")
    if there:
        return Row(entry, "wrong count", *there[0], entry.how)
    return Row(entry, "missing", data_dir / entry.places[0], None, entry.how)
