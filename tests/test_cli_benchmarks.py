"""The verbs bench, report and data: what they print and write, and with which status."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from PIL import Image

import davis
from davis.bench import describe
from davis.bench.cache import Cached
from davis.catalog import DATASETS
from davis.cli import main
from davis.data import Preprocessing
from davis.models import load_model
from davis.sets import FolderSet

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmark.md"
REPORTS = ["report.csv", "report.parquet", "report.md", "report.tex", "report.html"]
MODULE = "digits_model"
TINY = """
import torch
from torch import nn

def make(channels=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(channels, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))

def rgb():
    return make(3)
"""
RGB = f"{MODULE}:rgb"


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def shown(self) -> Any:
        """The JSON on stdout, which holds nothing else."""
        return json.loads(self.out)


Run = Callable[..., Result]


def call(*arguments: object) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert isinstance(end.value.code, int)
    return Result(end.value.code, out.getvalue(), err.getvalue())


def assert_fails(result: Result, message: str) -> None:
    """One line on stderr that holds the message, nothing on stdout, status 2."""
    assert (result.status, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1, result.err
    assert result.err.startswith("error: ")
    assert message in result.err


def contents(folder: Path, names: list[str]) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names}


def passes(folder: Path) -> dict[str, int]:
    """When each set was last passed over: a pass ends with writing its record."""
    return {file.parent.name: file.stat().st_mtime_ns for file in folder.glob("cache/*/record.json")}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's benchmark as ``digits.toml``, and what it names: a model, its weights, folders of images."""
    folder = tmp_path_factory.mktemp("workplace")
    (folder / f"{MODULE}.py").write_text(TINY)
    names: dict[str, Any] = {}
    exec(TINY, names)
    torch.save(names["make"]().state_dict(), folder / "digits.pth")
    blocks = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (folder / "digits.toml").write_text(blocks[0], encoding="utf-8")
    random = numpy.random.default_rng(0)
    for name, count, bright in (("train/0", 20, 256), ("train/1", 20, 200), ("held/0", 12, 256), ("held/1", 12, 200)):
        pictures(folder / name, random.integers(0, bright, (count, 8, 8, 3), dtype=numpy.uint8))
    pictures(folder / "crops", random.integers(0, 90, (15, 8, 8, 3), dtype=numpy.uint8))
    pictures(folder / "broken", random.integers(0, 90, (9, 8, 8, 3), dtype=numpy.uint8))
    (folder / "broken" / "3.png").write_bytes(b"no image")
    pictures(folder / "one", random.integers(0, 90, (1, 8, 8, 3), dtype=numpy.uint8))
    return folder


def pictures(folder: Path, values: Any) -> None:
    folder.mkdir(parents=True)
    for number, picture in enumerate(values):
        Image.fromarray(picture).save(folder / f"{number}.png")


@contextlib.contextmanager
def working_in(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        patch.delitem(sys.modules, MODULE, raising=False)
        patch.setenv("DAVIS_DATA", str(folder / "data"))
        patch.setenv("COLUMNS", "80")
        yield
        sys.modules.pop(MODULE, None)


@pytest.fixture
def run(workplace: Path) -> Any:
    """``davis`` with some arguments, in a folder with a model, images and a benchmark."""
    with working_in(workplace):
        yield call


@pytest.fixture(scope="module")
def finished(workplace: Path) -> tuple[Path, Result]:
    """The page's benchmark, run; nothing may change it."""
    with working_in(workplace):
        done = call("bench", "digits.toml", "--json")
    assert done.status == 0, done.err
    return workplace / "runs" / "digits", done


class TestBench:
    def test_the_benchmark_of_the_page(self, finished: tuple[Path, Result], workplace: Path) -> None:
        _, done = finished
        text = (workplace / "digits.toml").read_text(encoding="utf-8")
        assert len([line for line in text.splitlines() if line]) <= 10
        specs = describe.methods(describe.read(str(workplace / "digits.toml"))[0])
        assert (done.shown["name"], len(specs)) == ("digits", 5)
        assert sorted(row["detector"] for row in done.shown["rows"]) == sorted(specs)
        assert done.shown["files"] == [str(Path("runs", "digits", name)) for name in REPORTS]
        assert all((workplace / file).stat().st_size > 0 for file in done.shown["files"])
        for row in done.shown["rows"]:
            assert set(row) == {"detector", "farood FPR@95", "farood AUROC"}
            assert 0 <= row["farood AUROC"] <= 100
        assert 0 <= done.shown["accuracy"] <= 1

    def test_what_it_leaves(self, finished: tuple[Path, Result]) -> None:
        folder, done = finished
        assert {entry.name for entry in folder.iterdir()} == {
            *REPORTS,
            *("accuracy.json", "benchmark.json", "head.npz", "overhead.json", "results.json", "timings.json"),
            *("left_out.json", "warnings.json", "cache", "scores", "units"),
        }
        assert {file.name for file in (folder / "scores").iterdir()} == {"held.npz", "crops.npz"}
        with numpy.load(folder / "scores" / "crops.npz") as scores:
            assert {row["detector"] for row in done.shown["rows"]} == set(scores.files)
            assert all(scores[name].shape == (15,) for name in scores.files)
        record = json.loads((folder / "results.json").read_text())
        assert record["facts"]["images"] == {"train": 40, "held": 24, "crops": 15}
        assert record["facts"]["davis"] == davis.__version__
        claimed = json.loads((folder / "benchmark.json").read_text())["caches"]
        assert claimed == {name: Cached(next((folder / "cache").glob(f"{name}-*"))).identity for name in claimed}
        with (folder / "report.csv").open(newline="") as stream:
            rows = list(csv.DictReader(stream))
        shown = {row["detector"]: row["farood AUROC"] for row in done.shown["rows"]}
        assert {row["detector"]: round(float(row["AUROC"]), 2) for row in rows if row["dataset"] == "farood"} == shown

    def test_text(self, run: Run) -> None:
        done = run("bench", "digits.toml", "--out", "text", "--method", "energy")
        lines = [line.split() for line in done.out.splitlines()]
        assert done.status == 0
        assert lines[0] == ["detector", "farood", "FPR@95", "farood", "AUROC"]
        assert lines[1][:3] == ["mean", "+", "energy"]
        assert re.fullmatch(r"accuracy \d+\.\d\d% on \w+", done.out.splitlines()[-1])
        assert done.err.splitlines() == [f"wrote {Path('text', name)}" for name in REPORTS]

    def test_again_it_takes_no_pass(self, run: Run, finished: tuple[Path, Result]) -> None:
        folder, first = finished
        results = contents(folder, [*REPORTS, "results.json", "benchmark.json", "scores/crops.npz"])
        taken = passes(folder)
        timings = json.loads((folder / "timings.json").read_text())
        assert len(taken) == 3
        again = run("bench", "digits.toml", "--json")
        assert (again.status, again.shown) == (0, first.shown)
        assert passes(folder) == taken
        assert contents(folder, list(results)) == results
        assert json.loads((folder / "timings.json").read_text()) == timings

    def test_it_goes_on_where_it_was(self, run: Run, finished: tuple[Path, Result], workplace: Path) -> None:
        """One set is lost, as if the run had been killed before it: that one is taken anew, to the same bytes."""
        folder, first = finished
        expected = contents(folder, [*REPORTS, "results.json"])
        shutil.copytree(folder, workplace / "cut")
        for lost in ("report.html", "results.json", "scores/crops.npz"):
            (workplace / "cut" / lost).unlink()
        kept = next((workplace / "cut" / "cache").glob("crops-*"))
        shutil.rmtree(kept)
        taken = passes(workplace / "cut")
        done = run("bench", "digits.toml", "--out", "cut", "--json")
        assert (done.status, done.shown["rows"]) == (0, first.shown["rows"])
        assert contents(workplace / "cut", list(expected)) == expected
        after = passes(workplace / "cut")
        assert {name: after[name] for name in taken} == taken
        assert set(after) - set(taken) == {kept.name}

    def test_a_cache_may_be_shared(self, run: Run, finished: tuple[Path, Result], workplace: Path) -> None:
        folder, _ = finished
        taken = passes(folder)
        done = run("bench", "digits.toml", "--out", "vim", "--cache", folder / "cache", "--method", "vim", "--json")
        assert (done.status, [row["detector"] for row in done.shown["rows"]]) == (0, ["mean + vim"])
        assert passes(folder) == taken
        assert not (workplace / "vim" / "cache").exists()

    def test_other_methods_need_another_folder(self, run: Run, finished: tuple[Path, Result]) -> None:
        folder, _ = finished
        before = contents(folder, [*REPORTS, "results.json"])
        assert_fails(
            run("bench", "digits.toml", "--method", "vim"),
            f"{Path('runs', 'digits')} holds another benchmark, or this one with other data, methods or options",
        )
        assert contents(folder, list(before)) == before

    def test_half(self, run: Run, finished: tuple[Path, Result], workplace: Path) -> None:
        folder, first = finished
        done = run("bench", "digits.toml", "--half", "--out", "half", "--json")
        assert done.status == 0
        kinds = {numpy.load(file).dtype for file in (workplace / "half" / "cache").glob("*/max.npy")}
        assert kinds == {numpy.dtype("float16")}
        assert {numpy.load(file).dtype for file in (folder / "cache").glob("*/max.npy")} == {numpy.dtype("float32")}
        for ours, theirs in zip(done.shown["rows"], first.shown["rows"], strict=True):
            assert ours["detector"] == theirs["detector"]
            assert ours["farood AUROC"] == pytest.approx(theirs["farood AUROC"], abs=2)
        assert_fails(run("bench", "digits.toml", "--out", "half"), "holds another benchmark")

    def test_methods_that_move_images(self, run: Run, workplace: Path) -> None:
        arguments = ["bench", "digits.toml", "--method", "odin + msp", "--method", "msp", "--json"]
        both, one = run(*arguments, "--out", "moved"), run(*arguments, "--out", "still", "--no-pixels")
        assert sorted(row["detector"] for row in both.shown["rows"]) == ["mean + msp", "odin + mean + msp"]
        assert [row["detector"] for row in one.shown["rows"]] == ["mean + msp"]

    def test_method_takes_the_place_of_the_files(self, run: Run) -> None:
        given = ["--method", "max+energy", "--method", "max + energy", "--method", "knn(k=3)"]
        done = run("bench", "digits.toml", "--out", "given", *given, "--json")
        assert sorted(row["detector"] for row in done.shown["rows"]) == ["max + energy", "mean + knn(k=3)"]

    def test_shipped(self, run: Run) -> None:
        done = run("bench", "--shipped")
        assert (done.status, done.err) == (0, "")
        lines = dict(line.split(": ", 1) for line in done.out.splitlines())
        assert list(lines) == list(describe.shipped())
        assert all(lines.values())
        page = PAGE.read_text(encoding="utf-8")
        assert [name for name in lines if f"`{name}`" not in page] == []


class TestWithoutFile:
    def test_two_halves(self, run: Run, workplace: Path) -> None:
        given = ["--model", RGB, "--size", 8, "--id", "held", "--ood", "crops", "--ood", "train", "--method", "energy"]
        done = run("bench", *given, "--json")
        assert (done.status, done.shown["name"]) == (0, f"{MODULE}-rgb")
        record = json.loads((workplace / "runs" / f"{MODULE}-rgb" / "results.json").read_text())
        assert record["facts"]["images"] == {"fit": 12, "test": 12, "crops": 15, "train": 40}
        assert record["groups"] == {"crops": "far", "train": "far"}
        assert record["specs"] == ["mean + energy"]

    def test_fit_images_of_their_own(self, run: Run, workplace: Path) -> None:
        given = ["--model", RGB, "--size", 8, "--fit", "train", "--id", "held", "--ood", "crops", "--method", "energy"]
        done = run("bench", *given, "--out", "own", "--json")
        assert done.status == 0, done.err
        record = json.loads((workplace / "own" / "results.json").read_text())
        assert record["facts"]["images"] == {"train": 40, "held": 24, "crops": 15}
        assert record["id"] == "held"

    def test_ten_methods(self, run: Run, workplace: Path) -> None:
        random = numpy.random.default_rng(1)
        pictures(workplace / "many", random.integers(0, 256, (120, 8, 8, 3), dtype=numpy.uint8))
        done = run("bench", "--model", RGB, "--size", 8, "--id", "many", "--ood", "crops", "--out", "ten", "--json")
        assert done.status == 0, done.err
        assert len(done.shown["rows"]) == 10


class TestWarnings:
    GIVEN = ("bench", "--model", RGB, "--size", 8, "--fit", "few", "--id", "held", "--ood", "crops", "--out", "warned")
    METHODS = ("--method", "energy", "--method", "vim", "--method", "max + vim", "--method", "knn(k=99)")

    def test_are_said_once_with_the_name_of_the_detector(self, run: Run, workplace: Path) -> None:
        pictures(workplace / "few", numpy.random.default_rng(3).integers(0, 256, (4, 8, 8, 3), dtype=numpy.uint8))
        few = "vim: 4 images for 8 channels; their covariance is singular, fit on more images"
        none = "vim: training features leave no residual beyond 4 dimensions; the score is energy alone"
        for _ in range(2):  # a run that was finished says them again
            done = run(*self.GIVEN, *self.METHODS)
            said = [line for line in done.err.splitlines() if not line.startswith("wrote ")]
            assert said[:-1] == [
                f"warning: '{spec}': {text}" for spec in ("mean + vim", "max + vim") for text in (few, none)
            ]
            assert said[-1].startswith("left out 'mean + knn(k=99)': ")
        assert "`mean + vim`‡" in (workplace / "warned" / "report.md").read_text()


class TestClassFolders:
    GIVEN = ("bench", "--model", RGB, "--size", 8, "--ood", "crops", "--method", "nci", "--method", "mahalanobis")

    @pytest.fixture
    def sets(self, workplace: Path, tmp_path: Path) -> Path:
        for name in ("train", "held"):
            shutil.copytree(workplace / name, tmp_path / name)
        return tmp_path

    def bench(self, run: Run, sets: Path, out: str) -> tuple[Result, dict[str, float]]:
        given = ("--fit", sets / "train", "--id", sets / "held", "--out", sets / out, "--cache", sets / "cache")
        done = run(*self.GIVEN, *given, "--json")
        assert done.status == 0, done.err
        return done, {row["detector"]: row["farood AUROC"] for row in done.shown["rows"]}

    def accuracy(self, sets: Path) -> float:
        """What the network has on the images of class 1 that are tested."""
        images = FolderSet(sets / "held" / "1", Preprocessing(size=8))
        found = load_model(RGB)(torch.cat([batch for batch, _, _ in images.batches(0, 100)])).argmax(1)
        return float(found.eq(1).double().mean())

    @pytest.mark.parametrize("gone", [False, True])
    def test_a_class_without_test_images(self, run: Run, sets: Path, gone: bool) -> None:
        self.bench(run, sets, "before")
        shutil.rmtree(sets / "held" / "0")
        if not gone:
            (sets / "held" / "0").mkdir()
        done, _ = self.bench(run, sets, "after")
        if gone:  # one folder alone is no class
            assert done.shown["accuracy"] is None
        else:
            assert done.shown["accuracy"] == pytest.approx(self.accuracy(sets))
        assert all(line.startswith("wrote ") for line in done.err.splitlines())

    @pytest.mark.filterwarnings("default")
    def test_one_of_three_folders_for_two_classes(self, run: Run, sets: Path) -> None:
        shutil.copytree(sets / "held" / "0", sets / "held" / "more")
        done, _ = self.bench(run, sets, "out")
        assert done.shown["accuracy"] is None
        said = [line for line in done.err.splitlines() if not line.startswith("wrote ")]
        assert len(said) == 1
        assert "held has 3 class folders, 'more' not among those of" in said[0]
        assert "and the model 2 classes: not used as labels" in said[0]

    @pytest.mark.filterwarnings("default")
    def test_neither_set_has_the_models_classes(self, run: Run, sets: Path) -> None:
        for name in ("train", "held"):
            shutil.copytree(sets / name / "0", sets / name / "more")
        done, _ = self.bench(run, sets, "out")
        assert done.shown["accuracy"] is None
        said = [line for line in done.err.splitlines() if not line.startswith("wrote ")]
        assert [line.partition(": not used")[0] for line in said] == [
            f"warning: {sets / name} has 3 class folders and the model 2 classes" for name in ("train", "held")
        ]

    @pytest.mark.filterwarnings("default")
    def test_files_of_other_kinds_are_said_once(self, run: Run, sets: Path) -> None:
        (sets / "held" / "0" / "list.txt").touch()
        given = [*self.GIVEN, "--id", sets / "held", "--out", sets / "out"]  # read for both halves
        said = [line for line in run(*given).err.splitlines() if line.startswith("warning: ")]
        assert said == [f"warning: {sets / 'held'}: 1 files of other kinds left out (.txt)"]


class TestBrokenImages:
    GIVEN = ("bench", "--model", RGB, "--size", 8, "--id", "held", "--ood", "broken", "--method", "msp", "--json")

    def test_are_named_and_skipped(self, run: Run, workplace: Path) -> None:
        done = run(*self.GIVEN, "--out", "skipped")
        assert done.status == 1
        where = (workplace / "broken" / "3.png").resolve()
        left_out = "1 pictures of broken could not be read and were left out"
        assert done.err.splitlines() == [f"skipped: cannot read {where}: not an image, or of an unknown kind", left_out]
        again = run(*self.GIVEN, "--out", "skipped")
        assert (again.status, again.err.splitlines()) == (1, [left_out])
        assert_fails(run(*self.GIVEN, "--out", "skipped", "--strict"), "left out in an earlier run")
        assert done.shown["rows"][0]["detector"] == "mean + msp"
        with numpy.load(workplace / "skipped" / "scores" / "broken.npz") as scores:
            assert scores["mean + msp"].shape == (8,)

    def test_strict(self, run: Run, workplace: Path) -> None:
        assert_fails(run(*self.GIVEN, "--out", "strict", "--strict"), "3.png: not an image, or of an unknown kind")
        assert not (workplace / "strict" / "results.json").exists()


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "give a benchmark (a TOML file or a shipped name), or --model, --id and --ood"),
            (["digits.toml", "--model", RGB], "one of the two"),
            (["nothere"], "no benchmark 'nothere': no such file, and shipped are imagenet-crops-efficientnet_lite0"),
            (
                ["digits.toml", "--id", "held"],
                "--id, --fit, --calibration, --ood, --size, --mean and --std are for runs without a file",
            ),
            (["--model", RGB, "--id", "held"], "--model needs --id FOLDER and at least one --ood FOLDER"),
            (["--model", RGB, "--ood", "crops"], "--model needs --id FOLDER and at least one --ood FOLDER"),
            (["--model", RGB, "--id", "held", "--ood", "held"], "the OOD set held names the ID images"),
            (["--model", RGB, "--id", "held", "--ood", "held/0"], "6 of the 12 pictures of 0 are also in fit; give"),
            (["--model", RGB, "--id", "one", "--ood", "crops"], "1 pictures in"),
            (["--model", RGB, "--id", "gone", "--ood", "crops"], "gone"),
            (["--model", f"{MODULE}:gone", "--id", "held", "--ood", "crops"], f"module '{MODULE}' has no 'gone'"),
            (["digits.toml", "--method", "mspp"], "unknown stage 'mspp' in 'mspp'; did you mean 'msp'?"),
            (["digits.toml", "--weights", "gone.pth"], "no 'gone.pth' beside the benchmark"),
            (["digits.toml", "--batch", "0"], "Invalid value for '--batch'"),
        ],
    )
    def test_bench(self, run: Run, workplace: Path, arguments: list[str], message: str) -> None:
        assert_fails(run("bench", *arguments, "--out", "failed"), message)
        assert not (workplace / "failed").exists()

    def test_things_that_are_missing_have_a_line_each(self, run: Run, workplace: Path) -> None:
        data = workplace / "no\nwhere"
        done = run("bench", "imagenet-crops-mobilenet_v2", "--data", data)
        assert (done.status, done.out) == (2, "")
        first, *lines, last = done.err.splitlines()
        assert first == f"error: 5 things are missing; the data directory is {workplace / 'no where'}"
        assert [line[:5] for line in lines] == [f"  ({number})" for number in range(1, 6)]
        assert lines[0].startswith("  (1) 'mobilenet_v2_imagenet1k.pth'; looked for beside the benchmark (")
        names = ["imagenet_crops", "dtd10_crops", "sun5_crops", "plantdoc_crops"]
        for line, name in zip(lines[1:], names, strict=True):
            assert line[6:].startswith(f"{name} (")
            assert line.endswith(f"{DATASETS[name].count:,} images are expected at {DATASETS[name].places[0]}")
        assert last == "  (2), (3), (4), (5): not distributed: see docs/imagenet.md"
        done = run("bench", "paper-cifar10-densenet101", "--weights", "none", "--out", "failed")
        assert done.err.startswith("error: 8 things are missing; the data directory is ")
        assert done.err.count("davis data get cifar10\n") == 1  # train and test come together
        assert not (workplace / "failed").exists()

    def test_of_the_file(self, run: Run, workplace: Path) -> None:
        text = (workplace / "digits.toml").read_text()
        (workplace / "bad.toml").write_text(text.replace("[far]", "[fra]"))
        assert_fails(run("bench", "bad.toml"), "bad.toml: unknown field 'fra'; known: name, model")
        (workplace / "bad.toml").write_text(text.replace("[far]", "[far"))
        assert_fails(run("bench", "bad.toml"), "bad.toml is not TOML: ")

    def test_a_folder_with_other_things(self, run: Run, workplace: Path) -> None:
        (workplace / "mine").mkdir()
        (workplace / "mine" / "thesis.txt").write_text("x")
        done = run("bench", "digits.toml", "--out", "mine", "--method", "msp")
        assert_fails(done, "mine is not empty and holds no benchmark; choose another folder")


class TestReport:
    def test_writes_the_same_bytes(self, run: Run, finished: tuple[Path, Result], workplace: Path) -> None:
        folder, first = finished
        before = contents(folder, [*REPORTS, "results.json"])
        shutil.copytree(folder, workplace / "copied", ignore=shutil.ignore_patterns("report.*", "cache"))
        done = run("report", "copied", "--json")
        assert (done.status, done.err) == (0, "")
        assert done.shown["rows"] == first.shown["rows"]
        assert done.shown["files"] == [str(Path("copied", name)) for name in REPORTS]
        assert contents(workplace / "copied", list(before)) == before

    def test_of_no_run(self, run: Run) -> None:
        assert_fails(run("report", "crops"), "no finished benchmark there: ")
        assert_fails(run("report", "gone"), "no finished benchmark there: ")


class TestData:
    def test_nothing_there(self, run: Run, tmp_path: Path) -> None:
        done = run("data", "list", "--data", tmp_path, "--json")
        assert (done.status, done.err) == (0, "")
        assert [row["name"] for row in done.shown] == list(DATASETS)
        assert {row["state"] for row in done.shown} == {"missing"}
        assert all(row["how to get it"] and row["images"] > 0 for row in done.shown)
        assert all(Path(row["path"]).is_relative_to(tmp_path) for row in done.shown)
        assert list(tmp_path.iterdir()) == []

    def test_one_there_and_one_cut_short(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        whole, short = DATASETS["dtd10"], DATASETS["cifar10_test"]
        for entry, count in ((whole, whole.count), (short, 7)):
            images = numpy.zeros((count, 2, 2, 3), dtype=numpy.uint8)
            numpy.savez(tmp_path / entry.places[0], images=images)
        monkeypatch.setenv("DAVIS_DATA", str(tmp_path))
        rows = {row["name"]: row for row in run("data", "list", "--json").shown}
        assert rows["dtd10"]["state"] == "present"
        assert rows["dtd10"]["path"] == str(tmp_path / whole.places[0])
        assert rows["dtd10"]["how to get it"] == ""
        assert rows["cifar10_test"]["state"] == "wrong count"
        assert rows["cifar10_test"]["how to get it"] == "davis data get cifar10"
        others = {row["state"] for name, row in rows.items() if name not in ("dtd10", "cifar10_test")}
        assert others == {"missing"}

    def test_text(self, run: Run, tmp_path: Path) -> None:
        done = run("data", "list", "--data", tmp_path)
        lines = done.out.splitlines()
        assert lines[0].split() == ["name", "state", "images", "found", "role", "what", "how", "to", "get", "it"]
        assert [line.split()[:2] for line in lines[1:]] == [[name, "missing"] for name in DATASETS]

    def test_get_what_is_unknown(self, run: Run, tmp_path: Path) -> None:
        done = run("data", "get", "nothere", "--data", tmp_path)
        assert_fails(done, "unknown dataset 'nothere'; davis can get cifar10, cifar100")
        assert list(tmp_path.iterdir()) == []

    def test_get_what_must_be_got_by_hand(self, run: Run, tmp_path: Path) -> None:
        done = run("data", "get", "dtd10", "--data", tmp_path)
        assert_fails(done, "davis cannot fetch dtd10; get it by hand (1,200 images): ")

    def test_get_prints_the_files(self, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fetched(name: str, folder: Path, progress: Callable[[str, int, int], None]) -> list[Path]:
            for done in range(3):
                progress(f"https://example.org/{name}.tar.gz", done, 3)
            return [folder / f"{name}_train.npz", folder / f"{name}_test.npz"]

        monkeypatch.setattr("davis.fetch.get", fetched)
        done = run("data", "get", "cifar10", "--data", tmp_path)
        assert done.out.splitlines() == [str(tmp_path / "cifar10_train.npz"), str(tmp_path / "cifar10_test.npz")]
        assert (done.status, done.err) == (0, "https://example.org/cifar10.tar.gz\n")

    @pytest.mark.parametrize("verb", ["bench", "report", "data", "data list", "data get"])
    def test_help(self, run: Run, verb: str) -> None:
        done = run(*verb.split(), "--help")
        assert (done.status, done.err) == (0, "")
        assert done.out.startswith(f"Usage: davis {verb} ")
