"""Tuning: what every candidate reached, which one was chosen, and how sure that is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from davis.tuning.bootstrap import Metric

FORMAT = 1
NAMES: dict[Metric, str] = {"auroc": "AUROC", "fpr95": "FPR95"}


class Point(NamedTuple):
    """One detector against one set; shares from 0 to 1, in-distribution positive."""

    auroc: float
    fpr95: float

    def merit(self, metric: Metric) -> float:
        """Higher is better, whichever metric it is."""
        return self.auroc if metric == "auroc" else -self.fpr95


def average(points: Sequence[Point]) -> Point:
    """The plain mean over sets."""
    return Point(*(float(np.mean(column)) for column in zip(*points, strict=True)))


@dataclass(frozen=True)
class Row:
    """One candidate: its averages over the proxies, and over the sets given for checking."""

    spec: str
    proxies: dict[str, Point]
    checks: dict[str, Point] = field(default_factory=dict)

    @property
    def point(self) -> Point:
        """What it is chosen by."""
        return average(list(self.proxies.values()))

    @property
    def auroc(self) -> float:
        return self.point.auroc

    @property
    def fpr95(self) -> float:
        return self.point.fpr95

    @property
    def check(self) -> Point | None:
        """What it is worth on real OOD images, where such were given."""
        return average(list(self.checks.values())) if self.checks else None


@dataclass(frozen=True)
class Hindsight:
    """How the choice fares on real OOD images, which had no part in it."""

    best: str  # the candidate that would have been best
    best_value: float
    chosen_value: float
    loss: float  # how much worse the choice is; never below 0
    rank: int  # of the choice among all candidates, from 1
    correlation: float | None  # Spearman's, of the proxy's and the real order; None where one of them is flat


@dataclass(frozen=True)
class Tuning:
    """The whole surface, best candidate first, and what follows from it."""

    rows: list[Row]
    select: Metric
    interval: tuple[float, float]  # of the choice's metric, 95%
    runner_up: str | None
    lead: float | None  # of the choice over the runner-up, in the metric; positive is better
    lead_interval: tuple[float, float] | None
    warnings: list[str]
    refused: dict[str, str]  # candidates that could not be fitted or scored, and why
    images: dict[str, int]  # fit, holdout, each proxy, each check
    seed: int

    @property
    def choice(self) -> str:
        """The spec of the best candidate."""
        return self.rows[0].spec

    @property
    def metric(self) -> str:
        """The name of what was selected by."""
        return NAMES[self.select]

    @property
    def proxies(self) -> list[str]:
        """The stand-ins for OOD images that it was chosen on."""
        return list(self.rows[0].proxies)

    @property
    def hindsight(self) -> Hindsight | None:
        """The choice on real OOD images, beside the best there; None where none were given."""
        return hindsight(self.rows, self.select)

    def row(self, spec: str) -> Row:
        """The row of a canonical spec."""
        for row in self.rows:
            if row.spec == spec:
                return row
        raise ValueError(f"{spec!r} is not among the {len(self.rows)} candidates")

    def sentences(self) -> list[str]:
        """Why this choice, in a few sentences."""
        best = self.rows[0].point
        value = best.auroc if self.select == "auroc" else best.fpr95
        low, high = self.interval
        said = [
            f"Of {len(self.rows)} candidates {self.choice!r} tells {', '.join(self.proxies)} from the held-out "
            f"images best: {self.metric} {_percent(value)} (95% interval {_percent(low)} to {_percent(high)})."
        ]
        if self.runner_up is not None and self.lead is not None and self.lead_interval is not None:
            low, high = self.lead_interval
            sure = "a clear lead" if low > 0 else "no clear lead, either will do"
            said.append(
                f"It is {_percent(self.lead)} points ahead of {self.runner_up!r} "
                f"(interval {_percent(low)} to {_percent(high)}): {sure}."
            )
        found = self.hindsight
        if found is not None:
            said.append(
                f"On the real OOD sets it reaches {_percent(found.chosen_value)}, rank {found.rank}; the best in "
                f"hindsight, {found.best!r}, reaches {_percent(found.best_value)}."
            )
        return said

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        record = asdict(self) | {"format": FORMAT, "choice": self.choice}
        for row, plain in zip(self.rows, record["rows"], strict=True):
            plain |= {"auroc": row.auroc, "fpr95": row.fpr95}
            for name in ("proxies", "checks"):
                plain[name] = {key: point._asdict() for key, point in getattr(row, name).items()}
        found = self.hindsight
        return record | {"hindsight": None if found is None else asdict(found)}

    def to_json(self) -> str:
        """Everything, as JSON; ``Tuning.from_json`` reads it back."""
        return json.dumps(self.to_dict(), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Tuning:
        """What ``to_json`` wrote."""
        record = json.loads(text)
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise ValueError("this is no tuning that this version wrote; tune again")
        rows = [Row(row["spec"], _points(row["proxies"]), _points(row["checks"])) for row in record["rows"]]
        lead = record["lead_interval"]
        kept = ("select", "runner_up", "lead", "warnings", "refused", "images", "seed")
        return cls(
            rows=rows,
            interval=tuple(record["interval"]),
            lead_interval=None if lead is None else tuple(lead),
            **{name: record[name] for name in kept},
        )

    def to_markdown(self, *, top: int | None = None) -> str:
        """The table, best first, and what was chosen and why."""
        shown = self.rows[:top]
        several = len(self.proxies) > 1
        columns = ["candidate", "AUROC", "FPR95"]
        columns += [f"{name} {metric}" for name in self.proxies for metric in NAMES.values()] if several else []
        checked = [f"real {metric}" for metric in NAMES.values()] if shown[0].checks else []
        lines = [f"| {' | '.join(columns + checked)} |", "|---" * len(columns + checked) + "|"]
        for row in shown:
            points = [row.point, *(row.proxies.values() if several else ()), *([row.check] if row.check else ())]
            cells = [_percent(value) for point in points for value in point]
            text = row.spec.replace("|", "\\|")
            lines.append(f"| `{text}` | {' | '.join(cells)} |")
        said = [*self.sentences(), *(f"Beware: {warning}." for warning in self.warnings)]
        return "\n".join([*lines, "", *said]) + "\n"


def hindsight(rows: Sequence[Row], metric: Metric) -> Hindsight | None:
    """The first row on real OOD images beside the best there."""
    real = [row.check for row in rows]
    points = [point for point in real if point is not None]
    if len(points) < len(rows):
        return None
    merits = np.array([point.merit(metric) for point in points])
    best = int(np.argmax(merits))
    sign = 1 if metric == "auroc" else -1
    return Hindsight(
        best=rows[best].spec,
        best_value=float(sign * merits[best]),
        chosen_value=float(sign * merits[0]),
        loss=float(merits[best] - merits[0]),
        rank=1 + int((merits > merits[0]).sum()),
        correlation=spearman(np.array([row.point.merit(metric) for row in rows]), merits),
    )


def spearman(first: NDArray[np.float64], second: NDArray[np.float64]) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None where a side is constant."""
    ranks = np.stack([_ranks(first), _ranks(second)])
    if (np.ptp(ranks, axis=1) == 0).any():
        return None
    correlation: NDArray[np.float64] = np.asarray(np.corrcoef(ranks))
    return float(correlation[0, 1])


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: NDArray[np.float64] = (ends - (counts - 1) / 2)[places]
    return ranks


def _points(record: Mapping[str, Mapping[str, float]]) -> dict[str, Point]:
    return {name: Point(**point) for name, point in record.items()}


def _percent(share: float) -> str:
    return f"{round(100 * share, 2) + 0.0:.2f}"  # no minus before a zero
