"""A run as tables and one page: CSV, Parquet, Markdown, LaTeX and HTML, the same bytes for the same run."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from davis import atomic
from davis.bench.analysis import condition, examine, weight_of
from davis.bench.figures import Picture, optional, pictures
from davis.bench.paper import RELATED, figure
from davis.bench.results import AVERAGES, Results
from davis.bench.tables import (
    LOWER,
    METRICS,
    Line,
    accuracies,
    agreement,
    best,
    costs,
    table,
    tabulate,
    verdicts,
    warned,
)
from davis.metrics import interval
from davis.spec import parse

_BEST = 3  # detectors with figures of their own
_ILLUSTRATED = 8  # sets with figures; the page stays below 2 MB
_RESAMPLES = 200
_TABLES = ("accuracy_by_spec", "flops", "calibration", "left_out", "warnings")  # facts with a place of their own
_NEEDED = ("jinja2", "matplotlib", "pyarrow", "sklearn")


def write_reports(results: Results, folder: Path) -> list[Path]:
    """Every format of a run's report, written into a folder."""
    for module in _NEEDED:
        optional(module)
    lines = list(tabulate(results))
    context = _context(results, lines)
    contents = {
        "report.csv": _csv(lines),
        "report.parquet": _parquet(lines),
        "report.md": _render("report.md.j2", context),
        "report.tex": _render("report.tex.j2", context),
        "report.html": _render("report.html.j2", context | {"sections": list(_sections(results, lines))}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        atomic.write(folder / name, content)
    return [folder / name for name in contents]


def _context(results: Results, lines: Sequence[Line]) -> dict[str, Any]:
    compared = [line for line in lines if line.paper and line.dataset not in AVERAGES.values()]
    leaders = []
    for average in AVERAGES.values():
        for detector in best(lines, dataset=average)[:1]:
            leaders += [line for line in lines if (line.detector, line.dataset) == (detector, average)]
    accuracy = None if results.paper is None else figure(*results.paper, "Standard", "", "accuracy")
    weight = weight_of(results)
    return {
        "results": results,
        "tables": [table(lines, metric) for metric in METRICS],
        "lower": LOWER,
        "averages": list(AVERAGES.values()),
        "leaders": leaders,
        "compared": compared,
        "agreement": list(agreement(compared)),
        "related": {name: RELATED[name] for name in results.groups if name in RELATED},
        "paper_accuracy": accuracy,
        "findings": examine(results),
        "condition": None if weight is None else condition(weight),
        "features": {"mu": "μ", "sigma": "σ", "m": "m", "mu_sigma": f"μ + {results.gamma:g}σ"},
        "images": max(line.id_images for line in lines),
        "verdicts": verdicts(lines),
        "accuracies": accuracies(results),
        "costs": costs(results),
        "warned": warned(results),
        "beware": set(results.facts.get("warnings", {})),
        "members": {group: [name for name, of in results.groups.items() if of == group] for group in AVERAGES},
        "averages_of": AVERAGES,
        "facts": _facts(results),
    }


def _facts(results: Results) -> dict[str, str]:
    """What is said of the run at its end: not what has a place of its own, is empty or concerns no method here."""
    moves = any(branch.needs_pixels for spec in results.specs for branch in parse(spec))
    silent = (*_TABLES, *(() if moves else ("pixel_images",)))
    found = {name: _fact(value) for name, value in results.facts.items() if name not in silent and value is not None}
    return {name: text for name, text in found.items() if text}


def _fact(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_fact(part)}" for name, part in value.items())
    return ", ".join(map(_fact, value)) if isinstance(value, list | tuple) else str(value)


class Section(NamedTuple):
    """The page's part on one OOD set."""

    name: str
    intervals: list[tuple[Line, dict[str, tuple[float, float]]]]  # of the best detectors
    pictures: dict[str, list[Picture]]  # by heading


def _sections(results: Results, lines: Sequence[Line]) -> Iterable[Section]:
    chosen = best(lines)[:_BEST]
    scores = results.scores(results.id)
    embedded = {next((name for name, of in results.groups.items() if of == group), None) for group in AVERAGES}
    for place, name in enumerate(results.groups):
        against = results.scores(name)
        shown = [line for spec in chosen for line in lines if (line.detector, line.dataset) == (spec, name)]
        spans = [(line, _intervals(scores[line.detector], against[line.detector])) for line in shown]
        drawn = pictures(results, name, chosen, embed=name in embedded) if place < _ILLUSTRATED else {}
        yield Section(name, spans, drawn)


def _intervals(inside: Any, outside: Any) -> dict[str, tuple[float, float]]:
    """95% bootstrap intervals, in percent."""
    spans = {}
    for metric, name in (("FPR@95", "fpr"), ("AUROC", "auroc")):
        low, high = interval(inside, outside, "fpr" if name == "fpr" else "auroc", resamples=_RESAMPLES)
        spans[metric] = (100 * low, 100 * high)
    return spans


def _csv(lines: Sequence[Line]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0].record()), lineterminator="\n")
    writer.writeheader()
    writer.writerows(line.record() for line in lines)
    return text.getvalue().encode()


def _parquet(lines: Sequence[Line]) -> bytes:
    arrow, parquet = optional("pyarrow"), optional("pyarrow.parquet")
    kinds = {"detector": arrow.string(), "pool": arrow.string(), "dataset": arrow.string(), "group": arrow.string()}
    kinds |= {"paper_row": arrow.string(), "paper_values": arrow.string()}
    kinds |= {"id_images": arrow.int64(), "ood_images": arrow.int64()}
    schema = arrow.schema([(name, kinds.get(name, arrow.float64())) for name in lines[0].record()])
    stream = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_pylist([line.record() for line in lines], schema=schema), stream)
    content: bytes = stream.getvalue().to_pybytes()
    return content


def _render(template: str, context: Mapping[str, Any]) -> bytes:
    jinja = optional("jinja2")
    tex = {"block_start_string": "<%", "block_end_string": "%>", "variable_start_string": "<<"}
    tex |= {"variable_end_string": ">>", "comment_start_string": "<#", "comment_end_string": "#>"}
    environment = jinja.Environment(
        loader=jinja.PackageLoader("davis.bench"),
        autoescape=template.endswith(".html.j2"),
        undefined=jinja.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **(tex if template.endswith(".tex.j2") else {}),
    )
    environment.filters |= {"tex": _tex, "svg": optional("markupsafe").Markup, "signed": _signed}
    text: str = environment.get_template(template).render(context)
    return text.encode()


def _tex(text: str) -> str:
    """Escaped for LaTeX."""
    escapes = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(escapes.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


def _signed(value: float) -> str:
    """With its sign, a true minus, and no negative zero."""
    text = f"{value:+.2f}"
    return "0.00" if float(text) == 0 else text.replace("-", "−")
