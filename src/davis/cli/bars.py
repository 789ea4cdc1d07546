"""Bars of trainings: a line for each on stderr, which says accuracy and time left however narrow the terminal is."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

from davis.cli.printing import plain

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table

_GAP = 2  # cells between columns
_LONGEST_BAR, _SHORTEST_BAR = 40, 6
_COLUMNS = ("name", "bar", "epoch", "loss", "test", "elapsed", "left")
# Kept free from the beginning, so that the line does not jump at the end of the first epoch.
_ROOM = {"loss": "loss 0.1234", "test": "test 93.12%", "left": "1234 s left"}
_SHORT = -1  # 3/100, without the word
# What gives way, first to last, and to how many cells; accuracy and time left never do.
_GIVES_WAY = (
    ("elapsed", 0),
    ("name", 24),
    ("epoch", _SHORT),
    ("name", 16),
    ("loss", 0),
    ("name", 10),
    ("bar", 0),
    ("epoch", 0),
    ("name", 0),
)


@dataclass
class Line:
    """How far a training is."""

    name: str
    epochs: int
    epoch: int = 0  # finished ones
    record: Mapping[str, Any] = field(default_factory=dict)  # of the last finished epoch
    part: float | None = None  # of the whole training; not known at first
    left: float | None = None  # seconds
    began: float = field(default_factory=time.monotonic)

    def counted(self) -> str:
        return f"{self.epoch}/{self.epochs}"

    def texts(self) -> dict[str, str]:
        """What its columns say, but for the name and the bar."""
        return {
            "epoch": f"epoch {self.counted()}",
            "loss": loss_of(self.record),
            "test": accuracy_of(self.record),
            "elapsed": str(timedelta(seconds=int(time.monotonic() - self.began))),
            "left": left_of(self.left),
        }


def loss_of(record: Mapping[str, Any]) -> str:
    return f"loss {record['loss']:.4f}" if record else ""


def accuracy_of(record: Mapping[str, Any]) -> str:
    return f"test {100 * record['test_accuracy']:.2f}%" if record else ""


def left_of(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f} s left"


class Bars:
    """The lines that are shown; each time anew, so that they follow a terminal that changes its width."""

    def __init__(self, lines: Sequence[Line] = ()) -> None:
        self.lines = tuple(lines)  # replaced as a whole: another thread draws

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        if lines := self.lines:
            yield _drawn(lines, options.max_width)


@contextmanager
def live_bars() -> Iterator[Bars]:
    """Bars on stderr, where that is a terminal; they are gone when the work is done."""
    bars = Bars()
    if not sys.stderr.isatty():
        yield bars
        return
    from rich.console import Console
    from rich.live import Live

    # Left to itself, rich takes stdout over, and results printed meanwhile would land on stderr.
    with Live(bars, console=Console(stderr=True), transient=True, redirect_stdout=False, refresh_per_second=4):
        yield bars


def _drawn(lines: Sequence[Line], width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    texts = [line.texts() for line in lines]
    names = [plain(line.name) for line in lines]
    widths = _widths(lines, names, texts, width)
    if widths["epoch"] < _widest(text["epoch"] for text in texts):
        texts = [text | {"epoch": line.counted()} for line, text in zip(lines, texts, strict=True)]
    shown = [name for name in _COLUMNS if widths[name]]
    table = Table.grid(padding=(0, _GAP, 0, 0), pad_edge=False)
    for name in shown:
        table.add_column(width=widths[name], no_wrap=True)
    for line, text, name in zip(lines, texts, shortened(names, widths["name"]), strict=True):
        cells: dict[str, Any] = {key: Text(value) for key, value in (text | {"name": name}).items()}
        cells["bar"] = _bar(line, widths["bar"])
        table.add_row(*(cells[key] for key in shown))
    return table


def _bar(line: Line, width: int) -> Any:
    from rich.progress_bar import ProgressBar

    return ProgressBar(total=None if line.part is None else 1.0, completed=line.part or 0.0, width=width)


def _widths(
    lines: Sequence[Line], names: Sequence[str], texts: Sequence[Mapping[str, str]], width: int
) -> dict[str, int]:
    """Cells for each column; 0 is for one that has no place."""
    widths = {"name": _widest(names), "bar": _SHORTEST_BAR}
    for key in _COLUMNS[2:]:
        widths[key] = _widest([_ROOM.get(key, ""), *(text[key] for text in texts)])
    # The last epoch is written with as many digits as there are.
    widths["epoch"] = _widest(f"epoch {line.epochs}/{line.epochs}" for line in lines)
    short = _widest(f"{line.epochs}/{line.epochs}" for line in lines)

    def spare() -> int:
        taken = [cells for cells in widths.values() if cells]
        return width - sum(taken) - _GAP * (len(taken) - 1)

    for key, least in _GIVES_WAY:
        if spare() >= 0:
            break
        wanted = widths[key] + spare() if key == "name" else 0
        widths[key] = min(widths[key], max(wanted, short if least == _SHORT else least))
    if widths["bar"]:
        widths["bar"] = min(_LONGEST_BAR, widths["bar"] + max(spare(), 0))
    return widths


def _widest(texts: Iterable[str]) -> int:
    from rich.cells import cell_len

    return max(cell_len(text) for text in texts)


def shortened(names: Sequence[str], width: int) -> list[str]:
    """The names in so many cells: their ends, or another part of them where the ends are the same.

    >>> shortened(["cifar10-resnet18_silu", "cifar10-resnet18_gelu"], 10)
    ['…et18_silu', '…et18_gelu']
    >>> shortened(["cifar10-resnet18_silu", "cifar100-resnet18_silu"], 10)
    ['cifar10-r…', 'cifar100-…']
    """
    most = max((len(name) for name in names), default=0)
    ends = [_part(name, width, 0) for name in names]
    starts = [_part(name[::-1], width, 0)[::-1] for name in names]
    between = ([_part(name, width, cut) for name in names] for cut in range(1, most))
    for parts in chain((ends, starts), between):
        if len(set(parts)) == len(set(names)):
            return parts
    return ends


def _part(name: str, width: int, cut: int) -> str:
    """A name without its last signs, and without as many of its first as do not fit."""
    from rich.cells import cell_len

    if cell_len(name) <= width:
        return name
    kept, after = name[: len(name) - cut], "…" if cut else ""
    before = ""
    while kept and cell_len(before + kept + after) > width:
        kept, before = kept[1:], "…"
    return before + kept + after
