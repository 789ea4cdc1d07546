"""The driver of a borrowed GPU machine, all but the GPU: parts, schedule, what comes home."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from davis.bench import describe
from davis.bench.results import load
from davis.training import Recipe, train
from davis.training.jobs import Job
from davis.training.pictures import Data

ROOT = Path(__file__).resolve().parent.parent.parent
TINY = "resnet18(width=2)"


@pytest.fixture
def sitting(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("no benchmarks/ here: a source distribution leaves it out")
    spec = importlib.util.spec_from_file_location("gpu_sitting", ROOT / "benchmarks" / "gpu_sitting.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpu_sitting", module)
    spec.loader.exec_module(module)
    return module


def test_the_sixteen_trainings_have_their_benchmarks(sitting: ModuleType, tmp_path: Path) -> None:
    names = [job.recipe.name for job in sitting.jobs(tmp_path)]
    assert len(names) == len(set(names)) == 16
    assert names[:4] == ["cifar10-densenet101", "cifar100-densenet101", "cifar10-resnet18", "cifar100-resnet18"]
    for name in names:
        description = describe.read(f"paper-{name}" + ("-own" if "densenet" in name else ""))[0]
        assert description["model"]["name"] == f"davis.zoo:{name.replace('-', '_')}"
        assert description["model"]["weights"] == f"trained/{name}/weights.safetensors"
        assert description["id"]["fit"] == f"{name.partition('-')[0]}_train"
        assert len(describe.methods(description)) > 50


def test_parts_hold_the_sets_to_the_last_bit(
    sitting: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sitting, "SETS", ("first", "second"))
    monkeypatch.setattr(sitting, "MOSAIC", 50)
    data, parts, again = tmp_path / "data", tmp_path / "parts", tmp_path / "again"
    data.mkdir()
    drawn, sets = np.random.default_rng(0), {}
    for name, count in (("first", 130), ("second", 7)):
        sets[name] = drawn.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), drawn.integers(0, 100, count)
        np.savez(data / f"{name}.npz", images=sets[name][0], labels=sets[name][1])
    sitting.pack(SimpleNamespace(data=data, parts=parts, size=0.25))
    folders = sorted(folder.name for folder in parts.iterdir())
    assert folders == ["00", "01", "02"]
    assert all(sum(file.stat().st_size for file in folder.iterdir()) <= 2**18 for folder in parts.iterdir())
    (parts / "01").rename(tmp_path / "later")
    assert sitting.unpack(parts, again) == ["second"]
    (tmp_path / "later").rename(parts / "01")
    assert sitting.unpack(parts, again) == ["first", "second"]
    for name, (images, labels) in sets.items():
        with np.load(again / f"{name}.npz") as arrays:
            assert np.array_equal(arrays["images"], images)
            assert np.array_equal(arrays["labels"], labels)


def small_job(work: Path, dataset: Path | str = "colours", **settings: object) -> Job:
    chosen = {"arch": TINY, "dataset": str(dataset), "epochs": 2, "batch": 20} | settings
    recipe = Recipe(**chosen)  # type: ignore[arg-type]
    return Job(recipe, work / recipe.name)


def test_what_comes_home(
    sitting: ModuleType, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work, home = tmp_path / "there" / "work", tmp_path / "home"
    done, cut = small_job(work), small_job(work, arch="resnet18(act=silu, width=2)")
    monkeypatch.setattr(sitting, "chosen", lambda _: [done, cut])
    train(done.recipe, done.folder, data=data, device="cpu")

    def stop(progress: object) -> None:
        if progress.epoch == 1:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(cut.recipe, cut.folder, data=data, device="cpu", watch=stop)
    calls, last = 0, False
    while True:
        options = SimpleNamespace(
            home=work.parent, out=tmp_path / f"out{calls}", wait=0, last=last, size=0.01, room=0.05, largest=1
        )
        sitting.collect(options)
        files = list(options.out.iterdir())
        assert len(files) <= 8
        assert all(file.stat().st_size <= 0.01 * 2**20 + 1 for file in files if "tar" not in file.name)
        sitting.join(SimpleNamespace(fetched=options.out, target=home, tables=tmp_path / "tables"))
        calls += 1
        finished = " 0 pieces are left" in capsys.readouterr().out
        if finished and last:
            break
        last = finished or last
    assert calls > 2
    assert sorted((work / "sent").iterdir())
    for job, name in ((done, "weights.safetensors"), (cut, "checkpoint.safetensors")):
        assert (home / job.recipe.name / name).read_bytes() == (job.folder / name).read_bytes()
    assert json.loads((home / done.recipe.name / "card.json").read_text())["name"] == done.recipe.name
    train(cut.recipe, home / cut.recipe.name, data=data, device="cpu")  # goes on from what came home


def test_what_could_not_end_is_not_begun(sitting: ModuleType) -> None:
    small, wide, dense = sitting.Cost(2, 1), sitting.Cost(9, 9), sitting.Cost(12, 6, resumes=True)
    slack = sitting.SLACK
    for side_by_side, needed in (
        ([small], 2),
        ([wide, small], 10),  # the small one is done after two minutes, of which it had one
        ([wide, wide], 18),
        ([wide, dense, dense], 21),
        ([dense, dense, dense], 18),
    ):
        assert sitting.all_can_end(side_by_side, needed + slack + 1e-9)
        assert not sitting.all_can_end(side_by_side, needed + slack - 1e-9)
    for minutes, begun in ((0, True), (11.9, True), (12.1, False), (17.9, False), (18.1, True)):
        # It goes on elsewhere, so that it may be cut off, but not for the sake of others.
        assert sitting.all_can_end([dense, dense, dense], minutes + slack) is begun
    assert sitting.all_can_end([small, dense, dense, dense], 4 + slack + 1e-9)  # a minute each, until it is done


def test_what_is_left_of_a_training(sitting: ModuleType, data: Data, tmp_path: Path) -> None:
    job = small_job(tmp_path, epochs=4)
    train_task, bench_task = (sitting.Task(kind, job.recipe.name) for kind in ("train", "bench"))
    whole = sitting.COSTS["resnet18"]
    assert sitting.work_left(job, train_task) == whole

    def stop(progress: object) -> None:
        if progress.epoch == 1:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(job.recipe, job.folder, data=data, device="cpu", watch=stop)
    assert sitting.work_left(job, train_task) == sitting.Cost(0.75 * whole.alone, 0.75 * whole.full)
    assert sitting.work_left(job, bench_task).resumes
    (job.folder / "log.jsonl").write_text("damaged")
    assert sitting.work_left(job, train_task) == whole


@pytest.mark.slow
def test_the_schedule(
    sitting: ModuleType,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every training is done, then its benchmark, which fails here for want of a description and stops nobody."""
    work = tmp_path / "work"
    work.mkdir()
    todo = [small_job(work, place, seed=0), small_job(work, place, arch="resnet18(act=silu, width=2)")]
    late = small_job(work, place, arch="wrn28_10(factor=1)")
    monkeypatch.setattr(sitting, "chosen", lambda _: [*todo, late])
    costs = {"resnet18": sitting.Cost(2, 2), "wrn28_10": sitting.Cost(16, 16)}  # and a minute and a half more
    monkeypatch.setattr(sitting, "COSTS", costs)
    monkeypatch.setattr(sitting, "SETS", ())
    monkeypatch.setattr(sitting, "PAUSE", 0.0)
    options = argparse.Namespace(home=tmp_path, side_by_side=2, mps=False, compile=False, pixels=False, stay=17)
    sitting.work(options)
    out = capsys.readouterr().out
    assert out.count("train colours-resnet18_width2: begun") == 1
    assert out.count("bench colours-resnet18_width2: begun") == sitting.ATTEMPTS
    for job in todo:
        assert json.loads((job.folder / "card.json").read_text())["recipe"] == job.recipe.to_dict()
        assert "no benchmark 'paper-colours" in (job.folder / "bench.log").read_text()
    assert not late.folder.exists()  # the machine goes back before it could be done, and it could not go on elsewhere


@pytest.mark.heavy
def test_a_sitting_from_the_first_call_to_the_last(
    sitting: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two parts come in a call each, a network of the paper is trained meanwhile, its weights come home whole."""
    sent, there, home, raw = (tmp_path / name for name in ("sent", "there", "home", "raw"))
    raw.mkdir()
    monkeypatch.setattr(sitting, "SETS", ("cifar10_train", "cifar10_test"))
    for name, count in (("cifar10_train", 50_000), ("cifar10_test", 10_000)):
        labels = np.arange(count) % 10
        shades = np.broadcast_to((20 * labels).astype(np.uint8)[:, None, None, None], (count, 32, 32, 3))
        np.savez(raw / f"{name}.npz", images=shades, labels=labels)
    sitting.pack(SimpleNamespace(data=raw, parts=tmp_path / "packed", size=0.1))
    parts = sorted((tmp_path / "packed").iterdir())
    assert len(parts) > 1
    for name in ("src", "benchmarks"):
        shutil.copytree(ROOT / name, sent / name, ignore=shutil.ignore_patterns("output", "__pycache__"))

    def visit(number: int, *words: str) -> str:
        shutil.rmtree(sent / "benchmarks" / "output", ignore_errors=True)  # what was carried is gone in the next call
        for part in parts[number : number + 1]:
            shutil.copytree(part, sent / "benchmarks" / "output" / "parts" / part.name)
        script, out = sent / "benchmarks" / "gpu_sitting.py", tmp_path / f"out{number}"
        options = ["--home", there, "--epochs", "1", "--images", "128", "--no-compile", "--no-mps", *words]
        done = subprocess.run(
            [sys.executable, script, "visit", out, "--only", "cifar10-mobilenet_v2", *options],
            capture_output=True,
            text=True,
            cwd=sent,
        )
        assert done.returncode == 0, done.stderr
        sitting.join(SimpleNamespace(fetched=out, target=home, tables=tmp_path / "tables"))
        return done.stdout

    assert "begun as process" in visit(0)
    for number in range(1, len(parts)):
        assert "under way as process" in visit(number)
    card, until = there / "work" / "cifar10-mobilenet_v2" / "card.json", time.monotonic() + 900
    while not card.is_file() and time.monotonic() < until:
        time.sleep(1)
    assert "driver: not running" in visit(len(parts), "--last")  # it waited for the other image sets
    assert sitting.verdict(home / "cifar10-mobilenet_v2" / "weights.safetensors") == "whole"
    assert json.loads(card.read_text())["train_images"] == 128


@pytest.mark.slow
def test_the_speed_script_says_that_it_needs_cuda() -> None:
    script = ROOT / "benchmarks" / "training_speed.py"
    done = subprocess.run(
        [sys.executable, script, "resnet18"], capture_output=True, text=True, env={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "no CUDA" in done.stderr


def test_a_benchmark_goes_on_without_a_method_that_breaks(
    sitting: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real benchmark of a small trained network; one method wants more images than there are."""
    work, drawn = tmp_path / "work", np.random.default_rng(0)
    (work / "data").mkdir(parents=True)
    for name, count in (("train", 60), ("test", 30), ("far", 20)):
        images = drawn.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        np.savez(work / "data" / f"{name}.npz", images=images, labels=drawn.integers(0, 10, count))
    recipe = Recipe(arch="densenet101(depth=10, growth=4)", dataset=str(work / "data"), epochs=1, batch=20)
    train(recipe, work / "cifar10-tiny", device="cpu")
    (tmp_path / "tiny_of_sitting.py").write_text(
        "from davis.zoo import build\ndef make():\n    return build('densenet101(depth=10, growth=4)', classes=10)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    description = {
        "name": "tiny",
        "methods": ["energy", "knn(k=999)", "odin + msp"],
        "model": {"name": "tiny_of_sitting:make"},
        "preprocessing": {"size": 32, "resize": 32},
        "id": {"fit": "train.npz", "test": "test.npz"},
        "far": {"far": "far.npz", "absent": "svhn_cropped"},
        "near": {},
    }
    monkeypatch.setattr(describe, "read", lambda name: (description, work))
    (work / "cifar10-tiny" / "bench").mkdir()
    sitting.bench(SimpleNamespace(work=work, name="cifar10-tiny", pixels=False))
    results = load(work / "cifar10-tiny" / "bench")
    assert results.specs == ["mean + energy"]
    assert {row.set for row in results.rows} == {"far"}
    assert list(json.loads((work / "cifar10-tiny" / "bench" / "left_out.json").read_text())) == ["mean + knn(k=999)"]
    assert not (work / "cache" / "cifar10-tiny").exists()
