"""The surface as a picture: what every candidate reached, over the settings that were tried."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from davis import spec as language
from davis.tuning.grid import place_of
from davis.tuning.surface import Row, Tuning

_COLUMNS = 3


class _Mark(NamedTuple):
    """A candidate in a panel: on which line, how far along it, how high."""

    line: str
    at: float | None  # None: the setting of the panel is not one of its own
    height: float
    chosen: bool


class _Panel(NamedTuple):
    title: str
    axis: str | None
    marks: list[_Mark]


def draw(tuning: Tuning, file: str | Path) -> None:
    """Draw the surface into a file: a panel for what follows the pooling, a line for each pooling."""
    try:
        figure_class = import_module("matplotlib.figure").Figure
    except ModuleNotFoundError as error:
        raise ImportError(f"a plot needs {error.name}: pip install 'davis-ood[bench]'") from error
    panels = _panels(tuning)
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = figure_class(figsize=(4.2 * columns, 3.2 * rows + 0.8), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    lines = list(dict.fromkeys(mark.line for panel in panels for mark in panel.marks))
    for axis, panel in zip(axes, panels, strict=False):
        _draw_panel(axis, panel, lines)
    for axis in axes[len(panels) :]:
        axis.axis("off")
    for axis in axes[:: columns or 1]:
        axis.set_ylabel(f"{tuning.metric} on {', '.join(tuning.proxies)}, %")
    handles = {line: handle for axis in axes for handle, line in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(file)


def _draw_panel(axis: Any, panel: _Panel, lines: Sequence[str]) -> None:
    axis.set_title(panel.title, fontsize=9)
    if panel.axis is not None:
        axis.set_xlabel(panel.axis)
    for line in dict.fromkeys(mark.line for mark in panel.marks):
        own = sorted((mark for mark in panel.marks if mark.line == line), key=lambda mark: mark.at or 0)
        colour = f"C{lines.index(line) % 10}"
        if any(mark.at is None for mark in own):
            axis.axhline(own[0].height, color=colour, linestyle="--", linewidth=1, label=line)
        else:
            places, heights = [mark.at for mark in own], [mark.height for mark in own]
            axis.plot(places, heights, color=colour, marker=".", linewidth=1, label=line)
    for mark in panel.marks:
        if mark.chosen:
            middle = sum(axis.get_xlim()) / 2
            axis.plot([middle if mark.at is None else mark.at], [mark.height], "k*", markersize=12, zorder=5)


def _panels(tuning: Tuning) -> list[_Panel]:
    """Candidates by what follows their pooling; along the setting of that with the most values, or of the pooling."""
    grouped: dict[str, list[Row]] = {}
    for row in tuning.rows:
        grouped.setdefault(_split(row.spec)[1], []).append(row)
    panels = []
    for title, rows in sorted(grouped.items()):
        settings = [place_of(row.spec).settings for row in rows]
        pools = {name for row in rows for name in _pool_settings(row.spec)}
        values = {name: {own[name] for own in settings if name in own} for each in settings for name in each}
        moving = {name: len(tried) for name, tried in values.items() if len(tried) > 1}
        along = max(moving, key=lambda name: (name not in pools, moving[name]), default=None)
        others = [name for name in moving if name != along and name not in pools]
        panels.append(_Panel(title, along, [_mark(tuning, row, along, others) for row in rows]))
    return panels


def _mark(tuning: Tuning, row: Row, along: str | None, others: Sequence[str]) -> _Mark:
    settings = place_of(row.spec).settings
    pool = _split(row.spec)[0]
    named = pool.partition("(")[0] if along in _pool_settings(row.spec) else pool
    line = ", ".join([named, *(f"{name}={settings[name]:g}" for name in others if name in settings)])
    value = row.auroc if tuning.select == "auroc" else row.fpr95
    return _Mark(line, settings.get(along) if along else None, 100 * value, row.spec == tuning.choice)


def _split(spec: str) -> tuple[str, str]:
    """The pooling of a spec, and the names of what follows; a fusion is one pooling of its own."""
    branches = language.parse(spec).branches
    if len(branches) > 1:
        return spec, "fusions"
    stages = [stage for stage in branches[0].stages if stage.name != "linear"]
    pool = branches[0].pool
    gamma = pool.settings().get("gamma")
    name = pool.name if gamma is None else f"{pool.name}(gamma={gamma})"
    return name, " + ".join(stage.name for stage in stages if stage is not pool)


def _pool_settings(spec: str) -> set[str]:
    return {f"{branch.pool.name}.{key}" for branch in language.parse(spec) for key in branch.pool.settings()}
