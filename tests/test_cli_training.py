"""What `davis train` says and shows: bars, lines of a log, the table, interrupts, closed streams."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

import davis.training
from davis.cli import main
from davis.cli.bars import Bars, Line, live_bars, shortened
from davis.cli.training import _show_several

TINY = "resnet18(width=2)"
LONG = "pictures_of_mushrooms-resnet18_silu_w2_seed12"  # 45 letters


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with train.npz and test.npz."""
    folder = tmp_path / "colours"
    folder.mkdir()
    drawn = np.random.default_rng(0)
    for name, count in (("train", 60), ("test", 30)):
        images = drawn.integers(0, 255, (count, 16, 16, 3), dtype=np.uint8)
        np.savez(folder / f"{name}.npz", images=images, labels=np.arange(count) % 3)
    return folder


def call(*arguments: object, out: io.StringIO | None = None, err: io.StringIO | None = None) -> tuple[int, str, str]:
    out, err = out or io.StringIO(), err or io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert isinstance(end.value.code, int)
    return end.value.code, out.getvalue(), err.getvalue()


def words(place: Path, epochs: int = 3) -> list[object]:
    return ["train", TINY, place, "--epochs", epochs, "--batch", 20, "--device", "cpu", "--out", place.parent / "run"]


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Any]:
    """Ctrl-C as soon as so many epochs are told of."""
    train = davis.training.train

    def install(epochs: int) -> contextlib.AbstractContextManager[None]:
        def run(*arguments: Any, watch: Callable[[Any], None], **rest: Any) -> Any:
            def told(progress: Any) -> None:
                watch(progress)
                if progress.epoch == epochs:
                    raise KeyboardInterrupt

            return train(*arguments, watch=told, **rest)

        @contextlib.contextmanager
        def patched() -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(davis.training, "train", run)
                yield

        return patched()

    return install


class TestBars:
    def drawn(self, width: int, *lines: Line) -> list[str]:
        console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
        console.print(Bars(lines))
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue().splitlines()

    def line(self, name: str = LONG, **changes: Any) -> Line:
        record = {"loss": 0.1234, "test_accuracy": 0.9312}
        given: dict[str, Any] = {"epoch": 50, "record": record, "part": 0.5, "left": 12345.0}
        return Line(name, 100, **given | changes)

    @pytest.mark.parametrize("width", [60, 80])
    @pytest.mark.parametrize("count", [1, 3])
    def test_accuracy_and_time_left_are_seen_on_narrow_terminals(self, width: int, count: int) -> None:
        names = [f"{LONG[:-2]}{10 + number}" for number in range(count)]
        lines = self.drawn(width, *(self.line(name) for name in names))
        assert len(lines) == count
        for line, name in zip(lines, names, strict=True):
            assert cell_len(line) <= width
            assert "50/100" in line
            assert "test 93.12%" in line
            assert line.rstrip().endswith("12345 s left")
            assert "━" in line
            assert "0:00" not in line
            assert line.count("…") == 1  # of the name alone
            assert line.split()[0].endswith(name[-12:])
            assert ("loss 0.1234" in line) == (width == 80)

    @pytest.mark.parametrize("width", [26, 30, 40, 50, 100, 120, 200])
    def test_every_width(self, width: int) -> None:
        [line] = self.drawn(width, self.line(left=12.0))
        assert cell_len(line) <= width
        assert "test 93.12%" in line
        assert "12 s left" in line
        assert ("0:00:0" in line) == (width >= 120)

    def test_all_is_there_where_there_is_room(self) -> None:
        [line] = self.drawn(160, self.line())
        assert line.startswith(f"{LONG}  ━━━━")
        for part in ("epoch 50/100", "loss 0.1234", "test 93.12%", "0:00:0", "12345 s left"):
            assert part in line

    def test_the_line_does_not_jump_after_the_first_epoch(self) -> None:
        [before] = self.drawn(80, Line(LONG, 100))
        [after] = self.drawn(80, self.line(left=100.0, epoch=1))
        assert before.split()[0] == after.split()[0]
        assert before.index("0/100") == after.index("1/100")

    def test_wide_letters_and_steering_ones(self) -> None:
        lines = self.drawn(60, self.line("图片" * 20), self.line("[red]a\x1b[2J\nb"))
        assert len(lines) == 2
        assert all(cell_len(line) <= 60 and "93.12%" in line and "s left" in line for line in lines)
        assert "\x1b[2J" not in lines[1]

    def test_nothing_runs(self) -> None:
        assert self.drawn(60) in ([], [""])

    @pytest.mark.parametrize(
        ("names", "expected"),
        [
            (["cifar10-resnet18"], ["…resnet18"]),
            (["short"], ["short"]),
            (["cifar10-resnet18_silu", "cifar10-resnet18_gelu"], ["…t18_silu", "…t18_gelu"]),
            (["cifar10-wrn28_10", "cifar100-wrn28_10"], ["cifar10-…", "cifar100…"]),
            (["a-pool-b-resnet18", "a-room-b-resnet18"], ["a-pool-b…", "a-room-b…"]),
            (["cifar10-resnet18_silu_width2", "cifar10-resnet18_gelu_width2"], ["…ilu_wid…", "…elu_wid…"]),
            (["same-long-name", "same-long-name"], ["…ong-name", "…ong-name"]),
        ],
    )
    def test_names_are_cut_where_they_do_not_differ(self, names: list[str], expected: list[str]) -> None:
        cut = shortened(names, 9)
        assert cut == expected
        assert all(len(name) <= 9 for name in cut)

    def test_on_a_terminal_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setenv("TERM", "xterm")
        for stream, seen in ((Terminal(), True), (io.StringIO(), False)):
            with contextlib.redirect_stderr(stream), live_bars() as bars:
                bars.lines = (self.line(),)
            assert ("test 93.12%" in stream.getvalue()) == seen

    def test_a_training_on_a_terminal(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setenv("TERM", "xterm")
        status, _, err = call(*words(place, 1), "--json", err=Terminal())
        assert status == 0
        assert re.search(r"1/1.*test \d+\.\d\d%.*0 s left", err)
        assert not re.search(r"^epoch 1/1 ", err, re.MULTILINE)  # that is for logs


class TestTable:
    def row(self, **changes: Any) -> dict[str, Any]:
        row = {"name": LONG, "state": "trained", "epoch": "100/100", "loss": 0.0036861, "test accuracy": 0.9439}
        return row | {"seconds": 12345.6, "folder": f"trained/{LONG}", "error": None} | changes

    @pytest.mark.parametrize("width", [60, 80])
    def test_on_a_narrow_terminal(self, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
        out, err = Terminal(), io.StringIO()
        error = f"ended with status 2; see trained/{LONG}/output.log, which has a line for each step"
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            rows = [self.row(), self.row(name=f"{LONG}3", state="failed", loss=None, error=error)]
            _show_several(rows)
        shown = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
        assert "…" not in shown
        assert "94.39%" in shown
        assert "0.0037" in shown
        assert "12346" in shown
        assert "folder" not in shown
        assert "error" not in shown
        names = "".join(line[: shown.index("state")].strip() for line in shown.splitlines()[1:])
        assert names == f"{LONG}{LONG}3"
        assert err.getvalue() == f"{LONG}3: {error}\n"

    def test_errors_of_jobs(self, tmp_path: Path) -> None:
        file = tmp_path / "jobs.toml"
        file.write_text(f'[[train]]\narch = "{TINY}"\ndataset = "nowhere"\n')
        folder = tmp_path / "out" / "nowhere-resnet18_width2"
        folder.mkdir(parents=True)
        (folder / "thesis.tex").touch()  # refused at once, before a process is started
        status, out, err = call("train", "--jobs", file, "--out", tmp_path / "out")
        assert (status, len(out.splitlines())) == (1, 2)
        assert out.split()[:6] == ["name", "state", "epoch", "loss", "test", "seconds"]
        assert err.splitlines()[-1].startswith(f"nowhere-resnet18_width2: {folder} is not empty")
        status, out, _ = call("train", "--jobs", file, "--out", tmp_path / "out", "--json")
        [row] = json.loads(out)
        assert (status, row["folder"]) == (1, str(folder))
        assert "is not empty" in row["error"]

    def test_interrupted_jobs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def run_jobs(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        file = tmp_path / "jobs.toml"
        file.write_text(f'[[train]]\narch = "{TINY}"\ndataset = "nowhere"\n')
        monkeypatch.setattr("davis.training.jobs.run_jobs", run_jobs)
        status, out, err = call("train", "--jobs", file, "--out", tmp_path / "out")
        assert (status, out) == (130, "")
        assert err == "stopped; the same command goes on after the last saved epoch of each\n"


class TestGoingOn:
    def test_stopped_resumed_and_done(self, place: Path, interrupted: Callable[[int], Any]) -> None:
        with interrupted(2):
            status, out, err = call(*words(place))
        assert (status, out) == (130, "")
        first, second, last = err.splitlines()
        assert re.fullmatch(r"epoch 1/3  loss \d+\.\d{4}  test \d+\.\d\d%  \d+ s left", first)
        assert second.startswith("epoch 2/3  loss")
        assert last == "stopped after epoch 2 of 3; the same command goes on from there"

        status, _, err = call(*words(place))
        first, second, last = err.splitlines()
        assert status == 0
        assert first == "colours-resnet18_width2: goes on after epoch 2 of 3"
        assert second.startswith("epoch 3/3  loss")
        assert second.endswith("  0 s left")
        assert last == f"wrote {place.parent / 'run'}"

        status, out, err = call(*words(place), "--json")
        assert (status, json.loads(out)["name"]) == (0, "colours-resnet18_width2")
        assert err == f"{place.parent / 'run'} was trained already; nothing is written\n"

    def test_between_checkpoints(self, place: Path, interrupted: Callable[[int], Any]) -> None:
        with interrupted(3):
            status, _, err = call(*words(place, 5), "--save-every", 2)
        said = "stopped after epoch 3 of 5; the same command goes on after epoch 2, the last that was saved"
        assert (status, err.splitlines()[-1]) == (130, said)
        with interrupted(3):
            status, _, err = call(*words(place, 5), "--save-every", 4)
        assert err.splitlines()[0] == "colours-resnet18_width2: goes on after epoch 2 of 5"
        assert err.splitlines()[-1] == said
        with interrupted(5):
            status, _, err = call(*words(place, 5), "--save-every", 4)
        assert err.splitlines()[-1] == "stopped after epoch 5 of 5; the same command goes on from there"

    def test_before_anything_was_saved(self, place: Path, interrupted: Callable[[int], Any]) -> None:
        with interrupted(0):
            status, _, err = call(*words(place))
        said = "stopped after epoch 0 of 3; none was saved, and the same command begins anew\n"
        assert (status, err) == (130, said)
        status, _, err = call(*words(place, 3))
        assert (status, "goes on" in err) == (0, False)

    def test_before_the_first_step(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def train(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(davis.training, "train", train)
        status, _, err = call(*words(place))
        assert status == 130
        assert err.startswith("stopped before it began; the same command")


class TestClosedStreams:
    @pytest.mark.parametrize("name", ["stdout", "stderr"])
    def test_a_missing_stream_is_no_terminal(self, name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        other = io.StringIO()
        monkeypatch.setattr(sys, "stdout", other)
        monkeypatch.setattr(sys, "stderr", other)
        monkeypatch.setattr(sys, name, None)
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words(place, 1)])
        getattr(sys, name).close()
        assert end.value.code == 0
        # What was meant for the one that is missing does not go to the other.
        assert ("wrote" in other.getvalue()) == (name == "stdout")
        assert ("sha256" in other.getvalue()) == (name == "stderr")

    @pytest.mark.slow
    @pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
    def test_from_a_shell(self, closed: str, place: Path) -> None:
        line = [sys.executable, "-m", "davis", *(str(word) for word in words(place, 1))]
        done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *line], capture_output=True, text=True)
        assert done.returncode == 0
        assert "Traceback" not in done.stderr
        assert (place.parent / "run" / "card.json").is_file()
        assert bool(done.stdout) == (closed == "2>&-")
        assert bool(done.stderr) == (closed == ">&-")


class TestOptions:
    def test_help(self) -> None:
        status, out, _ = call("train", "--help")
        text = " ".join(out.split())
        assert status == 0
        assert "cpu, cuda or cuda:1; default: cuda if there" in text
        assert ", mps" not in text
        assert "cuda:1, mps" in " ".join(call("fit", "--help")[1].split())
        assert "a folder that davis train wrote" in " ".join(
            call("inspect", "--help")[1].split() + call("fit", "--help")[1].split()
        )

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (["--side-by-side", 2], "--side-by-side is for several trainings"),
            (["--mps"], "--mps is for several trainings"),
            (["--no-mps"], "--no-mps is for several trainings"),
            (["--data", "."], "--data is the place of cifar10 and cifar100, and {} is a folder with its own pictures"),
        ],
    )
    def test_what_would_be_ignored_is_refused(self, given: list[object], message: str, place: Path) -> None:
        status, out, err = call(*words(place), *given)
        assert (status, out, len(err.splitlines())) == (2, "", 1)
        assert f"error: {message.format(place)}" in err
        assert not (place.parent / "run").exists()
