"""The verb tune, and fit with the spec auto: what they print, and with which status."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from davis.artifact import read_record
from davis.cli import main
from davis.tuning import Tuning

MODULE = "tiny_model_of_test_cli_tuning"
TINY = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
"""
COMMON = ("--data", "data", "--size", 12, "--workers", 0)


class Result(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tuning")
    (folder / f"{MODULE}.py").write_text(TINY)
    random = np.random.default_rng(0)
    for name, count in (("data", 120), ("odd", 12)):
        for number in range(count):
            parent = folder / name / "abc"[number % 3] if name == "data" else folder / name
            parent.mkdir(parents=True, exist_ok=True)
            colour = random.integers(0, 200, (1, 1, 3))
            texture = random.integers(0, 56 if name == "data" else 1, (12, 12, 3))
            Image.fromarray((colour + texture).astype(np.uint8)).save(parent / f"{number:03}.png")
    return folder


@pytest.fixture
def run(workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(workplace)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Result(end.value.code, captured.out, captured.err)

    return call


def test_tune_prints_rows_choice_and_reasons(run: Run, workplace: Path) -> None:
    grid = "davis(gamma={0.5, 1, 2}) + energy; knn(k={3, 5, 5000})"
    done = run("tune", f"{MODULE}:make", grid, *COMMON, "--check", "odd", "--top", 3, "--plot", "surface.png")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].split() == ["candidate", "AUROC", "FPR95", "real", "AUROC", "real", "FPR95"]
    assert lines[4] == ""
    assert lines[5].startswith("Of 5 candidates '")
    assert "best in hindsight" in lines[-1]
    assert "left out 'mean + knn(k=5000)': knn(k=5000): k=5000 neighbours of 84 training rows" in done.err
    assert (workplace / "surface.png").stat().st_size > 1000


def test_json_and_markdown(run: Run, workplace: Path) -> None:
    done = run(
        "tune", f"{MODULE}:make", "{mean, max} + energy", *COMMON, "--proxy", "patches", "--proxy", "blur, mix",
        "--select", "fpr95", "--json", "--markdown", "table.md",
    )  # fmt: skip
    assert done.status == 0, done.err
    found = Tuning.from_json(done.out)
    assert found.proxies == ["patches", "blur", "mix"]
    assert found.select == "fpr95"
    assert found.images == {"fit": 0, "holdout": 36, "patches": 36, "blur": 36, "mix": 36}
    assert (workplace / "table.md").read_text() == found.to_markdown()


@pytest.mark.slow
def test_the_default_grid(run: Run) -> None:
    done = run("tune", f"{MODULE}:make", *COMMON, "--json")
    assert done.status == 0, done.err
    found = Tuning.from_json(done.out)
    assert len(found.rows) + len(found.refused) == 200
    assert {spec.split("k=")[1] for spec in found.refused} == {"100)", "200)"}  # of 84 images


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["davis(gamma={1, 2) + energy"], "'{' is never closed"),
        (["energy", "--proxy", "fog"], "unknown proxy 'fog'; known: noise"),
        (["energy", "--check", "nowhere"], "no such folder of images: nowhere"),
        (["energy", "--check", "odd", "--check", "./odd"], "two folders of --check have the same name"),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: list[str], message: str) -> None:
    done = run("tune", f"{MODULE}:make", *arguments, *COMMON)
    assert done.status == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert message in done.err


def test_fit_auto(run: Run, workplace: Path) -> None:
    done = run("fit", f"{MODULE}:make", "auto", *COMMON, "--out", "chosen", "--json")
    assert done.status == 0, done.err
    record = json.loads(done.out)
    assert read_record(workplace / "chosen")["spec"] == record["spec"]
    assert repr(record["spec"]) in record["why"]
