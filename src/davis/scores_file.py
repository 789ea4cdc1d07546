"""Scores on disk: one column of a CSV, parquet, npz or JSON-lines file, or the calibration of a saved detector."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values: TypeAlias = NDArray[np.float64]

COLUMN, _DETECTOR = "score", "detector"
_TENSORS, _CALIBRATION = "detector.safetensors", "calibration.scores"


def read_scores(source: str | os.PathLike[str], *, column: str = COLUMN) -> Values:
    """The finite numbers in a column of a file, in their order there.

    ``source`` is a ``.csv``, ``.parquet``, ``.npz`` (the column is an array's name) or ``.jsonl`` file, or the folder
    of a saved detector, whose calibration scores are then taken.
    """
    path = Path(source)
    if path.is_dir():
        return checked(_calibration(path), name=str(path))
    if not path.is_file():
        raise FileNotFoundError(f"no such file of scores: {path}")
    readers: dict[str, Callable[[Path, str], ArrayLike]] = {
        ".csv": _csv,
        ".parquet": _parquet,
        ".npz": _npz,
        ".jsonl": _jsonl,
        ".ndjson": _jsonl,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path} must end in one of {', '.join(readers)}, or be the folder of a saved detector")
    return checked(reader(path, column), name=f"{path}, column {column!r}")


def checked(scores: ArrayLike, *, name: str = "the scores") -> Values:
    """A row of finite float64 numbers, at least one; ``name`` says in an error whose they are."""
    values = np.asarray(scores)
    if values.ndim != 1:
        raise ValueError(f"{name} must be a row of numbers, got shape {values.shape}")
    if not len(values):
        raise ValueError(f"{name}: there are no scores")
    if values.dtype.kind not in "fiu":
        raise TypeError(f"{name} must be numbers, got {values.dtype}")
    finite = np.isfinite(values)
    if not finite.all():
        bad, first = int((~finite).sum()), int(np.argmin(finite)) + 1
        raise ValueError(f"{name}: {bad} of {len(values)} scores are NaN or infinite, the first is number {first}")
    return values.astype(np.float64)


def parse_json_lines(lines: Iterable[str], *, column: str = COLUMN, name: str = "stdin") -> Iterator[float]:
    """The score on each line, as ``davis score --json`` prints them; empty lines are passed over."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise ValueError(f"{name}, line {number} is not JSON: {line.strip()[:60]!r}") from None
        if not isinstance(record, dict):
            raise ValueError(
                f"{name}, line {number} must be an object such as {{{column!r}: 1.5}}, got {line.strip()[:60]}"
            )
        if column not in record:
            raise ValueError(f"{name}, line {number}: {_missing(column, record)}")
        yield _number(record[column], f"{name}, line {number}")


def detectors_named(source: str | os.PathLike[str]) -> set[str]:
    """The detectors that gave the scores in a file, where ``davis score`` wrote it; empty where nothing is said."""
    path = Path(source)
    if path.is_dir() or path.suffix.lower() not in (".csv", ".jsonl", ".ndjson"):
        return set()
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
        if path.suffix.lower() == ".csv":
            csv.field_size_limit(sys.maxsize)
            named = [row.get(_DETECTOR) for row in csv.DictReader(stream)]
        else:
            named = [json.loads(line).get(_DETECTOR) for line in stream if _DETECTOR in line]
    return {str(name) for name in named if name}


def scores_sha256(scores: ArrayLike) -> str:
    """A fingerprint of the scores as a set: sorted, as little-endian float64."""
    values = np.sort(np.asarray(scores, dtype=np.float64)) + 0.0  # -0.0 and 0.0 are the same score
    return hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()


def _csv(path: Path, column: str) -> list[float]:
    csv.field_size_limit(sys.maxsize)
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
        rows = csv.reader(stream)
        header = next(rows, [])
        if column not in header:
            raise ValueError(f"{path}: {_missing(column, header)}")
        place = header.index(column)
        found = []
        for row in rows:
            if row:  # an empty line has no fields
                text = row[place] if place < len(row) else ""
                found.append(_number(text, f"{path}, line {rows.line_num}"))
    return found


def _jsonl(path: Path, column: str) -> list[float]:
    with path.open(encoding="utf-8", errors="replace") as stream:
        return list(parse_json_lines(stream, column=column, name=str(path)))


def _parquet(path: Path, column: str) -> Values:
    try:
        pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ImportError(f"parquet files need {error.name}: pip install 'davis-ood[bench]'") from error
    try:
        names = parquet.read_schema(path).names
        if column not in names:
            raise ValueError(f"{path}: {_missing(column, names)}")
        values: Any = parquet.read_table(path, columns=[column]).column(column)
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path} is not a parquet file that can be read: {error}") from None
    if not (pyarrow.types.is_floating(values.type) or pyarrow.types.is_integer(values.type)):
        raise TypeError(f"{path}, column {column!r} must be numbers, got {values.type}")
    if values.null_count:
        raise ValueError(f"{path}, column {column!r}: {values.null_count} of {len(values)} scores are missing")
    found: Values = values.to_numpy().astype(np.float64)
    return found


def _npz(path: Path, column: str) -> NDArray[Any]:
    if not zipfile.is_zipfile(path):  # NumPy would try to unpickle it
        raise ValueError(f"{path} is not an npz file")
    with np.load(path, allow_pickle=False) as arrays:
        if column not in arrays.files:
            raise ValueError(f"{path}: {_missing(column, arrays.files)}")
        try:
            found: NDArray[Any] = arrays[column]
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}, array {column!r} cannot be read: {error}") from None
    return found


def _calibration(folder: Path) -> NDArray[Any]:
    from safetensors import SafetensorError, safe_open

    file = folder / _TENSORS
    if not file.is_file():
        raise FileNotFoundError(f"{folder} holds no detector: there is no {_TENSORS}")
    _check_digest(file, folder / "detector.json")
    try:
        with safe_open(file, framework="numpy") as tensors:
            if _CALIBRATION not in tensors.keys():  # noqa: SIM118  a handle, not a dictionary
                raise ValueError(f"{folder} holds no calibration scores; calibrate the detector and save it again")
            found: NDArray[Any] = tensors.get_tensor(_CALIBRATION)
            return found
    except SafetensorError as error:
        raise ValueError(f"{file} is not a readable safetensors file: {error}") from None


def _check_digest(tensors: Path, text: Path) -> None:
    try:
        known = json.loads(text.read_text(encoding="utf-8"))["tensors_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{text} does not describe a detector; save it anew") from None
    if hashlib.sha256(tensors.read_bytes()).hexdigest() != known:
        raise ValueError(f"{tensors} was changed after it was saved (its sha256 differs); save the detector anew")


def _number(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{place}: the score must be a number, got {json.dumps(value)[:40]}")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{place}: the score must be a number, got {value!r}"[:200]) from None
    if not math.isfinite(number):
        raise ValueError(f"{place}: the score is {value}; NaN and infinite scores cannot be used")
    return number


def _missing(column: str, there: Iterable[str]) -> str:
    names = ", ".join(repr(name) for name in list(there)[:8])
    return f"no column {column!r}; there is {names or 'nothing'}: choose one with --column"
