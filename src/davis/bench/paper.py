"""The paper's printed numbers, and which of them a run may be compared with.

`paper_figures.csv.gz` holds the numbers of the tables of "DAVIS: OOD Detection via Dominant Activations and Variance
for Increased Separation", one line for each cell. It is made from a list of all table entries by

    python -m davis.bench.paper SOURCE TARGET

where SOURCE is a CSV file with the columns table, id_dataset, model, pooling, method, ood_dataset, metric, value,
starred. The printed averages are left out: they are taken over other sets than ours.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from davis.presets import Preset, presets
from davis.spec import canonical

SETS = {"cifar100_test": "cifar100"}
"""Sets of ours that the paper has under another name; every other name means itself."""

RELATED = {
    "dtd10": "textures",
    "miniplaces": "places",
    "lsuncats_crop": "lsun_c",
    "lsuncats_resize": "lsun_r",
}
"""Sets of ours that only resemble one of the paper's. Their numbers are never compared."""

_COLUMNS = ("id", "model", "row", "ood", "metric", "value", "table", "quoted", "others")
_PREFIX = {"mean": "", "max": "DAVIS(m)+", "davis_max": "DAVIS(m)+", "davis_mean_std": "DAVIS(mu,sigma)+"}

Key = tuple[str, str, str, str, str]


class Figure(NamedTuple):
    """A number of the paper, in percent."""

    value: float
    table: str
    quoted: bool  # starred: the paper took it from elsewhere, or the row is of another method
    others: tuple[float, ...]  # what other tables print in the same cell, where they disagree


def paper_value(id: str, model: str, preset_name: str, ood: str, metric: str) -> float | None:
    """What the paper prints, in percent, or None where it has no such cell.

    >>> paper_value("cifar10", "densenet101", "DAVIS(m)+DICE", "svhn", "fpr95")
    8.3
    """
    found = figure(id, model, preset_name, ood, metric)
    return None if found is None else found.value


def figure(id: str, model: str, preset_name: str, ood: str, metric: str) -> Figure | None:
    """The same with the table it stands in; accuracies are those of the row ``Standard`` and of no OOD set."""
    return _figures().get((id, model, preset_name, SETS.get(ood, ood), metric))


def rows_of(id: str, model: str) -> Mapping[str, list[Preset]]:
    """Canonical spec -> the paper's rows that it stands for, those that the paper prints first."""
    printed = {row for figure_id, figure_model, row, _, _ in _figures() if (figure_id, figure_model) == (id, model)}
    found: dict[str, list[Preset]] = {}
    for preset in presets(id=id, arch=model):
        found.setdefault(canonical(preset.spec), []).append(preset)
    return {spec: sorted(rows, key=lambda preset: preset.name not in printed) for spec, rows in found.items()}


@cache
def _figures() -> dict[Key, Figure]:
    packed = files("davis.bench").joinpath("paper_figures.csv.gz").read_bytes()
    found = {}
    for line in csv.DictReader(io.StringIO(gzip.decompress(packed).decode("utf-8"))):
        key = (line["id"], line["model"], line["row"], line["ood"], line["metric"])
        others = tuple(float(value) for value in line["others"].split())
        found[key] = Figure(float(line["value"]), line["table"], line["quoted"] == "1", others)
    return found


def condense(entries: Iterable[Mapping[str, str]]) -> bytes:
    """The package's file from all entries of all tables; the same bytes for the same entries.

    Where several tables print a cell, the detailed one counts, else a number the authors measured before a quoted one;
    `others` keeps what the rest print where that differs.
    """
    cells: dict[Key, list[Mapping[str, str]]] = {}
    for entry in entries:
        if entry["ood_dataset"] != "average":
            row = _prefix(entry["pooling"]) + entry["method"]
            key = (entry["id_dataset"], entry["model"], row, entry["ood_dataset"], entry["metric"])
            cells.setdefault(key, []).append(entry)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for key, found in sorted(cells.items()):
        first, *rest = sorted(found, key=_precedence)
        others = dict.fromkeys(entry["value"] for entry in rest if float(entry["value"]) != float(first["value"]))
        writer.writerow([*key, first["value"], first["table"], first["starred"], " ".join(others)])
    return gzip.compress(text.getvalue().encode(), compresslevel=9, mtime=0)


def _prefix(pooling: str) -> str:
    """How a row's name spells its pooling: ``mean+3.0std`` is ``DAVIS(mu,3sigma)+``."""
    grid = re.fullmatch(r"mean\+([\d.]+)std", pooling)
    if grid:
        return f"DAVIS(mu,{float(grid[1]):g}sigma)+"
    return _PREFIX.get(pooling, f"{pooling}+")


def _precedence(entry: Mapping[str, str]) -> tuple[bool, bool]:
    return not entry["table"].startswith("detailed"), entry["starred"] == "1"


def main(arguments: list[str]) -> None:
    """Read SOURCE, write TARGET."""
    if len(arguments) != 2:
        raise SystemExit("usage: python -m davis.bench.paper SOURCE TARGET")
    source, target = map(Path, arguments)
    with source.open(newline="", encoding="utf-8") as stream:
        target.write_bytes(condense(csv.DictReader(stream)))


if __name__ == "__main__":
    main(sys.argv[1:])
