"""What a benchmark run leaves on disk, and how it is read back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from davis import atomic
from davis.metrics import evaluate

Group: TypeAlias = Literal["near", "far"]
UNITS = ("mean", "std", "max")
AVERAGES = {"near": "nearood", "far": "farood"}  # what the average over a group is called


@dataclass(frozen=True)
class Row:
    """One detector against one OOD set; shares from 0 to 1, in-distribution positive."""

    spec: str
    set: str
    group: Group
    fpr95: float
    auroc: float
    aupr_in: float
    aupr_out: float
    id_images: int
    ood_images: int
    id_accepted: float | None = None  # at a threshold that was set on a calibration set; None without one
    ood_accepted: float | None = None


@dataclass
class Results:
    """A finished run.

    On disk: ``results.json`` (everything below but the arrays), ``scores/<set>.npz`` (spec -> float64 scores, the ID
    test set and every OOD set), ``units/<set>.npz`` (``mean``, ``std``, ``max``: per channel, averaged over the set's
    images; ``sample_mean``, ``sample_std``, ``sample_max``: (images, channel) of up to 500 images) and ``head.npz``
    (``weight``, ``bias`` of the last layer).
    """

    name: str
    model: str
    id: str  # name of the ID test set
    paper: tuple[str, str] | None  # (id_dataset, model) of the paper's tables to compare with
    groups: dict[str, Group]  # OOD set -> near or far, in order
    specs: list[str]
    accuracy: float | None
    rows: list[Row]
    gamma: float  # of the mean + gamma * std figures
    facts: dict[str, Any] = field(default_factory=dict)  # device, seconds, images, versions ...
    folder: Path | None = None

    def scores(self, name: str) -> dict[str, NDArray[np.float64]]:
        """spec -> scores of one set."""
        return self._arrays(f"scores/{name}.npz")

    def units(self, name: str) -> dict[str, NDArray[np.float32]]:
        """The channel statistics of one set."""
        return self._arrays(f"units/{name}.npz")

    def head(self) -> dict[str, NDArray[np.float32]]:
        """The last layer's ``weight`` and ``bias``."""
        return self._arrays("head.npz")

    def row(self, spec: str, name: str) -> Row:
        """The row of a detector and an OOD set."""
        return next(row for row in self.rows if (row.spec, row.set) == (spec, name))

    def _arrays(self, file: str) -> dict[str, NDArray[Any]]:
        if self.folder is None:
            raise ValueError("these results were never written; save them first")
        return load_arrays(self.folder / file)


def compare(
    id_scores: Mapping[str, NDArray[np.float64]],
    ood: str,
    group: Group,
    ood_scores: Mapping[str, NDArray[np.float64]],
    *,
    thresholds: Mapping[str, float | None] | None = None,
) -> list[Row]:
    """Every detector against one OOD set; with ``thresholds`` also what these accept."""
    rows = []
    for spec, scores in ood_scores.items():
        found = evaluate(id_scores[spec], scores)
        counts = len(id_scores[spec]), len(scores)
        threshold = None if thresholds is None else thresholds[spec]
        accepted = () if threshold is None else _accepted(threshold, id_scores[spec], scores)
        rows.append(Row(spec, ood, group, found.fpr, found.auroc, found.aupr_in, found.aupr_out, *counts, *accepted))
    return rows


def _accepted(threshold: float, *sets: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float((scores >= threshold).mean()) for scores in sets)


def save(results: Results, folder: Path) -> None:
    """Write ``results.json``, whole or not at all; the arrays are written as they are made."""
    record = asdict(results) | {"format": 1}
    del record["folder"]
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write(folder / "results.json", (json.dumps(record, indent=1) + "\n").encode())
    results.folder = folder


def load(folder: Path) -> Results:
    """A finished run."""
    file = folder / "results.json"
    if not file.is_file():
        raise FileNotFoundError(f"no finished benchmark there: {file} does not exist")
    record = read_json(file)
    if record.pop("format", None) != 1:
        raise ValueError(f"{file} is of another format; run the benchmark again with this version")
    try:
        record["rows"] = [Row(**row) for row in record["rows"]]
        record["paper"] = None if record["paper"] is None else tuple(record["paper"])
        return Results(**record, folder=folder)
    except (KeyError, TypeError) as error:
        raise _broken(file, error) from None


_AGAIN = "remove it and run the benchmark again"


def read_json(file: Path, *, advice: str = _AGAIN) -> dict[str, Any]:
    """What a run has noted in its folder."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _broken(file, error, advice) from None
    if not isinstance(found, dict):
        raise _broken(file, f"it holds a {type(found).__name__}", advice)
    return found


def load_arrays(file: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file."""
    try:
        with np.load(file) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except FileNotFoundError:
        raise
    except Exception as error:  # damaged archives raise nearly anything
        raise _broken(file, error) from None


def _broken(file: Path, reason: object, advice: str = _AGAIN) -> ValueError:
    text = (str(reason) or type(reason).__name__).splitlines()[0]
    if "pickle" in text:  # NumPy's advice is to run what is in the file
        text = "it holds no arrays"
    return ValueError(f"{file} is damaged ({text}); {advice}")


def save_arrays(file: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """An .npz file, the same bytes for the same arrays; whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    savez: Any = np.savez  # its signature takes the names of arrays for options
    with atomic.replacing(file) as stream:
        savez(stream, **arrays)
