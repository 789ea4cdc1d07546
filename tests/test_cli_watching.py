"""The verb watch: what it reads, prints and saves, and with which status."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy

from davis.cli import main
from davis.cli.printing import LiveLine
from davis.monitor import Monitor
from davis.scores_file import scores_sha256

RANDOM = np.random.default_rng(0)
KNOWN = RANDOM.normal(size=300)
STEADY = RANDOM.normal(size=250)
SHIFTED = np.concatenate([STEADY, RANDOM.normal(-3, 1, 100)])


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON objects on the lines of stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``davis watch`` with some arguments, in a folder with scores."""
    monkeypatch.chdir(tmp_path)
    for name, scores in (("known", KNOWN), ("steady", STEADY), ("shifted", SHIFTED)):
        Path(f"{name}.csv").write_text("score\n" + "".join(f"{score!r}\n" for score in scores.tolist()))
    Path("lines.jsonl").write_text(lines(SHIFTED))

    def call(*arguments: object, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as end:
            main(["watch", *(str(argument) for argument in arguments)])
        captured = capsys.readouterr()
        status = end.value.code
        assert isinstance(status, int)
        return Result(status, captured.out, captured.err)

    return call


def lines(scores: np.ndarray) -> str:
    return "".join(json.dumps({"file": "a.png", "score": score}) + "\n" for score in scores.tolist())


def expected(scores: np.ndarray, **options: Any) -> Monitor:
    monitor = Monitor(KNOWN, **options)
    monitor.update(scores)
    return monitor


class TestWatch:
    def test_no_alarm(self, run: Run) -> None:
        done = run("steady.csv", "--calibration", "known.csv", "--window", 100, "--json")
        assert (done.status, done.err) == (0, "")
        *windows, final = done.rows
        assert [(row["event"], row["first"], row["count"]) for row in windows] == [
            ("window", 1, 100),
            ("window", 101, 100),
            ("window", 201, 50),
        ]
        assert windows[0]["mean"] == pytest.approx(STEADY[:100].mean())
        monitor = expected(STEADY, window=100)
        assert final == {"event": "final", **json.loads(json.dumps(monitor.summary()))}
        assert final["calibration_sha256"] == scores_sha256(KNOWN)
        assert {
            "n": 300,
            "alpha": 0.05,
            "delta": 0.01,
            "bound": 0.01,
            "method": "online",
            "seed": 0,
        }.items() <= final.items()
        assert final["e_value"] == windows[-1]["e_value"]

    @pytest.mark.parametrize("method", ["online", "flags"])
    @pytest.mark.parametrize("source", ["shifted.csv", "lines.jsonl", "-"])
    def test_alarm_from_every_source(self, run: Run, source: str, method: str) -> None:
        options = ("--calibration", "known.csv", "--method", method, "--bound", 0.001, "--json")
        done = run(source, *options, stdin=lines(SHIFTED) if source == "-" else "")
        monitor = expected(SHIFTED, method=method, bound=0.001)
        assert monitor.alarm is not None
        assert done.status == 3
        assert f"alarm at score {monitor.alarm.at}: " in done.err
        assert done.rows[-1]["alarm"]["at"] == monitor.alarm.at > 250
        assert done.rows[-1]["e_value"] == monitor.e_value
        assert done.rows[0]["alarms"] == [monitor.alarm.at]

    def test_after_alarm(self, run: Run) -> None:
        results = {
            policy: run("shifted.csv", "--calibration", "known.csv", "--after-alarm", policy, "--json")
            for policy in ("latch", "reset", "stop")
        }
        finals = {policy: done.rows[-1] for policy, done in results.items()}
        assert {done.status for done in results.values()} == {3}
        assert finals["latch"]["alarms"] == 1
        assert finals["latch"]["scores"] == 350
        assert finals["reset"]["alarms"] > 1
        assert finals["reset"]["test"] == finals["reset"]["alarms"] + 1
        assert finals["reset"]["alarm"]["at"] > finals["latch"]["alarm"]["at"] == finals["stop"]["alarm"]["at"]
        assert finals["stop"]["scores"] == finals["stop"]["alarm"]["at"]

    def test_stops_without_waiting_for_another_score(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        at = run("shifted.csv", "--calibration", "known.csv", "--after-alarm", "stop", "--json").rows[-1]["alarm"]["at"]

        def read(_: object, *, column: str) -> Iterator[float]:
            yield from SHIFTED[:at].tolist()
            raise AssertionError("waited for another line")

        monkeypatch.setattr("davis.scores_file.parse_json_lines", read)
        assert run("-", "--calibration", "known.csv", "--after-alarm", "stop", "--json").status == 3

    def test_text(self, run: Run) -> None:
        done = run("shifted.csv", "--calibration", "known.csv", "--window", 200)
        assert done.status == 3
        rows = [line.split() for line in done.out.splitlines()]
        assert rows[0] == ["first", "count", "flagged", "mean", "low", "median", "high", "e_value", "alarms"]
        assert [row[:2] for row in rows[1:3]] == [["1", "200"], ["201", "150"]]
        facts = {row[0]: " ".join(row[1:]) for row in rows[4:]}
        assert facts["alarm"].startswith("at score 2")
        assert facts["n"] == "300"
        assert facts["promise"].endswith("a probability of at most 0.01")
        assert "OOD" not in done.out  # flags are not the share of OOD images

    def test_parquet_npz_columns_and_a_saved_detector(self, run: Run, tmp_path: Path) -> None:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"energy": STEADY}), "steady.parquet")
        np.savez("known.npz", energy=KNOWN)
        (tmp_path / "detector").mkdir()
        packed = safetensors.numpy.save({"calibration.scores": np.sort(KNOWN)})
        (tmp_path / "detector" / "detector.safetensors").write_bytes(packed)
        record = {"tensors_sha256": hashlib.sha256(packed).hexdigest()}
        (tmp_path / "detector" / "detector.json").write_text(json.dumps(record))
        summary = json.loads(json.dumps(expected(STEADY).summary()))
        for calibration in ("known.npz", "detector"):
            done = run("steady.parquet", "--calibration", calibration, "--column", "energy", "--json")
            assert done.rows[-1] == {"event": "final", **summary}

    def test_scores_on_stdin_are_judged_as_they_come(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "known.npz", score=KNOWN)
        code = "from davis.cli import main; main(['watch', '--calibration', 'known.npz', '--window', '2', '--json'])"
        with subprocess.Popen(
            [sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(lines(STEADY[:2]))
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["count"] == 2  # while the stream is still open
            process.stdin.close()
            assert json.loads(process.stdout.readline())["event"] == "final"
            assert process.wait(timeout=30) == 0


class TestState:
    def test_goes_on_where_it_was(self, run: Run) -> None:
        options = ("--calibration", "known.csv", "--state", "state.json", "--window", 64, "--json")
        first = run("-", *options, stdin=lines(SHIFTED[:100]))
        second = run("-", "--state", "state.json", "--json", stdin=lines(SHIFTED[100:]))
        whole = run("shifted.csv", "--calibration", "known.csv", "--window", 64, "--json")
        assert (first.status, second.status) == (0, 3)
        assert second.rows[-1] == whole.rows[-1]
        assert first.rows[0] == whole.rows[0]
        assert second.rows[0] == whole.rows[1]
        third = run("-", *options, stdin=lines(STEADY[:1]))
        assert third.status == 3
        assert "the alarm that state.json was saved with stands" in third.err
        stopped = run("-", *options, "--after-alarm", "stop", stdin=lines(STEADY[:1]))
        assert (stopped.status, stopped.rows[-1]["scores"]) == (3, 351)
        again = run("-", *options, "--after-alarm", "reset", stdin=lines(STEADY[:1]))
        assert (again.status, again.rows[-1]["scores"], again.rows[-1]["test"]) == (0, 352, 2)

    def test_holds_all_that_came_before_the_stream_broke(self, run: Run) -> None:
        options = ("--calibration", "known.csv", "--state", "state.json", "--window", 64)
        done = run("-", *options, stdin=lines(STEADY[:130]) + "no JSON\n")
        assert done.status == 2
        assert done.err == "error: stdin, line 131 is not JSON: 'no JSON'\n"
        assert Monitor.load("state.json").summary() == expected(STEADY[:130], window=64).summary()

    def test_is_saved_while_the_stream_goes_on(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("davis.cli.watching._SAVE_EVERY", -1)
        counts = []
        monkeypatch.setattr(Monitor, "save", lambda monitor, _: counts.append(monitor.count))
        run("-", "--calibration", "known.csv", "--state", "state.json", stdin=lines(STEADY[:3]))
        assert counts == [1, 2, 3, 3]

    def test_is_not_made_by_a_failure(self, run: Run) -> None:
        assert run("gone.csv", "--calibration", "known.csv", "--state", "state.json").status == 2
        assert not Path("state.json").exists()

    def test_interrupted_in_the_middle_of_a_score_is_not_saved(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        take = Monitor._take

        def interrupt(monitor: Monitor, *arguments: float) -> object:
            if monitor.count == 5:
                raise KeyboardInterrupt
            return take(monitor, *arguments)

        monkeypatch.setattr(Monitor, "_take", interrupt)
        assert run("steady.csv", "--calibration", "known.csv", "--state", "state.json").status == 130
        assert not Path("state.json").exists()

    def test_must_be_what_is_asked_for(self, run: Run) -> None:
        run("steady.csv", "--calibration", "known.csv", "--state", "state.json")
        done = run("steady.csv", "--state", "state.json", "--bound", 0.5)
        assert done.err.startswith("error: state.json was saved with bound=0.01, and --bound 0.5 was given")
        done = run("steady.csv", "--state", "state.json", "--calibration", "shifted.csv")
        assert done.err.startswith("error: state.json was saved with other calibration scores than shifted.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["steady.csv"], "--calibration is needed"),
        (["gone.csv", "--calibration", "known.csv"], "no such file of scores: gone.csv"),
        (["steady.csv", "--calibration", "gone"], "no such file of scores: gone"),
        (["steady.csv", "--calibration", "known.csv", "--column", "x"], "no column 'x'; there is 'score'"),
        (["steady.csv", "--calibration", "known.csv", "--bound", "2"], "bound must lie between 0 and 1"),
        (["steady.csv", "--calibration", "known.csv", "--method", "fixed"], "'fixed' is not one of"),
        (["steady.csv", "--calibration", "known.csv", "--window", "0"], "Invalid value for '--window'"),
        (["steady.csv", "--calibration", "few.csv", "--method", "flags"], "20 calibration scores are too few"),
        (["steady.csv", "--calibration", "same.csv"], "all 20 calibration scores are 1"),
        (["few.csv", "--calibration", "holes.csv"], "holes.csv, line 3: the score is nan"),
        (["steady.csv", "--calibration", "empty.csv"], "there are no scores"),
        (["steady.csv", "--calibration", "known.csv", "--state", "gone/a.json"], "must be a file in a folder"),
        (["steady.csv", "--calibration", "known.csv", "--state", "."], "must be a file in a folder"),
        (["steady.csv", "--calibration", "known.csv", "--state", "few.csv"], "few.csv is not a saved monitor"),
        (["-", "--calibration", "known.csv"], "stdin, line 1: the score is nan"),
    ],
)
def test_errors_are_one_line(run: Run, arguments: list[str], message: str) -> None:
    for name, values in (("few", range(20)), ("same", [1] * 20), ("holes", [1, "nan"]), ("empty", [])):
        Path(f"{name}.csv").write_text("\n".join(map(str, ["score", *values])) + "\n")
    done = run(*arguments, stdin='{"score": NaN}\n')
    assert (done.status, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert done.err.startswith("error: ")
    assert message in done.err


def test_help_waits_for_nothing_slow() -> None:
    code = (
        "import sys; from davis.cli import main\n"
        "try: main(['watch', '--help'])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "--after-alarm" in done.stdout


def test_live_line_is_for_terminals(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    LiveLine().show("nothing")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    line = LiveLine()
    line.show("1 score")
    line.show("2 scores")  # too soon
    line.clear()
    assert capsys.readouterr().err == "\r\x1b[2K1 score\r\x1b[2K"


def test_needs_neither_torch_nor_a_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "known.npz", score=KNOWN)
    code = (
        "import sys; from davis.cli import main\n"
        "try: main(['watch', 'known.npz', '--calibration', 'known.npz'])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "assert not {'torch', 'PIL', 'pyarrow', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
