"""Loss and accuracy by epoch as a picture, where matplotlib is there."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LOSS, _TRAIN, _TEST = "#333333", "#999999", "#c0392b"
_MARKED = 20  # up to so many epochs each has its dot: of a single one a line shows nothing
_SPAN = 3  # the least ratio of losses that needs a logarithmic axis
# What is written of each decade of that axis, by the ratio up to which it is.
_TICKS: dict[float, tuple[float, ...]] = {10: (1, 1.5, 2, 3, 5, 7), 1000: (1, 2, 5), math.inf: (1,)}
_LINE, _WIDE_LINE = 80, 45  # signs of the title that fit side by side; such as those of Chinese are wider


def draw(history: Sequence[Mapping[str, Any]], title: str, file: Path) -> bool:
    """Write the curves to an .svg or .png file; False without matplotlib, which a training does not need."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return False
    picture = Figure(figsize=(9, 3.6), layout="constrained")
    picture.get_layout_engine().set(w_pad=0.08, h_pad=0.06, wspace=0.04)  # type: ignore[union-attr,call-arg]
    left, right = picture.subplots(1, 2)
    _draw_loss(left, history)
    _draw_accuracy(right, history)
    for axes in (left, right):
        _tidy(axes, [record["epoch"] for record in history])
    # A dollar in the name of a folder begins no formula.
    picture.suptitle(_wrapped(title), fontsize=11, parse_math=False)
    # Names within an .svg are drawn at random without a salt, and the same curves would be another file each time.
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "davis"}):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # a name in CJK, drawn as boxes
        picture.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    return True


def _draw_loss(axes: Axes, history: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    losses = [record["loss"] for record in history]
    _plot(axes, history, losses, color=_LOSS, label=f"training loss {losses[-1]:.4g}")
    axes.set_ylabel("training loss")
    if min(losses) <= 0 or max(losses) < _SPAN * min(losses):  # no logarithm, or no need of one
        return
    axes.set_yscale("log")
    ticks = next(ticks for most, ticks in _TICKS.items() if max(losses) <= most * min(losses))
    axes.yaxis.set_major_locator(LogLocator(subs=ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _plain_number(value)))


def _draw_accuracy(axes: Axes, history: Sequence[Mapping[str, Any]]) -> None:
    for key, colour in (("train", _TRAIN), ("test", _TEST)):
        values = [100 * record[f"{key}_accuracy"] for record in history]
        _plot(axes, history, values, color=colour, label=f"{key} {values[-1]:.2f}%")
    axes.set_ylabel("accuracy in percent")


def _plot(axes: Axes, history: Sequence[Mapping[str, Any]], values: Sequence[float], **style: Any) -> None:
    marker = "o" if len(history) <= _MARKED else None
    axes.plot([record["epoch"] for record in history], values, marker=marker, markersize=3.5, linewidth=1.4, **style)


def _tidy(axes: Axes, epochs: Sequence[int]) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    if len(epochs) == 1:  # else the only one is spread over an axis of parts of an epoch
        axes.set_xlim(epochs[0] - 1, epochs[0] + 1)
        axes.set_xticks(list(epochs))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    # Above the axes, where no curve runs through it.
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 0.98), ncols=2)


def _plain_number(value: float) -> str:
    """0.00001 and not 1e-05, as long as that can be read."""
    return format(Decimal(f"{value:.6g}"), "f") if 1e-6 <= value < 1e7 else f"{value:g}"


def _wrapped(title: str) -> str:
    """The title in lines that fit; what cannot be drawn or written, such as a line break, is a question mark."""
    plain = "".join(sign if sign.isprintable() else "?" for sign in title)
    return textwrap.fill(plain, _LINE if plain.isascii() else _WIDE_LINE, break_on_hyphens=False)
