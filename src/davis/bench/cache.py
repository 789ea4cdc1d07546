"""Activations on disk: one pass over an image set is taken once, survives a kill, and is read by memory map."""

from __future__ import annotations

import glob
import hashlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from davis import atomic
from davis.backbone import Backbone
from davis.locks import alone_in
from davis.types import Activations, Images

FORMAT = 1
STATISTICS = ("std", "max", "median", "entropy")
"""What is kept beside the mean: every pooling of the language, without its options, can be read from the cache."""

_IDENTITY = ("format", "weights", "read", "data", "statistics", "dtype", "batch")
_PROGRESS = ("columns", "complete", "images", "position", "rows", "seconds")
_SAVE_EVERY = 15.0  # seconds of work that a kill may cost
_UNKNOWN = -1  # the label of an image that has none

Dtype = Literal["float32", "float16"]
Progress = Callable[[int, int], None]  # images done, images in all


class ImageSet(Protocol):
    """Images in a fixed order, ready for a classifier."""

    name: str

    def __len__(self) -> int: ...

    def fingerprint(self) -> str:
        """A digest of the pictures and of how they are prepared."""
        ...

    def batches(self, start: int, size: int) -> Iterator[tuple[Images, Tensor | None, int]]:
        """Images from a position on, their labels, and how many pictures were read (some may be broken)."""
        ...


class Cached:
    """The activations of an image set, read from disk as they are asked for, onto a device."""

    def __init__(self, folder: Path, *, device: torch.device | str = "cpu") -> None:
        self.folder = folder
        self.device = torch.device(device)
        self.record = _read_record(folder)
        self._columns = _opened(folder, self.record, "r")

    def __len__(self) -> int:
        return int(self.record["rows"])

    @property
    def identity(self) -> str:
        """A digest of all that its rows depend on; how many statistics it keeps is not part of it."""
        kept = {key: self.record[key] for key in _IDENTITY if key != "statistics"}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:20]

    @property
    def data(self) -> str:
        """The digest of the pictures that it was filled from."""
        return str(self.record["data"])

    @property
    def skipped(self) -> int:
        """Pictures of the set that could not be decoded."""
        return int(self.record["position"]) - len(self)

    @property
    def seconds(self) -> float:
        """Wall-clock seconds of the passes that filled it."""
        return float(self.record["seconds"])

    @property
    def labels(self) -> Tensor | None:
        """(rows,) or None where the set has none."""
        labels = self._read("labels", slice(0, len(self)))
        return None if len(labels) == 0 or bool((labels == _UNKNOWN).any()) else labels

    def activations(self, rows: slice = slice(None)) -> Activations:
        """Some rows, in float32."""
        rows = slice(*rows.indices(len(self)))
        fields = {name: self._read(name, rows) for name in self._columns if name != "labels"}
        return Activations(**fields)

    def stream(self, size: int = 2048) -> Iterator[tuple[Activations, Tensor | None]]:
        """All rows in blocks, as ``Backbone.stream`` would give them."""
        labels = self.labels
        for start in range(0, len(self), size):
            rows = slice(start, min(start + size, len(self)))
            yield self.activations(rows), None if labels is None else labels[rows]

    def _read(self, name: str, rows: slice) -> Tensor:
        values = torch.from_numpy(np.array(self._columns[name][rows])).to(self.device)
        return values.float() if values.dtype == torch.float16 else values


def fill(
    root: Path,
    backbone: Backbone,
    images: ImageSet,
    *,
    statistics: Collection[str] = STATISTICS,
    dtype: Dtype = "float32",
    batch: int = 100,
    progress: Progress | None = None,
) -> Cached:
    """The activations of an image set: from the cache where they are, else by a pass, begun or resumed.

    The folder's name is a digest of the weights, the way the model is read, the preprocessing, the pictures and the
    options. A finished pass that kept more statistics than are asked for serves as well. Rows are written in place;
    how many of them are sound is recorded, atomically, every few seconds.
    """
    if dtype not in ("float32", "float16"):
        raise ValueError(f"activations are kept in float32 or float16, not {dtype!r}")
    backbone(first_images(images), statistics=())
    identity = {
        "format": FORMAT,
        "weights": weights_sha256(backbone),
        "read": {key: backbone.describe()[key] for key in ("tap", "after", "neck", "head")},
        "data": images.fingerprint(),
        "statistics": sorted(statistics),
        "dtype": dtype,
        "batch": batch,
    }
    folder = _place(root, images.name, identity)
    if not ((folder / "record.json").is_file() and _read_record(folder)["complete"]):
        with alone_in(folder, "fills the cache in"):
            if not (folder / "record.json").is_file():
                _create(folder, backbone, images, identity)
            _resume(folder, backbone, images, progress)
    return Cached(folder, device=next(backbone.model.parameters()).device)


def first_images(images: ImageSet) -> Images:
    """One or two images of a set; an error that names it where there is none."""
    first = next((batch for batch, _, _ in images.batches(0, 2) if len(batch)), None)
    if first is None:
        raise ValueError(f"none of the {len(images)} pictures of {images.name} can be read; repair or replace them")
    return first[:2]


def _place(root: Path, name: str, identity: dict[str, Any]) -> Path:
    """Where a pass is kept, or a finished one that kept this and more."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    own = root / f"{name}-{digest[:20]}"
    if (own / "record.json").is_file():
        return own
    for file in sorted(root.glob(f"{glob.escape(name)}-*/record.json")):
        try:
            record = _read_record(file.parent)
        except ValueError:  # another's, and broken: no use here, and no harm
            continue
        same = all(record.get(key) == value for key, value in identity.items() if key != "statistics")
        if same and record["complete"] and {*identity["statistics"]} <= {*record["statistics"]}:
            return file.parent
    return own


def weights_sha256(backbone: Backbone) -> str:
    """A digest of every parameter and buffer of the model."""
    digest = hashlib.sha256(type(backbone.model).__name__.encode())
    for name, tensor in sorted(backbone.model.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _create(folder: Path, backbone: Backbone, images: ImageSet, identity: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    probe = backbone(first_images(images)[:1], statistics=identity["statistics"])
    columns = {name: value for name, value in probe._asdict().items() if value is not None}
    columns["labels"] = torch.zeros(1, dtype=torch.int64)
    for name, value in columns.items():
        small = value.is_floating_point() and name != "logits"
        kind = np.dtype(identity["dtype"]) if small else value.cpu().float().numpy().dtype
        kind = kind if value.is_floating_point() else np.dtype(np.int64)
        shape = (len(images), *value.shape[1:])
        np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=kind, shape=shape).flush()
    record = identity | {
        "name": images.name,
        "images": len(images),
        "columns": sorted(columns),
        "position": 0,
        "rows": 0,
        "seconds": 0.0,
        "complete": False,
    }
    _write_record(folder, record)


def _resume(folder: Path, backbone: Backbone, images: ImageSet, progress: Progress | None) -> None:
    record = _read_record(folder)
    if record["complete"]:
        return
    columns = _opened(folder, record, "r+")
    began = saved = time.perf_counter()
    spent = record["seconds"]
    for batch, labels, pictures in images.batches(record["position"], record["batch"]):
        if len(batch):
            activations = backbone(batch, statistics=record["statistics"])
            _write_rows(columns, record["rows"], activations, labels)
            record["rows"] += len(batch)
        record["position"] += pictures
        now = time.perf_counter()
        record["seconds"] = spent + now - began
        if now - saved > _SAVE_EVERY:
            _save(folder, columns, record)
            saved = now
        if progress is not None:
            progress(record["position"], record["images"])
    record["complete"] = True
    _save(folder, columns, record)


def _write_rows(columns: dict[str, NDArray[Any]], start: int, activations: Activations, labels: Tensor | None) -> None:
    rows = slice(start, start + len(activations.logits))
    for name, value in activations._asdict().items():
        if value is not None:
            columns[name][rows] = value.float().cpu().numpy() if value.is_floating_point() else value.cpu().numpy()
    columns["labels"][rows] = _UNKNOWN if labels is None else labels.numpy()


def _save(folder: Path, columns: dict[str, NDArray[Any]], record: dict[str, Any]) -> None:
    for column in columns.values():
        if isinstance(column, np.memmap):
            column.flush()
    _write_record(folder, record)


def _read_record(folder: Path) -> dict[str, Any]:
    file = folder / "record.json"
    try:
        record = json.loads(file.read_text())
    except ValueError:
        record = None
    if not isinstance(record, dict) or not {*_IDENTITY, *_PROGRESS} <= record.keys():
        raise ValueError(f"{file} is broken; remove {folder} and run again")
    return record


def _opened(folder: Path, record: Mapping[str, Any], mode: Literal["r", "r+"]) -> dict[str, NDArray[Any]]:
    """The columns, as files that are read and written in place."""
    columns = {}
    for name in record["columns"]:
        file = folder / f"{name}.npy"
        try:
            columns[name] = np.load(file, mmap_mode=mode)
        except (OSError, ValueError, EOFError):
            raise ValueError(f"{file} is damaged or gone; remove {folder} and run again") from None
    return columns


def _write_record(folder: Path, record: dict[str, Any]) -> None:
    atomic.write(folder / "record.json", (json.dumps(record, indent=2) + "\n").encode())
