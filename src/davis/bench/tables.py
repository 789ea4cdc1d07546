"""A run as lines and tables: every detector on every set, the paper's numbers beside ours, in percent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from davis.bench.paper import Figure, figure, rows_of
from davis.bench.results import AVERAGES, Results, Row
from davis.presets import Preset
from davis.spec import canonical, parse

METRICS = {"FPR@95": "fpr95", "AUROC": "auroc", "AUPR_IN": "aupr_in", "AUPR_OUT": "aupr_out"}
LOWER = {"FPR@95"}  # is better
COMPARED = ("FPR@95", "AUROC")  # what the paper prints

_SHADES = 9


class Accepted(NamedTuple):
    """What a threshold that was set on calibration images lets through, in percent."""

    id: float
    ood: float


@dataclass(frozen=True)
class Line:
    """One detector on one OOD set, or averaged over the near or the far ones; in percent."""

    detector: str
    pool: str
    dataset: str
    group: str
    values: dict[str, float]  # by metric
    accuracy: float | None
    id_images: int
    ood_images: int
    row: Preset | None  # the paper's, which the detector stands for
    paper: dict[str, Figure] = field(default_factory=dict)  # by metric, where the paper has the cell
    accepted: Accepted | None = None

    def record(self) -> dict[str, str | float | int | None]:
        """A line of the CSV and Parquet files, in OpenOOD's column names."""
        printed = {metric: found.value for metric, found in self.paper.items()}
        return {
            "detector": self.detector,
            "pool": self.pool,
            "dataset": self.dataset,
            "group": self.group,
            **{metric: round(value, 6) for metric, value in self.values.items()},
            "ACC": None if self.accuracy is None else round(self.accuracy, 6),
            "ID_ACCEPTED": None if self.accepted is None else round(self.accepted.id, 6),
            "OOD_ACCEPTED": None if self.accepted is None else round(self.accepted.ood, 6),
            "id_images": self.id_images,
            "ood_images": self.ood_images,
            "paper_row": None if self.row is None else self.row.name,
            "paper_values": None if self.row is None else self.row.values,
            **{f"paper_{metric}": printed.get(metric) for metric in COMPARED},
            **{f"difference_{metric}": self.difference(metric) for metric in COMPARED},
        }

    def difference(self, metric: str) -> float | None:
        """Ours minus the paper's, in points."""
        return round(self.values[metric] - self.paper[metric].value, 6) if metric in self.paper else None


class Cell(NamedTuple):
    """A number of a table and how it is set."""

    value: float
    rank: str  # best, second or nothing, among equal roundings
    shade: int  # from 0, the column's best, to 8, its worst
    paper: Figure | None
    difference: float | None


class Table(NamedTuple):
    """Detectors by sets in one metric."""

    metric: str
    columns: list[Line]  # of the first detector: they name the sets
    rows: list[tuple[Line, list[Cell]]]


def tabulate(results: Results) -> Iterable[Line]:
    """All lines: detectors grouped by pooling, in the order of the run; near sets, their average, far sets, theirs."""
    printed = {} if results.paper is None else rows_of(*results.paper)
    found = {(row.spec, row.set): row for row in results.rows}
    pools = {spec: _pool(spec) for spec in results.specs}
    order = list(dict.fromkeys(pools.values()))
    for spec in sorted(results.specs, key=lambda spec: order.index(pools[spec])):
        preset = next(iter(printed.get(canonical(spec), ())), None)
        for group, average in AVERAGES.items():
            names = [name for name, of in results.groups.items() if of == group]
            lines = [_line(results, found[spec, name], pools[spec], preset) for name in names]
            yield from lines
            if lines:
                yield _average(average, lines)


def _pool(spec: str) -> str:
    return " | ".join(branch.pool.text() for branch in parse(spec))


def _line(results: Results, row: Row, pool: str, preset: Preset | None) -> Line:
    paper = {}
    if results.paper is not None and preset is not None:
        cells = {metric: figure(*results.paper, preset.name, row.set, METRICS[metric]) for metric in COMPARED}
        paper = {metric: cell for metric, cell in cells.items() if cell is not None}
    values = {metric: 100 * float(getattr(row, name)) for metric, name in METRICS.items()}
    accuracy = None if results.accuracy is None else 100 * results.accuracy
    accepted = None
    if row.id_accepted is not None and row.ood_accepted is not None:
        accepted = Accepted(100 * row.id_accepted, 100 * row.ood_accepted)
    counts = row.id_images, row.ood_images
    return Line(row.spec, pool, row.set, row.group, values, accuracy, *counts, preset, paper, accepted)


def _average(name: str, lines: Sequence[Line]) -> Line:
    """The plain mean over sets; the paper's only where it has every one of them."""
    first = lines[0]
    values = {metric: sum(line.values[metric] for line in lines) / len(lines) for metric in METRICS}
    paper = {}
    for metric in COMPARED:
        cells = [line.paper[metric] for line in lines if metric in line.paper]
        if len(cells) == len(lines):
            mean = sum(cell.value for cell in cells) / len(cells)
            paper[metric] = Figure(round(mean, 6), "mean of the paper's cells", any(cell.quoted for cell in cells), ())
    images = sum(line.ood_images for line in lines)
    pool, group = first.pool, first.group
    counts = first.id_images, images
    accepted = None
    if first.accepted is not None:  # then all are: a threshold serves every set
        shares = [line.accepted.ood for line in lines if line.accepted is not None]
        accepted = Accepted(first.accepted.id, sum(shares) / len(shares))
    return Line(first.detector, pool, name, group, values, first.accuracy, *counts, first.row, paper, accepted)


def table(lines: Sequence[Line], metric: str) -> Table:
    """Detectors by sets, ranked and shaded within each column."""
    by_detector: dict[str, list[Line]] = {}
    for line in lines:
        by_detector.setdefault(line.detector, []).append(line)
    rows = list(by_detector.values())
    columns = [_cells([row[place] for row in rows], metric) for place in range(len(rows[0]))]
    return Table(metric, rows[0], [(row[0], [column[i] for column in columns]) for i, row in enumerate(rows)])


def _cells(column: Sequence[Line], metric: str) -> list[Cell]:
    sign = 1 if metric in LOWER else -1
    losses = [sign * round(line.values[metric], 2) for line in column]
    places = dict(zip(sorted(set(losses)), ("best", "second"), strict=False))
    low, width = min(losses), max(losses) - min(losses) or 1.0
    return [
        Cell(
            line.values[metric],
            places.get(loss, ""),
            round((loss - low) / width * (_SHADES - 1)),
            line.paper.get(metric),
            line.difference(metric),
        )
        for line, loss in zip(column, losses, strict=True)
    ]


class Verdicts(NamedTuple):
    """What one detector's calibrated threshold lets through."""

    detector: str
    id: float
    ood: list[float]  # by set and average, in the order of a table's columns


def verdicts(lines: Sequence[Line]) -> list[Verdicts]:
    """A row for each detector with a threshold; none where the run has no calibration set."""
    found: dict[str, Verdicts] = {}
    for line in lines:
        if line.accepted is not None:
            row = found.setdefault(line.detector, Verdicts(line.detector, line.accepted.id, []))
            row.ood.append(line.accepted.ood)
    return list(found.values())


def best(lines: Sequence[Line], *, dataset: str | None = None) -> list[str]:
    """Detectors from the lowest FPR@95 up: on one set or average, or averaged over all sets."""
    found: dict[str, list[float]] = {}
    for line in lines:
        if line.dataset == dataset or (dataset is None and line.dataset not in AVERAGES.values()):
            found.setdefault(line.detector, []).append(line.values["FPR@95"])
    return sorted(found, key=lambda detector: sum(found[detector]) / len(found[detector]))


def warned(results: Results) -> dict[str, list[str]]:
    """Warnings, each with the detectors that gave it."""
    found: dict[str, list[str]] = {}
    texts: Mapping[str, Sequence[str]] = results.facts.get("warnings", {})
    for spec in texts:
        for text in texts[spec]:
            found.setdefault(text, []).append(spec)
    return found


class Accuracy(NamedTuple):
    """What the logits that reach a score would classify, in percent."""

    here: float
    paper: float | None  # where its accuracy table has the row


def accuracies(results: Results) -> dict[str, Accuracy]:
    """Top-1 accuracy of the logits that reach the scores: by what stands before the score."""
    shares: Mapping[str, float] = results.facts.get("accuracy_by_spec", {})
    printed = {} if results.paper is None else rows_of(*results.paper)
    found: dict[str, Accuracy] = {}
    for spec, share in shares.items():
        before = spec.rpartition(" + ")[0]
        cells = [figure(*results.paper, row.name, "", "accuracy") for row in printed.get(spec, ()) if results.paper]
        paper = next((cell.value for cell in cells if cell is not None), None)
        if before not in found or paper is not None:
            found[before] = Accuracy(100 * share, paper)
    return found


class Cost(NamedTuple):
    """What a detector computes beside the classifier's own pass, for one image."""

    megaflops: float
    share: float  # of the pass


def costs(results: Results) -> dict[str, Cost]:
    """The arithmetic of every detector that scores from one pass."""
    flops: Mapping[str, float] = results.facts.get("flops", {})
    whole = flops.get("model", 0.0)
    return {spec: Cost(value / 1e6, value / whole) for spec, value in flops.items() if spec != "model" and whole}


class Agreement(NamedTuple):
    """How far the run is from the paper in one metric, in points."""

    values: str  # of the detectors: as published, or as reproducing where the run has such
    metric: str
    cells: int
    median: float
    within: float  # share of cells at most one point away
    farthest: Line


def agreement(compared: Sequence[Line]) -> Iterable[Agreement]:
    """Once with the paper's own settings, once with those that reproduce its tables where they differ."""
    settings = {(line.row.name, line.row.values) for line in compared if line.row}
    replaced = {name for name, values in settings if values == "reproducing"}
    for values in ("reproducing", "published"):
        own = [line for line in compared if line.row and line.row.values == "published"]
        if values == "reproducing":
            own = [
                line for line in compared if line.row and (line.row.values == values or line.row.name not in replaced)
            ]
        for metric in COMPARED:
            away = sorted(
                (abs(line.difference(metric) or 0.0), i) for i, line in enumerate(own) if metric in line.paper
            )
            if away and (replaced or values == "published"):
                median = (away[(len(away) - 1) // 2][0] + away[len(away) // 2][0]) / 2
                within = sum(distance <= 1 for distance, _ in away) / len(away)
                yield Agreement(values, metric, len(away), median, within, own[away[-1][1]])
