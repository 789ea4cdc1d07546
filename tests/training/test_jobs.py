"""Several trainings from one file, and the command lines."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from davis.cli import main
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
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_jobs(written(tmp_path, text), tmp_path)


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
    assert any("ended with status 2" in line for line in said)
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
        (["resnet18", "--jobs", "x.toml"], "--jobs names the networks"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[Any], message: str, tmp_path: Path) -> None:
    status, out, err = call("train", *arguments, "--data", tmp_path, "--out", tmp_path / "out")
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert len(err.splitlines()) == 1


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
