"""The verb calibrate, and verdicts over many images: from images, from scores alone, and from bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from test_cli import FIT, MODEL, Run, assert_fails, fitted, run, workplace

from davis.artifact import read_record, saved_calibration

__all__ = ["fitted", "run", "workplace"]  # fixtures


def scores_csv(folder: Path, count: int = 40, *, classes: bool = False) -> Path:
    file = folder / "scores.csv"
    values = np.random.default_rng(0).normal(size=count)
    rows = [f"{number},{number % 3},{value!r}" for number, value in enumerate(values.tolist())]
    file.write_text("file,class,score\n" + "\n".join(rows) + "\n")
    return file


def test_from_scores_without_a_model(run: Run, fitted: Path, tmp_path: Path) -> None:
    file = scores_csv(tmp_path)
    before = safetensors.torch.load_file(fitted / "detector.safetensors")
    said = json.loads(run("calibrate", fitted, "--scores", file, "--tpr", 0.9, "--json").out)
    values = np.sort(np.loadtxt(file, delimiter=",", skiprows=1, usecols=2))
    assert said["threshold"] == values[3]  # floor(0.1 * 41) = 4th smallest
    assert (said["n"], said["alpha"], said["method"], said["delta"]) == (40, 0.1, "marginal", None)
    assert "exchangeable" in said["assumes"]
    record, found = read_record(fitted), saved_calibration(fitted)
    assert found is not None
    assert found.sha256 == said["scores_sha256"]
    assert record["calibration"]["thresholds"] == [values[3]]
    after = safetensors.torch.load_file(fitted / "detector.safetensors")
    assert before.keys() == after.keys()
    assert all((before[name] == after[name]).all() for name in before if name != "calibration.scores")
    verdicts = run("score", fitted, "flat", "--model", MODEL, "--json")
    assert all((row["score"] < values[3]) == (row["verdict"] == "OOD") for row in verdicts.rows)
    traced = {"method": "marginal", "n": 40, "alpha": 0.1, "delta": None, "scores_sha256": found.sha256}
    assert all(row["calibration"] == traced for row in verdicts.rows)


def test_the_printed_threshold_alone(run: Run, tmp_path: Path) -> None:
    text = run("calibrate", "--scores", scores_csv(tmp_path, 80), "--promise", "conditional", "--delta", 0.05).out
    assert "confidence of 95%" in text
    assert "threshold" in text


def test_from_images(run: Run, fitted: Path) -> None:
    said = json.loads(run("calibrate", fitted, "--data", "held", "--model", MODEL, "--tpr", 0.8, "--json").out)
    assert said["n"] == 30
    rows = run("score", fitted, "held", "--model", MODEL, "--json").rows
    assert sum(row["verdict"] == "OOD" for row in rows) == 6 - 1  # below the 6th smallest of 30
    assert sorted(row["p_value"] for row in rows)[:6] == [pytest.approx((i + 2) / 31) for i in range(6)]


def test_by_class_from_scores(run: Run, fitted: Path, tmp_path: Path) -> None:
    file = scores_csv(tmp_path, 300)
    said = json.loads(run("calibrate", fitted, "--scores", file, "--tpr", 0.9, "--by-class", "--json").out)
    assert said["threshold"] is None
    assert len(said["thresholds"]) == len(set(said["groups"]))
    assert len(said["groups"]) == 3
    inspected = json.loads(run("inspect", fitted, "--json").out)
    assert inspected["calibration"]["groups"] == said["groups"]


def test_fit_takes_the_promise(run: Run) -> None:
    options = ("--data", "data", "--holdout", "held", "--out", "promised", "--promise", "conditional", "--delta", 0.2)
    said = run(*FIT, *options, "--tpr", 0.9).rows[0]["calibration"]
    assert (said["method"], said["delta"], said["n"]) == ("conditional", 0.2, 30)


def test_a_fused_detector_from_the_shell(run: Run) -> None:
    spec = "max + energy | mean + knn(k=3)"
    done = run("fit", MODEL, spec, "--data", "data", "--out", "fused", "--size", 12, "--tpr", 0.8, "--json")
    assert_fails(done, "fused detectors are ranked against held-out images")


def test_verdicts_over_many_images(run: Run, fitted: Path) -> None:
    rows = run("score", fitted, "held", "--model", MODEL, "--json", "--fdr", 0.5).rows
    p = np.sort([row["p_value"] for row in rows])
    passed = [i + 1 for i, value in enumerate(p) if value <= 0.5 * (i + 1) / len(p) * (1 + 1e-12)]
    assert sum(row["verdict"] == "OOD" for row in rows) == max(passed, default=0)
    assert_fails(run("score", fitted, "held", "--model", MODEL, "--fdr", 2), "--fdr must lie between 0 and 1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give held-out images (--data FOLDER --model NAME) or their scores (--scores FILE)"),
        (["--scores", "none.csv"], "no such file of scores"),
        (["--data", "held"], "--data needs a saved detector and --model"),
        (["--scores", "few.csv"], "3 held-out images are too few to promise tpr=0.95; 19 are needed"),
        (["--scores", "nan.csv"], "NaN and infinite scores cannot be used"),
        (["--scores", "few.csv", "--column", "p"], "no column 'p'; there is 'score'"),
        (["--scores", "few.csv", "--by-class"], "name the saved detector"),
        (["--scores", "few.csv", "--tpr", "1.5"], "tpr must lie between 0 and 1"),
        (["gone", "--scores", "many.csv"], "no detector there"),
    ],
)
def test_bad_input_is_one_line(run: Run, workplace: Path, arguments: list[str], message: str) -> None:
    (workplace / "few.csv").write_text("score\n1\n2\n3\n")
    (workplace / "nan.csv").write_text("score\n1\nnan\n3\n")
    (workplace / "many.csv").write_text("score\n" + "\n".join(map(str, range(30))) + "\n")
    assert_fails(run("calibrate", *arguments), message)


@pytest.mark.filterwarnings("default")
def test_constant_scores_warn(run: Run, workplace: Path) -> None:
    (workplace / "same.csv").write_text("score\n" + "1.5\n" * 30)
    done = run("calibrate", "--scores", "same.csv")
    assert done.status == 0
    assert "all 30 held-out scores are 1.5" in done.err


def test_too_few_leaves_the_detector_alone(run: Run, fitted: Path, tmp_path: Path) -> None:
    before = (fitted / "detector.safetensors").read_bytes(), (fitted / "detector.json").read_bytes()
    assert_fails(run("calibrate", fitted, "--scores", scores_csv(tmp_path, 5)), "too few")
    assert before == ((fitted / "detector.safetensors").read_bytes(), (fitted / "detector.json").read_bytes())


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_scores_of_another_detector_are_refused(
    run: Run, workplace: Path, fitted: Path, tmp_path: Path, suffix: str
) -> None:
    file, other = tmp_path / f"scores.{suffix}", workplace / "other"
    done = run("fit", MODEL, "max + energy", "--data", "data", "--out", other, "--size", 12)
    assert done.status == 0, done.err
    for folder in (other, fitted):
        written = run("score", folder, "held", "--model", MODEL, *(["--csv", file] if suffix == "csv" else ["--json"]))
        if suffix == "jsonl":
            file.write_text(written.out)
        if folder == other:
            before = (fitted / "detector.json").read_bytes()
            assert_fails(run("calibrate", fitted, "--scores", file, "--tpr", 0.8), "holds scores of 'max + energy'")
            assert (fitted / "detector.json").read_bytes() == before
        else:
            assert run("calibrate", fitted, "--scores", file, "--tpr", 0.8).status == 0
