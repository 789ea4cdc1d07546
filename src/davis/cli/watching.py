"""The verb that watches a stream of scores."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from davis.cli.options import Json
from davis.cli.printing import LiveLine, cell, note, table

if TYPE_CHECKING:
    from davis.monitor import Alarm, Monitor, Window
    from davis.scores_file import Values

ALARM = 3  # the status that says so
_SAVE_EVERY = 5.0  # seconds


class Method(str, Enum):
    """How a shift is looked for."""

    online = "online"
    flags = "flags"


class AfterAlarm(str, Enum):
    """What happens to the scores behind an alarm."""

    latch = "latch"
    reset = "reset"
    stop = "stop"


def watch(
    scores: Annotated[str, typer.Argument(help="File of scores: csv, parquet, npz, jsonl; - reads JSON lines")] = "-",
    calibration: Annotated[
        Path | None, typer.Option(help="Such a file of held-out in-distribution scores, or a saved detector")
    ] = None,
    column: Annotated[str, typer.Option(help="The column of scores, in both")] = "score",
    method: Annotated[Method | None, typer.Option(help="Rank scores online, or count flags; default: online")] = None,
    bound: Annotated[float | None, typer.Option(help="Probability of a false alarm, ever; default: 0.01")] = None,
    alpha: Annotated[float | None, typer.Option(help="Flag rate not to be exceeded; default: 0.05")] = None,
    delta: Annotated[float | None, typer.Option(help="Chance that the threshold breaks it; default: 0.01")] = None,
    threshold: Annotated[float | None, typer.Option(help="Flag below it; default: from alpha and delta")] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Scores to a summary; default: 1000")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the draws that break ties; default: 0")] = None,
    state: Annotated[Path | None, typer.Option(help="File to go on from, if it is there, and to save to")] = None,
    after_alarm: Annotated[AfterAlarm, typer.Option(help="Let it stand, begin a new test, or stop")] = AfterAlarm.latch,
    as_json: Json = False,
) -> int:
    """Watch a stream of scores and raise an alarm when it shifts; status 3 if one was raised."""
    from davis.monitor import Alarm

    given = {"bound": bound, "alpha": alpha, "delta": delta, "threshold": threshold, "window": window, "seed": seed}
    asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if method is not None:
        asked["method"] = method.value
    monitor = _open(calibration, column, asked, state)
    alarm = monitor.alarm
    if alarm is not None and after_alarm is AfterAlarm.reset:
        monitor.reset()
        alarm = None
    elif alarm is not None:
        note(f"the alarm that {state} was saved with stands; --after-alarm reset begins a new test")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to end: the state is saved as by Ctrl-C
    line = LiveLine(shown=not (as_json and sys.stdout.isatty()))  # it would tear lines of results
    saved = _Saved(monitor, state)
    header = not as_json
    with saved:
        stopped = alarm is not None and after_alarm is AfterAlarm.stop
        for batch in () if stopped else _batches(scores, column, monitor.settings.window):
            events = saved.update(batch, after_alarm.value)
            if events:
                line.clear()
            for event in events:
                if isinstance(event, Alarm):
                    alarm = event
                    note(f"alarm at score {alarm.at}: the e-value is {alarm.e_value:.4g}")
                else:
                    _print_window(event, as_json, header=header)
                    header = False
            rate = _percent(monitor.flag_rate)
            line.show(f"{monitor.count:,} scores, e-value {monitor.e_value:.3g}, flagged {rate}")
            if alarm is not None and after_alarm is AfterAlarm.stop:
                break  # before another score is waited for
    line.clear()
    if monitor.window is not None:
        _print_window(monitor.window, as_json, header=header)
    _print_final({**monitor.summary(), "alarm": None if alarm is None else asdict(alarm)}, as_json)
    return ALARM if alarm is not None else 0


class _Saved:
    """A monitor that is saved every few seconds and at the end, also where that is an error or an interrupt."""

    def __init__(self, monitor: Monitor, file: Path | None) -> None:
        self.monitor = monitor
        self.file = file
        self._count = monitor.count
        self._whole = True  # not in the middle of a score
        self._due = time.monotonic() + _SAVE_EVERY

    def update(self, batch: Values | list[float], after_alarm: Any) -> list[Alarm | Window]:
        self._whole = False
        events = self.monitor.update(batch, after_alarm=after_alarm)
        self._whole = True
        if self.file is not None and time.monotonic() > self._due:
            self.monitor.save(self.file)
            self._due = time.monotonic() + _SAVE_EVERY
        return events

    def __enter__(self) -> _Saved:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        worth = kind is None or (self._whole and self.monitor.count > self._count)
        if self.file is not None and worth:
            self.monitor.save(self.file)


def _open(calibration: Path | None, column: str, asked: dict[str, Any], state: Path | None) -> Monitor:
    """A new monitor, or the saved one where there is one; it must then be what was asked for."""
    from davis.monitor import Monitor
    from davis.scores_file import read_scores, scores_sha256

    if state is not None and (state.is_dir() or not state.parent.is_dir()):
        raise ValueError(f"--state {state} must be a file in a folder that is there")  # before the work, not after it
    known = None if calibration is None else read_scores(calibration, column=column)
    if state is None or not state.exists():
        if known is None:
            raise ValueError("--calibration is needed: a file of in-distribution scores, or a saved detector")
        return Monitor(known, **asked)
    monitor = Monitor.load(state)
    for name, value in asked.items():
        if getattr(monitor.settings, name) != value:
            raise ValueError(
                f"{state} was saved with {name}={getattr(monitor.settings, name)}, and --{name} {value} was given; "
                "leave it out or choose another --state"
            )
    if known is not None and scores_sha256(known) != monitor.settings.calibration_sha256:
        raise ValueError(f"{state} was saved with other calibration scores than {calibration}; choose another --state")
    return monitor


def _batches(source: str, column: str, size: int) -> Iterator[Values | list[float]]:
    """The scores of a file in pieces, or those of stdin one by one, as they come."""
    from davis.scores_file import parse_json_lines, read_scores

    if source == "-":
        if sys.stdin.isatty():
            raise ValueError("no scores: give a file, or pipe JSON lines in, as `davis score --json` prints them")
        score = None
        for score in parse_json_lines(sys.stdin, column=column):
            yield [score]
        if score is None:
            raise ValueError("stdin ended without a score; did the command before it fail?")
    else:
        values = read_scores(source, column=column)
        for start in range(0, len(values), size):
            yield values[start : start + size]


_COLUMNS = ("first", "count", "flagged", "mean", "low", "median", "high", "e_value", "alarms")


def _print_window(window: Window, as_json: bool, *, header: bool) -> None:
    if as_json:
        print(json.dumps({"event": "window", **asdict(window)}), flush=True)
        return
    row = asdict(window) | {"flagged": _percent(window.flag_rate), "alarms": ", ".join(map(str, window.alarms[:3]))}
    if header:
        print("".join(f"{name:<11}" for name in _COLUMNS).rstrip())
    print("".join(f"{_short(row[name]):<11}" for name in _COLUMNS).rstrip(), flush=True)


def _print_final(final: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"event": "final", **final}))
        return
    print()
    final["flag_rate"] = _percent(final["flag_rate"])
    if final["flag_interval"]:
        final["flag_interval"] = " to ".join(map(_percent, final["flag_interval"]))
    if final["alarm"]:
        final["alarm"] = f"at score {final['alarm']['at']}"
    table([{"": name, " ": value} for name, value in final.items()], header=False)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else cell(value)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"
