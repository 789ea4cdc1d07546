"""Tables, notes and progress bars: results go to stdout, everything else to stderr."""

from __future__ import annotations

import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from davis.data import Images


class Watched:
    """Batches that may be read again, with a progress bar each time."""

    def __init__(self, title: str, batches: Images) -> None:
        self.title = title
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return bar(self.title, self.batches, len(self.batches))


def bar(title: str, batches: Iterable[Any], total: int, *, shown: bool = True) -> Iterator[Any]:
    """The batches, with a progress bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    hidden = not (shown and sys.stderr.isatty())
    # Left to itself, rich takes stdout over, and results printed meanwhile would land on stderr.
    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False, disable=hidden) as progress:
        yield from progress.track(batches, total=total, description=title)


class LiveLine:
    """One line on stderr that is written over, where that is a terminal; a few times a second."""

    def __init__(self, *, shown: bool = True) -> None:
        self.shown = shown and sys.stderr.isatty()
        self._next = 0.0

    def show(self, text: str) -> None:
        if self.shown and time.monotonic() >= self._next:
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
            self._next = time.monotonic() + 0.1

    def clear(self) -> None:
        if self.shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


def note(text: str) -> None:
    print(plain(text), file=sys.stderr)


def plain(text: str) -> str:
    """The text on one line: file names may hold line breaks and what else steers a terminal."""
    steering = ("Cc", "Cs", "Zl", "Zp")  # controls, lone surrogates, separators of lines and of paragraphs
    shown = (repr(sign)[1:-1] if unicodedata.category(sign) in steering else sign for sign in text)
    return "".join(shown)


def flat(record: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Names and values of a record, those of a record inside it as ``name.inner``."""
    for name, value in record.items():
        if isinstance(value, dict) and value:
            yield from ((f"{name}.{key}", inner) for key, inner in flat(value))
        else:
            yield name, value


def table(rows: Sequence[dict[str, Any]], *, header: bool = True, folded: str | None = None) -> None:
    """Print rows that have the same keys; files and pipes get whole lines, however long.

    On a narrow terminal the column ``folded`` goes on in the next line before any other is cut.
    """
    from rich.console import Console
    from rich.table import Column, Table

    if not rows:
        return
    # Neither [markup] nor :emoji: is meant by a file name.
    console = Console(markup=False, emoji=False, width=None if sys.stdout.isatty() else 10_000)
    columns = [
        Column(name, overflow="fold" if name == folded else "ellipsis", no_wrap=folded is not None and name != folded)
        for name in rows[0]
    ]
    table = Table(*columns, box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=header)
    for row in rows:
        style = "bold red" if row.get("verdict") == "OOD" else None
        table.add_row(*(cell(value) for value in row.values()), style=style)
    console.print(table, highlight=False)


def cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else plain(str(value))
