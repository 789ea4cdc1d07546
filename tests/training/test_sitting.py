"""The driver of a borrowed GPU machine, all but the GPU: parts, schedule, what comes home."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from davis import zoo
from davis.bench import describe
from davis.bench.results import load
from davis.training import Recipe, train
from davis.training.jobs import Job
from davis.training.pictures import Data

ROOT = Path(__file__).resolve().parent.parent.parent
TINY = "resnet18(width=2)"


def part(name: str) -> ModuleType:
    """A file of benchmarks/sitting, which is no part of the package."""
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("no benchmarks/ here: a source distribution leaves it out", allow_module_level=True)
    if "sitting" not in sys.modules:
        place = ROOT / "benchmarks" / "sitting"
        spec = importlib.util.spec_from_file_location(
            "sitting", place / "__init__.py", submodule_search_locations=[str(place)]
        )
        assert spec is not None
        sys.modules["sitting"] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"sitting.{name}")


plan, parts, machine, luggage = part("plan"), part("parts"), part("machine"), part("luggage")


def small_job(work: Path, dataset: Path | str = "colours", **settings: object) -> Job:
    chosen = {"arch": TINY, "dataset": str(dataset), "epochs": 2, "batch": 20} | settings
    recipe = Recipe(**chosen)  # type: ignore[arg-type]
    return Job(recipe, work / recipe.name)


def driving(home: Path, *, side_by_side: int) -> argparse.Namespace:
    """The options of a driver that rehearses."""
    plan.keep_stay(home / "work", 17)
    return argparse.Namespace(
        home=home, side_by_side=side_by_side, device="cpu", mps=False, compile=False, pixels=False
    )


def cut_off(job: Job, data: Data) -> None:
    """Train one epoch of it."""

    def stop(progress: object) -> None:
        if progress.epoch == 1:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(job.recipe, job.folder, data=data, device="cpu", watch=stop)


class TestPlan:
    def test_the_sixteen_trainings_have_their_benchmarks(self, tmp_path: Path) -> None:
        names = [job.recipe.name for job in plan.jobs(tmp_path)]
        assert len(names) == len(set(names)) == 16
        assert names[:4] == ["cifar10-resnet18", "cifar100-resnet18", "cifar10-densenet101", "cifar100-densenet101"]
        for name in names:
            description = describe.read(f"paper-{name}" + ("-own" if "densenet" in name else ""))[0]
            assert description["model"]["name"] == f"davis.zoo:{name.replace('-', '_')}"
            ours = None if name in zoo.shipped() else f"trained/{name}/weights.safetensors"
            assert description["model"].get("weights") == ours
            assert description["id"]["fit"] == f"{name.partition('-')[0]}_train"
            assert len(describe.methods(description)) > 50

    def test_what_is_at_home_is_not_trained_again(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(plan, "AT_HOME", tmp_path / "tables")
        monkeypatch.setattr(plan, "SHIPPED", tmp_path / "shipped")
        options = argparse.Namespace(home=tmp_path, epochs=100, images=None, only=[])
        assert len(plan.chosen(options)) == 16
        with_tables, shipped, with_card = "cifar10-wrn28_10", "cifar100-densenet101", "cifar10-resnet34"
        for file in (
            tmp_path / "tables" / with_tables / "results.json",
            tmp_path / "tables" / with_card / "card.json",  # neither tables nor weights: for nothing
            tmp_path / "shipped" / f"{shipped}.safetensors",
        ):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        left = [job.recipe.name for job in plan.chosen(options)]
        assert len(left) == 14
        assert {with_tables, shipped}.isdisjoint(left)
        options.only = [shipped]
        assert [job.recipe.name for job in plan.chosen(options)] == [shipped]
        options.only = ["resnet18"]
        with pytest.raises(SystemExit, match="takes names such as cifar10-resnet18_silu, got resnet18"):
            plan.chosen(options)

    def test_what_could_not_end_is_not_begun(self) -> None:
        small, wide, dense = plan.Cost(2, 1), plan.Cost(9, 9), plan.Cost(12, 6, resumes=True)
        slack = plan.SLACK
        for side_by_side, needed in (
            ([small], 2),
            ([wide, small], 10),  # the small one is done after two minutes, of which it had one
            ([wide, wide], 18),
            ([wide, dense, dense], 21),
            ([dense, dense, dense], 18),
        ):
            assert plan.all_can_end(side_by_side, needed + slack + 1e-9)
            assert not plan.all_can_end(side_by_side, needed + slack - 1e-9)
        for minutes, begun in ((0, True), (11.9, True), (12.1, False), (17.9, False), (18.1, True)):
            # It goes on elsewhere, so that it may be cut off, but not for the sake of others.
            assert plan.all_can_end([dense, dense, dense], minutes + slack) is begun
        assert plan.all_can_end([small, dense, dense, dense], 4 + slack + 1e-9)  # a minute each, until it is done

    def test_the_stay_is_that_of_the_last_call(self, tmp_path: Path) -> None:
        plan.began(tmp_path)
        for minutes in (20, 5):
            plan.keep_stay(tmp_path, minutes)
            assert plan.minutes_left(tmp_path) == pytest.approx(minutes, abs=0.2)

    def test_what_is_left_of_a_training(self, data: Data, tmp_path: Path) -> None:
        job = small_job(tmp_path, epochs=4)
        train_task, bench_task = (plan.Task(kind, job.recipe.name) for kind in ("train", "bench"))
        whole = plan.COSTS["resnet18"]
        assert plan.work_left(job, train_task) == whole
        cut_off(job, data)
        (job.folder / "checkpoint.safetensors").rename(tmp_path / "aside")
        assert plan.work_left(job, train_task) == whole  # a log alone is nothing to go on from
        (tmp_path / "aside").rename(job.folder / "checkpoint.safetensors")
        assert plan.work_left(job, train_task) == plan.Cost(0.75 * whole.alone, 0.75 * whole.full)
        assert plan.work_left(job, bench_task).resumes
        (job.folder / "log.jsonl").write_text("damaged")
        assert plan.work_left(job, train_task) == whole


def test_parts_hold_the_sets_to_the_last_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SETS", ("first", "second"))
    monkeypatch.setattr(parts, "MOSAIC", 50)
    data, packed, again = tmp_path / "data", tmp_path / "parts", tmp_path / "again"
    data.mkdir()
    drawn, sets = np.random.default_rng(0), {}
    for name, count in (("first", 130), ("second", 7)):
        sets[name] = drawn.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), drawn.integers(0, 100, count)
        np.savez(data / f"{name}.npz", images=sets[name][0], labels=sets[name][1])
    parts.pack(SimpleNamespace(data=data, parts=packed, size=0.25))
    folders = sorted(folder.name for folder in packed.iterdir())
    assert folders == ["00", "01", "02"]
    assert all(sum(file.stat().st_size for file in folder.iterdir()) <= 2**18 for folder in packed.iterdir())
    (packed / "01").rename(tmp_path / "later")
    assert parts.unpack(packed, again) == ["second"]
    (tmp_path / "later").rename(packed / "01")
    assert parts.unpack(packed, again) == ["first", "second"]
    for name, (images, labels) in sets.items():
        with np.load(again / f"{name}.npz") as arrays:
            assert np.array_equal(arrays["images"], images)
            assert np.array_equal(arrays["labels"], labels)


class TestLuggage:
    def places(self, tmp_path: Path) -> dict[str, Path]:
        return {"target": tmp_path / "home", "tables": tmp_path / "tables", "shipped": tmp_path / "shipped"}

    def test_what_comes_home(
        self, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Weights in pieces over many calls, of which one is never fetched; a checkpoint with the last ones."""
        there, home = tmp_path / "there", tmp_path / "home"
        work = there / "work"
        done, cut = small_job(work), small_job(work, arch="resnet18(act=silu, width=2)")
        late = small_job(work, arch="resnet34(width=2)")
        monkeypatch.setattr(plan, "asked", lambda _: [done, cut, late])
        train(done.recipe, done.folder, data=data, device="cpu")
        cut_off(cut, data)
        (done.folder / "bench.log").write_text("pass over test: 9 images\nscore a|b: 5 of 9\n")
        calls, last = 0, False
        while True:
            out = tmp_path / f"out{calls}"
            luggage.collect(
                SimpleNamespace(home=there, out=out, wait=0, last=last, stay=9, size=0.01, room=0.05, largest=1)
            )
            said, files = capsys.readouterr().out, list(out.iterdir())
            assert late.recipe.name not in said  # not begun
            assert said.count("| score a/b: 5 of 9 |") == 1
            assert len(files) <= 8
            assert all(file.stat().st_size <= 0.01 * 2**20 + 1 for file in files if "tar" not in file.name)
            calls += 1
            if calls == 2:
                continue
            luggage.join(SimpleNamespace(fetched=out, **self.places(tmp_path)))
            shutil.copy(home / "arrived.txt", work)  # travels with the next call
            if " 0 pieces are left" in said and last and len(files) == 1:
                break
            last = last or " 0 pieces are left" in said
        assert calls > 4
        for job, name in ((done, "weights.safetensors"), (cut, "checkpoint.safetensors")):
            assert (home / job.recipe.name / name).read_bytes() == (job.folder / name).read_bytes()
        assert not list(home.glob("*/pieces/*"))
        assert json.loads((home / done.recipe.name / "card.json").read_text())["name"] == done.recipe.name
        for name in ("card.json", "log.jsonl", "curves.svg"):
            assert (tmp_path / "tables" / done.recipe.name / name).is_file()
        assert not (tmp_path / "tables" / cut.recipe.name).exists()
        shipped = tmp_path / "shipped" / f"{done.recipe.name}.safetensors"
        assert shipped.read_bytes() == (done.folder / "weights.safetensors").read_bytes()
        assert shipped.with_suffix(".json").read_text() == (done.folder / "card.json").read_text()
        train(cut.recipe, home / cut.recipe.name, data=data, device="cpu")  # goes on from what came home

    @pytest.mark.slow
    def test_the_end_of_the_stay_ends_the_wait_and_the_work(
        self, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A driver that would go on for an hour; what it begins meanwhile comes home as a checkpoint."""
        work = tmp_path / "work"
        work.mkdir()
        cut, before = small_job(work), small_job(tmp_path)
        cut_off(before, data)
        monkeypatch.setattr(plan, "asked", lambda _: [cut])
        monkeypatch.setattr(luggage, "GRACE", 0.03)
        script = "import shutil, sys, time; time.sleep(1); shutil.copytree(*sys.argv[2:]); time.sleep(3600)"
        words = [sys.executable, "-c", script, machine.SCRIPT.name, before.folder, cut.folder]
        driver, out = subprocess.Popen(words, start_new_session=True), tmp_path / "out"
        (work / "driver.pid").write_text(str(driver.pid))
        assert machine.driver_of(work) == driver.pid
        began = time.monotonic()
        luggage.collect(
            SimpleNamespace(home=tmp_path, out=out, wait=600, last=False, stay=0.03, size=1, room=1, largest=1)
        )
        assert time.monotonic() - began < 60
        assert driver.wait(10) == -signal.SIGTERM
        assert [file.name.split(".")[1] for file in out.glob("*.checkpoint.*")] == ["checkpoint"]
        assert "driver: not running" in capsys.readouterr().out

    def test_damaged_pieces_are_asked_for_again(
        self, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        there, home = tmp_path / "there", tmp_path / "home"
        done = small_job(there / "work")
        monkeypatch.setattr(plan, "asked", lambda _: [done])
        train(done.recipe, done.folder, data=data, device="cpu")
        for damaged in (True, False):
            out = tmp_path / f"out-{damaged}"
            options = SimpleNamespace(home=there, out=out, wait=0, last=False, stay=9, size=1, room=1, largest=1)
            luggage.collect(options)
            if damaged:
                (piece,) = out.glob("*.weights.*")
                piece.write_bytes(piece.read_bytes()[:-1])
            luggage.join(SimpleNamespace(fetched=out, **self.places(tmp_path)))
            said = capsys.readouterr().out
            assert ("came damaged; they are given again" in said) is damaged
            assert (home / done.recipe.name / "weights.safetensors").is_file() is not damaged
            shutil.copy(home / "arrived.txt", there / "work")

    def test_networks_too_large_to_ship_have_their_card_and_log(
        self, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(luggage, "SHIPS", 1000)
        job = small_job(tmp_path)
        train(job.recipe, job.folder, data=data, device="cpu")
        luggage.keep(job.folder, SimpleNamespace(**self.places(tmp_path)))
        assert not (tmp_path / "shipped").exists()
        assert sorted(file.name for file in (tmp_path / "tables" / job.recipe.name).iterdir()) == [
            "card.json",
            "curves.svg",
            "log.jsonl",
        ]

    def test_what_has_no_tables_is_benchmarked_at_home(
        self, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """One whose weights were shipped by a sitting before this one; one whose weights never came; one done."""
        benched = []

        def bench(options: SimpleNamespace) -> None:
            benched.append(options.name)
            (options.work / options.name / "bench").mkdir()
            (options.work / options.name / "bench" / "results.json").write_text("{}")

        monkeypatch.setattr(machine, "bench", bench)
        there, places = tmp_path / "there", self.places(tmp_path)
        jobs = [small_job(there, arch=arch) for arch in (TINY, "resnet34(width=2)", "wrn28_10(factor=1)")]
        for job, came in zip(jobs, (True, False, True), strict=True):
            train(job.recipe, job.folder, data=data, device="cpu")
            if not came:
                (job.folder / "weights.safetensors").unlink()
            luggage.keep(job.folder, SimpleNamespace(**places))
        shipped, lost, done = (job.recipe.name for job in jobs)
        (places["tables"] / done / "results.json").write_text("{}")
        luggage.finish(SimpleNamespace(work=tmp_path / "work", **places))
        assert benched == [shipped]
        assert (places["tables"] / shipped / "results.json").read_text() == "{}"
        assert capsys.readouterr().out.startswith(f"{lost}: its weights are not here")


@pytest.mark.slow
def test_the_schedule(
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
    monkeypatch.setattr(plan, "chosen", lambda _: [*todo, late])
    costs = {"resnet18": plan.Cost(2, 2), "wrn28_10": plan.Cost(16, 16)}  # and a minute and a half more
    monkeypatch.setattr(plan, "COSTS", costs)
    monkeypatch.setattr(plan, "SETS", ())
    monkeypatch.setattr(machine, "PAUSE", 0.0)
    monkeypatch.setattr(machine, "SPACING", 0.0)
    machine.work(driving(tmp_path, side_by_side=2))
    out = capsys.readouterr().out
    assert out.count("train colours-resnet18_width2: begun") == 1
    assert out.count("bench colours-resnet18_width2: begun") == machine.ATTEMPTS
    for job in todo:
        assert json.loads((job.folder / "card.json").read_text())["recipe"] == job.recipe.to_dict()
        assert "no benchmark 'paper-colours" in (job.folder / "bench.log").read_text()
    assert not late.folder.exists()  # the machine goes back before it could be done, and it could not go on elsewhere


def test_what_can_end_goes_before_what_could_go_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "COSTS", {"densenet101": plan.Cost(12, 6, resumes=True), "resnet18": plan.Cost(2, 2)})
    jobs = {job.recipe.name: job for job in plan.jobs(tmp_path)}
    dense, small = (plan.Task("train", name) for name in ("cifar10-densenet101", "cifar10-resnet18_silu"))
    todo = {task.name: jobs[task.name] for task in (dense, small)}
    (tmp_path / "work").mkdir()
    driver = machine.Driver(tmp_path, todo, {}, driving(tmp_path, side_by_side=2))
    there = set(plan.SETS)
    for waiting, left, begun in (
        ([dense, small], 14, dense),
        ([dense, small], 13, small),
        ([dense], 13, dense),
        ([dense, small], 3, dense),  # neither ends; this one can go on
        ([small], 3, None),
    ):
        assert driver.next_of(waiting, there, left) == begun


@pytest.mark.slow
def test_a_crowded_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A card that takes two processes and turns a third one away, whose training is done later."""
    todo = [small_job(tmp_path / "work", seed=seed) for seed in range(4)]
    beside = tmp_path / "beside"
    script = f"""
import pathlib, sys, time
name, folder = sys.argv[1:]
there = pathlib.Path({str(beside)!r})
if len(list(there.iterdir())) == 2:
    sys.exit("CUDA error: CUDA-capable device(s) is/are busy or unavailable")
(there / name).touch()
time.sleep(4)
(there / name).unlink()
for file in ("card.json", "bench/results.json"):
    place = pathlib.Path(folder, file)
    place.parent.mkdir(exist_ok=True)
    place.touch()
"""

    def command(job: Job, *, data: Path, options: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", script, job.recipe.name, str(job.folder)]

    for folder in (tmp_path / "work", beside):
        folder.mkdir()
    monkeypatch.setattr(machine, "command_of", command)
    monkeypatch.setattr(plan, "chosen", lambda _: todo)
    monkeypatch.setattr(plan, "SETS", ())
    monkeypatch.setattr(machine, "PAUSE", 1.0)
    monkeypatch.setattr(machine, "CALM", 2.0)
    monkeypatch.setattr(machine, "SPACING", 0.0)
    machine.work(driving(tmp_path, side_by_side=4))
    out = capsys.readouterr().out
    assert out.count("the card is crowded") == out.count("status 1") > 0
    assert "for now 2 trainings at a time" in out
    assert "all is calm: 3 trainings at a time again" in out
    assert out.count("status 0") == 4
    assert out.endswith("done; failed: none\n")


@pytest.mark.slow
def test_what_hangs_is_ended_and_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training that says a word and then none; the second attempt goes well."""
    (tmp_path / "work").mkdir()
    job = small_job(tmp_path / "work")
    script = """
import pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
if not (folder / "tried").exists():
    (folder / "tried").touch()
    print("a word", flush=True)
    time.sleep(3600)
for file in ("card.json", "bench/results.json"):
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).touch()
"""
    monkeypatch.setattr(machine, "command_of", lambda job, **_: [sys.executable, "-c", script, str(job.folder)])
    monkeypatch.setattr(plan, "chosen", lambda _: [job])
    monkeypatch.setattr(plan, "SETS", ())
    monkeypatch.setattr(machine, "PAUSE", 0.0)
    monkeypatch.setattr(machine, "QUIET", {"train": 2.0, "bench": 2.0})
    machine.work(driving(tmp_path, side_by_side=1))
    out = capsys.readouterr().out
    assert out.count("silent for 2 s, ended") == 1
    assert "status -9" in out
    assert "status 0" in out


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_what_a_dead_driver_left_behind_is_ended(tmp_path: Path) -> None:
    """Its child would hold the folder that the next one trains in; the place of the call is not the driver's."""
    (tmp_path / "work").mkdir()
    script = (
        "import os, pathlib, subprocess, sys, time; pathlib.Path('here').touch(); "
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)']).pid, flush=True); "
        "time.sleep(3600)"
    )
    log, pid_file = tmp_path / "work" / "driver.log", tmp_path / "work" / "driver.pid"
    words, children = [sys.executable, "-c", script, machine.SCRIPT.name], []
    starter = f"import sys; sys.path[:0] = {[str(ROOT / 'src'), str(ROOT / 'benchmarks')]!r}\n"
    starter += "from pathlib import Path; from types import SimpleNamespace; from sitting import machine\n"
    starter += f"machine.start(SimpleNamespace(home=Path({str(tmp_path)!r})), {words!r})"
    for number in range(2):
        (tmp_path / f"call{number}").mkdir()
        done = subprocess.run(
            [sys.executable, "-c", starter], cwd=tmp_path / f"call{number}", capture_output=True, text=True, check=True
        )
        assert "begun as process" in done.stdout
        while len(log.read_text().split()) <= number:
            time.sleep(0.1)
        children.append(int(log.read_text().split()[number]))
        assert is_alive(children[0]) is (number == 0)
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert (tmp_path / "here").is_file()
    os.killpg(int(pid_file.read_text()), signal.SIGKILL)


def test_new_code_in_the_middle_of_a_sitting(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for number, renew in enumerate((False, False, True)):
        sent = tmp_path / f"sent{number}"
        for name in ("src", "benchmarks"):
            (sent / name).mkdir(parents=True)
            (sent / name / "code.py").write_text(str(number))
        (home / "incoming" / "tree" / "src").mkdir(parents=True)  # of a call that was cut off
        machine.land(sent, home, renew=renew)
        assert (home / "tree" / "src" / "code.py").read_text() == ("2" if renew else "0")


@pytest.mark.heavy
def test_a_sitting_from_the_first_call_to_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two parts come in a call each, a network of the paper is trained meanwhile, its weights come home whole.

    Every call sends another folder, and that of the call before is gone.
    """
    there, raw, home = (tmp_path / name for name in ("there", "raw", "home"))
    raw.mkdir()
    monkeypatch.setattr(plan, "SETS", ("cifar10_train", "cifar10_test"))
    for name, count in (("cifar10_train", 50_000), ("cifar10_test", 10_000)):
        labels = np.arange(count) % 10
        shades = np.broadcast_to((20 * labels).astype(np.uint8)[:, None, None, None], (count, 32, 32, 3))
        np.savez(raw / f"{name}.npz", images=shades, labels=labels)
    parts.pack(SimpleNamespace(data=raw, parts=tmp_path / "packed", size=0.1))
    packed = sorted((tmp_path / "packed").iterdir())
    assert len(packed) > 1

    def visit(number: int, *words: str) -> str:
        sent, out = tmp_path / f"sent{number}", tmp_path / f"out{number}"
        for name in ("src", "benchmarks"):
            shutil.copytree(ROOT / name, sent / name, ignore=shutil.ignore_patterns("output", "__pycache__"))
        for folder in packed[number : number + 1]:
            shutil.copytree(folder, sent / "benchmarks" / "output" / "parts" / folder.name)
        if (home / "arrived.txt").is_file():
            (sent / "benchmarks" / "output" / "work").mkdir(parents=True)
            shutil.copy(home / "arrived.txt", sent / "benchmarks" / "output" / "work")
        options = ["--home", there, "--epochs", "1", "--images", "128", "--no-compile", "--no-mps", "--device", "cpu"]
        script = sent / "benchmarks" / "gpu_sitting.py"
        done = subprocess.run(
            [sys.executable, script, "visit", out, "--only", "cifar10-mobilenet_v2", *options, *words],
            capture_output=True,
            text=True,
            cwd=sent,
        )
        assert done.returncode == 0, done.stderr
        join = ["join", out, home, "--tables", tmp_path / "tables", "--shipped", tmp_path / "shipped"]
        subprocess.run([sys.executable, script, *join], check=True)
        shutil.rmtree(sent)
        return done.stdout

    assert "begun as process" in visit(0)
    for number in range(1, len(packed)):
        assert "under way as process" in visit(number)
    card, until = there / "work" / "cifar10-mobilenet_v2" / "card.json", time.monotonic() + 900
    while not card.is_file() and time.monotonic() < until:
        time.sleep(1)
    assert "driver: not running" in visit(len(packed), "--last")  # it waited for the other image sets
    assert json.loads(card.read_text())["train_images"] == 128
    for file in (
        home / "cifar10-mobilenet_v2" / "weights.safetensors",
        tmp_path / "shipped" / "cifar10-mobilenet_v2.safetensors",
    ):
        assert file.read_bytes() == card.with_name("weights.safetensors").read_bytes()
    assert (tmp_path / "tables" / "cifar10-mobilenet_v2" / "log.jsonl").is_file()


@pytest.mark.slow
def test_the_speed_script_says_that_it_needs_cuda() -> None:
    script = ROOT / "benchmarks" / "training_speed.py"
    done = subprocess.run(
        [sys.executable, script, "resnet18"], capture_output=True, text=True, env={"CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "no CUDA" in done.stderr


def test_a_benchmark_says_what_it_is_at(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(machine, "say", print)
    clock = iter([0.0, 14, 16, 16, 30, 31, 31])
    monkeypatch.setattr(machine, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with machine.told("score svhn", 400) as step:
        for _ in range(4):
            step(100)
    assert capsys.readouterr().out.splitlines() == [
        "score svhn: 400 images",
        "score svhn: 200 of 400",
        "score svhn: 400 of 400",
    ]


def test_a_benchmark_goes_on_without_a_method_that_breaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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
    machine.bench(
        SimpleNamespace(work=work, name="cifar10-tiny", data=None, device=None, pixels=False, pixel_images=40)
    )
    results = load(work / "cifar10-tiny" / "bench")
    out = capsys.readouterr().out
    assert "pass over test: 30 images" in out
    assert "score far: 20 images" in out
    assert results.specs == ["mean + energy"]
    assert {row.set for row in results.rows} == {"far"}
    assert list(json.loads((work / "cifar10-tiny" / "bench" / "left_out.json").read_text())) == ["mean + knn(k=999)"]
    assert not (work / "cache" / "cifar10-tiny").exists()


@pytest.mark.slow
def test_the_small_benchmark_that_a_sitting_begins_with(tmp_path: Path) -> None:
    """On the CPU here; there on the card, before any network is trained."""
    results = part("check").tiny_benchmark(tmp_path, "cpu")
    assert results.facts["left_out"] == {}
    assert len(results.rows) == 2 * len(results.specs) > 100


@pytest.mark.gpu
def test_the_check_on_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    part("check").check(argparse.Namespace(steps=True))
    out = capsys.readouterr().out
    assert "left out: none" in out
    assert out.count(": ok") == 5
