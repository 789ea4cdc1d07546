"""Several trainings from one file, and the command lines."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from davis.cli import main
from davis.training import train
from davis.training.__main__ import main as plain_main
from davis.training.jobs import command_of, read_jobs, run_jobs

TINY = "resnet18(width=2)"


def call(*arguments: object) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert isinstance(end.value.code, int)
    return end.value.code, out.getvalue(), err.getvalue()


def written(folder: Path, text: str) -> Path:
    file = folder / "jobs.toml"
    file.write_text(text)
    return file


GOOD = "[[train]]\narch = 'resnet18'\ndataset = 'cifar10'\n"


def listing(place: Path, dataset: str | None = None) -> str:
    first = f'[[train]]\narch = "{TINY}"\ndataset = "{place}"\nepochs = 1\nbatch = 20\n'
    third = first.replace(str(place), dataset or str(place))
    return f"side_by_side = 2\n{first}{first}act = 'silu'\n{third}seed = 1\nact='gelu'\n"


def test_a_file_of_jobs(place: Path, tmp_path: Path) -> None:
    jobs, count = read_jobs(written(tmp_path, listing(place)), tmp_path / "out")
    assert count == 2
    assert [job.recipe.arch for job in jobs] == [TINY, "resnet18(act=silu, width=2)", "resnet18(act=gelu, width=2)"]
    assert jobs[1].folder == tmp_path / "out" / "colours-resnet18_silu_width2"
    assert command_of(jobs[0])[1:5] == ["-m", "davis.training", TINY, str(place)]
    assert jobs[0].state()["state"] == "not begun"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "is not TOML"),
        ("[[train]]\narch = 'resnet18'", "training 1 needs arch and dataset and may have act, batch"),
        ("[[train]]\narch = 'resnet18'\ndataset = 'cifar10'\nlr = 1", "training 1 needs arch and dataset"),
        ("[[train]]\narch = 'resnet'\ndataset = 'cifar10'", "training 1: unknown network 'resnet'"),
        ("[[train]]\narch = 'resnet18'\ndataset = 'cifar10'\n" * 2, "would share the folder"),
        ("side_by_side = 0\n[[train]]\narch = 'resnet18'\ndataset = 'cifar10'", "side_by_side must be a whole number"),
        ("", r"must hold tables \[\[train\]\]"),
        ("train = [1, 2]", r"training 1 must be a table \[\[train\]\] with arch and dataset, got 1"),
        ("[[train]]\narch = 3\ndataset = 'cifar10'", "training 1: arch must be a name in quotes, got 3"),
        (
            "[[train]]\narch = 'resnet18'\nact = 3\ndataset = 'cifar10'",
            "training 1: act must be a name in quotes, got 3",
        ),
        (
            "[[train]]\narch = 'resnet18'\ndataset = 3",
            r"jobs\.toml, training 1: dataset must be a name in quotes, got 3",
        ),
        (
            '[[train]]\narch = "resnet18"\ndataset = "a\\u0000b"',
            r"training 1: dataset must be a name, and 'a\\x00b' has a zero byte in it; take it out",
        ),
        (GOOD + "epochs = '3'", "training 1: epochs must be a whole number, got '3'"),
        (GOOD + "epochs = 1.5", "training 1: epochs must be a whole number, got 1.5"),
        (GOOD + "epochs = true", "training 1: epochs must be a whole number, got True"),
        (GOOD + GOOD + "act = 'silu'\nbatch = 64.0", r"training 2: batch must be a whole number, got 64\.0"),
        (GOOD + "images = false", "training 1: images must be a whole number, got False"),
        (GOOD + "rate = '0.1'", "training 1: rate must be a number, got '0.1'"),
        (GOOD + "decay = nan", "training 1: decay must be from 0 to 1000, got nan"),
        ("foo = 1\n" + GOOD, "has 'foo' at its top, where only tables"),
        (
            GOOD + "lr = 1",
            "and may have act, batch, decay, epochs, head, images, momentum, padding, rate, seed and not 'lr'",
        ),
        (
            GOOD.replace("resnet18", "resnet18(act=silu)") + "act = 'relu'",
            r"'resnet18\(act=silu\)' has an activation already, and 'relu' is given beside it; give one",
        ),
        (GOOD + "act = 'silu, width=8'", "unknown activation 'silu, width=8'; known: relu"),
        (GOOD + "seed = 99999999999999999999", "training 1: seed must be at most 4294967295"),
        ("side_by_side = true\n" + GOOD, "side_by_side must be a whole number from 1, got True"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_jobs(written(tmp_path, text), tmp_path)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not TOML"):
        read_jobs(tmp_path / "jobs.toml", tmp_path)


def test_two_seeds_are_two_trainings(tmp_path: Path) -> None:
    jobs, _ = read_jobs(written(tmp_path, GOOD + GOOD + "seed = 1\n" + GOOD + "seed = 2"), tmp_path)
    assert [job.folder.name for job in jobs] == [
        "cifar10-resnet18",
        "cifar10-resnet18_seed1",
        "cifar10-resnet18_seed2",
    ]


def test_bad_folders_do_not_lose_the_table_of_the_others(place: Path, tmp_path: Path) -> None:
    """Trained, broken log, broken card, weights gone, somebody else's: nothing is started, every row is there."""
    text = "".join(
        f'[[train]]\narch = "{TINY}"\ndataset = "{place}"\nepochs = 1\nbatch = 20\nseed = {seed}\n' for seed in range(5)
    )
    jobs, _ = read_jobs(written(tmp_path, text), tmp_path / "out")
    log, card, weights, foreign = (job.folder for job in jobs[1:])
    for job in jobs[:4]:
        train(job.recipe, job.folder, device="cpu")
    for file in ("card.json", "checkpoint.safetensors"):
        (log / file).unlink()
    (log / "log.jsonl").write_text("[]\n")
    (card / "card.json").write_text("{}")
    (weights / "weights.safetensors").unlink()
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    said: list[str] = []
    rows = run_jobs(jobs, say=said.append)
    assert [row["state"] for row in rows] == ["trained", "failed", "failed", "failed", "failed"]
    assert rows[0]["error"] is None
    messages = (f"line 1 of {log / 'log.jsonl'} is damaged", f"{card / 'card.json'} is no model card")
    messages += (f"{weights / 'weights.safetensors'} is missing", f"{foreign} is not empty and holds no training")
    for row, message in zip(rows[1:], messages, strict=True):
        assert row["error"].startswith(message)
        assert any(message in line for line in said)
    assert [entry.name for entry in foreign.iterdir()] == ["thesis.tex"]


def test_a_finished_training_needs_no_log(place: Path, tmp_path: Path) -> None:
    jobs, _ = read_jobs(
        written(tmp_path, f'[[train]]\narch = "{TINY}"\ndataset = "{place}"\nepochs = 2\nbatch = 20\n'), tmp_path
    )
    card = train(jobs[0].recipe, jobs[0].folder, device="cpu")
    (jobs[0].folder / "log.jsonl").write_text("[]\n")
    [row] = run_jobs(jobs)
    assert (row["state"], row["epoch"], row["error"]) == ("trained", "2/2", None)
    assert row["seconds"] == card["seconds"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_who_is_asked_to_end_ends_the_trainings(place: Path, tmp_path: Path, name: str) -> None:
    text = f'[[train]]\narch = "{TINY}"\ndataset = "{place}"\nepochs = 100000\nbatch = 20\n'
    file = written(tmp_path, text + text + "seed = 1\n")
    words = [sys.executable, "-m", "davis.training", "--jobs", file, "--out", tmp_path / "out", "--device", "cpu"]
    asked = getattr(signal, name)

    def heed() -> None:  # under nohup these tests, and what they begin, would not be asked
        signal.signal(asked, signal.SIG_DFL)

    parent = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    pids: list[str] = []
    try:
        assert parent.stderr is not None
        for _ in range(2):
            assert "begun" in parent.stderr.readline()
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        if not children.is_file():
            pytest.skip("no /proc that says whose children processes are")
        pids = children.read_text().split()
        assert len(pids) == 2
        parent.send_signal(asked)
        assert parent.wait(30) == 130
        until = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
            time.sleep(0.1)  # they save nothing, and end
        states = [Path(f"/proc/{pid}/stat").read_text().split()[2] for pid in pids if Path(f"/proc/{pid}").exists()]
        assert set(states) <= {"Z"}
    finally:
        parent.kill()
        for pid in pids:  # where one outlived it, this test failed
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        parent.communicate()


def test_jobs_notice_other_pictures(place: Path, tmp_path: Path) -> None:
    text = f'[[train]]\narch = "{TINY}"\ndataset = "{place}"\nepochs = 1\nbatch = 20\n'
    jobs, _ = read_jobs(written(tmp_path, text), tmp_path / "out")
    train(jobs[0].recipe, jobs[0].folder, device="cpu")
    with np.load(place / "test.npz") as arrays:
        images, labels = arrays["images"], arrays["labels"]
    np.savez(place / "test.npz", images=images[::-1], labels=labels)
    rows = run_jobs(jobs)
    assert (rows[0]["state"], rows[0]["test accuracy"] is not None) == ("failed", True)
    assert "tested with other pictures" in rows[0]["error"]


def test_a_child_that_ends_well_without_a_card_has_failed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does that was asked for help."""
    jobs, _ = read_jobs(written(tmp_path, f'[[train]]\narch = "{TINY}"\ndataset = "{place}"\n'), tmp_path / "out")
    monkeypatch.setattr("davis.training.jobs.command_of", lambda *_, **__: [sys.executable, "-c", "print('usage:')"])
    said: list[str] = []
    [row] = run_jobs(jobs, say=said.append)
    assert row["state"] == "failed"
    assert row["error"] == f"ended without a model card; see {jobs[0].folder / 'output.log'}"
    assert any("without a model card" in line for line in said)


def test_a_dataset_or_a_folder_that_looks_like_an_option(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(place, tmp_path / "--help")
    text = f'[[train]]\narch = "{TINY}"\ndataset = "--help"\nepochs = 1\nbatch = 20\n'
    jobs, _ = read_jobs(written(tmp_path, text), Path("-out"))
    assert plain_main(command_of(jobs[0], options=["--device", "cpu"])[3:]) == 0
    assert jobs[0].state()["state"] == "trained"
    status, _, _ = call(*shlex.split(jobs[0].recipe.command())[1:], "--out=-out/other", "--device", "cpu")
    assert status == 0


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one training runs at a time, got side_by_side=0"):
        run_jobs([], side_by_side=0)


@pytest.mark.slow
def test_jobs_run_side_by_side_and_a_bad_one_stops_nobody(place: Path, tmp_path: Path) -> None:
    file = written(tmp_path, listing(place, dataset=str(tmp_path / "nowhere")))
    jobs, count = read_jobs(file, tmp_path / "out")
    said: list[str] = []
    rows = run_jobs(jobs, side_by_side=count, options=["--device", "cpu"], say=said.append)
    assert [row["state"] for row in rows] == ["trained", "trained", "failed"]
    assert rows[0]["epoch"] == "1/1"
    assert 0 <= rows[0]["test accuracy"] <= 1
    assert "error: unknown dataset" in (jobs[2].folder / "output.log").read_text()
    assert rows[2]["error"].startswith("unknown dataset")
    assert rows[2]["error"].endswith(f"; see {jobs[2].folder / 'output.log'}")
    assert any("unknown dataset" in line for line in said)
    status, out, _ = call("train", "--jobs", file, "--out", tmp_path / "out", "--device", "cpu", "--json")
    assert status == 1
    assert [row["state"] for row in json.loads(out)] == ["trained", "trained", "failed"]


def test_the_verb(place: Path, tmp_path: Path) -> None:
    options = ("--epochs", 1, "--batch", 20, "--device", "cpu", "--out", tmp_path / "run", "--act", "silu")
    status, out, err = call("train", TINY, place, *options, "--json")
    card = json.loads(out)
    assert (status, card["arch"], card["folder"]) == (0, "resnet18(act=silu, width=2)", str(tmp_path / "run"))
    assert f"wrote {tmp_path / 'run'}" in err
    status, out, _ = call("train", TINY, place, *options)
    assert status == 0
    assert card["sha256"] in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a network and a dataset"),
        (["resnet18"], "give a network and a dataset"),
        (["resnet81", "cifar10"], "did you mean 'resnet18'?"),
        (["resnet18", "cifar12"], "unknown dataset 'cifar12'"),
        (["resnet18", "cifar10", "--head", "cosine"], "unknown head 'cosine'"),
        (["resnet18", "cifar10", "--seed", "99999999999999999999"], "seed must be at most 4294967295"),
        (["densenet101(depth=7, growth=1)", "cifar10"], "depth of densenet101 must be 10, 16, 22"),
        (["resnet18(width=99999999)", "cifar10"], "width of resnet18 must be at most 1024, got 99999999"),
        (["resnet18", "--jobs", "x.toml"], "--jobs names the networks"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[Any], message: str, tmp_path: Path) -> None:
    status, out, err = call("train", *arguments, "--data", tmp_path, "--out", tmp_path / "out")
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "foo"], "unknown device 'foo'; training runs on cpu or cuda"),
        (
            ["--device", "cpu", "--padding", "5000"],
            "a padding of 5000 would cut out windows with nothing of the picture",
        ),
        (["--device", "cpu", "--batch", "500"], "200 images do not fill one batch of 500"),
    ],
)
def test_a_refused_run_leaves_nothing_behind(
    arguments: list[Any], message: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = call("train", TINY, place, *arguments, "--out", tmp_path / "new" / "out")
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert message in err
    assert not (tmp_path / "new").exists()
    assert plain_main([TINY, str(place), *arguments, "--out", str(tmp_path / "new" / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--jobs", "jobs.toml", "--epochs", "9"], "--jobs names the networks, datasets and settings in its file"),
        (["resnet18", "cifar10", "--jobs", "jobs.toml"], "--jobs names the networks, datasets and settings"),
        (["resnet18", "cifar10", "--side-by-side", "2"], "--side-by-side and --no-mps are for several trainings"),
        (["--jobs", "jobs.toml", "--side-by-side", "0"], "at least one training runs at a time, got side_by_side=0"),
    ],
)
def test_the_plain_command_refuses_what_it_would_ignore(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, GOOD)
    assert plain_main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_finished_training_without_its_pictures_is_noted(place: Path, tmp_path: Path) -> None:
    options = ("--epochs", 1, "--batch", 20, "--device", "cpu", "--out", tmp_path / "run")
    first = call("train", TINY, place, *options, "--json")[1]
    shutil.rmtree(place)
    status, out, err = call("train", TINY, place, *options, "--json")
    assert (status, out) == (0, first)
    assert "trained already; its pictures are not there to be compared" in err


@pytest.mark.slow
def test_it_trains_without_typer_and_rich(place: Path, tmp_path: Path) -> None:
    """As on a machine where nothing can be installed; benchmarks too."""
    code = f"""
import sys
for name in ("typer", "click", "rich", "matplotlib", "jinja2", "pyarrow", "sklearn", "scipy", "timm"):
    sys.modules[name] = None
import davis.bench.describe, davis.bench.run
from davis.training.__main__ import main
sys.exit(main([{TINY!r}, {str(place)!r}, "--epochs", "1", "--device", "cpu", "--out", {str(tmp_path / "run")!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "colours-resnet18_width2"
    assert not (tmp_path / "run" / "curves.svg").exists()
