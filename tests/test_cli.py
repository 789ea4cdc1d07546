"""The command line: what it prints, where, and with which status."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from PIL import Image

import davis
from davis.artifact import read_record
from davis.cli import main
from davis.cli.options import recorded_adapter
from davis.data import Images, Preprocessing, image_files, split
from davis.families import FAMILIES
from davis.models import load_model
from davis.presets import preset, presets
from davis.stages import REGISTRY

MODULE = "tiny_model_of_test_cli"
TINY = """
import torch
from torch import nn

print("a module may print")

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

def grey():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

class Joint(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.head, self.head_dist = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x):
        x = self.body(x).mean((2, 3))
        return (self.head(x) + self.head_dist(x)) / 2

class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.token = nn.Conv2d(3, 8, 4, 4), nn.Parameter(torch.randn(1, 1, 8))
        self.first, self.last = (nn.MultiheadAttention(8, 2, batch_first=True) for _ in range(2))
        self.seen = nn.Identity()
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1)
        x = self.seen(x + self.first(x, x, x)[0])
        return self.head(self.norm(x + self.last(x, x, x)[0])[:, 0])

def joint():
    torch.manual_seed(0)
    return Joint()

def vit():
    torch.manual_seed(0)
    return ViT()
"""
MODEL = f"{MODULE}:make"


class Result(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, object]]:
        """The JSON objects on the lines of stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


@pytest.fixture
def run(workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``davis`` with some arguments, in a folder with a model and images."""
    monkeypatch.chdir(workplace)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        status = end.value.code
        assert isinstance(status, int)
        return Result(status, captured.out, captured.err)

    return call


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module with a model, ``data`` in three class folders, ``flat`` without, ``mixed`` with a broken image."""
    folder = tmp_path_factory.mktemp("workplace")
    (folder / f"{MODULE}.py").write_text(TINY)
    random = numpy.random.default_rng(0)
    for number in range(90):
        parent = folder / "data" / "abc"[number % 3]
        parent.mkdir(parents=True, exist_ok=True)
        values = random.integers(0, 256, (14, 12, 3), dtype=numpy.uint8)
        Image.fromarray(values).save(parent / f"{number:02}.png")
    (folder / "held").mkdir()
    for number in range(30):
        values = random.integers(0, 256, (14, 12, 3), dtype=numpy.uint8)
        Image.fromarray(values).save(folder / "held" / f"{number:02}.png")
    for name in ("flat", "mixed"):
        (folder / name).mkdir()
        for number, colour in enumerate(("red", "gray", "white")):
            Image.new("RGB", (12, 12), colour).save(folder / name / f"{number}.png")
    (folder / "mixed" / "1.png").write_bytes(b"no image")
    (folder / "empty").mkdir()
    (folder / "classes.txt").write_text("ant\nbee\ncat\n")
    return folder


@pytest.fixture
def fitted(run: Run, workplace: Path) -> Path:
    """A saved detector."""
    done = run("fit", MODEL, "max + react + energy", "--data", "data", "--out", "fitted", "--size", 12, "--tpr", 0.9)
    assert done.status == 0, done.err
    return workplace / "fitted"


def assert_fails(result: Result, message: str) -> None:
    """One line on stderr that holds the message, nothing on stdout, status 2; a module's own printing aside."""
    lines = [line for line in result.err.splitlines() if line != "a module may print"]
    assert result.status == 2
    assert result.out == ""
    assert len(lines) == 1, result.err
    assert lines[0].startswith("error: ")
    assert message in lines[0]


class TestFront:
    @pytest.mark.parametrize("arguments", [(), ("--help",)])
    def test_help(self, run: Run, arguments: tuple[str, ...]) -> None:
        done = run(*arguments)
        assert done.status == 0
        for verb in ("list", "inspect", "fit", "score", "explain", "demo"):
            assert f"\n  {verb} " in done.out

    @pytest.mark.parametrize("verb", ["list", "inspect", "fit", "score", "explain", "demo"])
    def test_help_of_a_verb(self, run: Run, verb: str) -> None:
        assert run(verb, "--help").out.startswith(f"Usage: davis {verb} ")

    def test_version(self, run: Run) -> None:
        assert run("--version") == Result(0, f"davis {davis.__version__}\n", "")

    @pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["fit", "--help"], ["score", "--help"]])
    def test_answers_without_what_is_slow_to_import(self, arguments: list[str]) -> None:
        code = (
            "import sys; from davis.cli import main\n"
            f"try: main({arguments!r})\n"
            "except SystemExit as end: assert end.code == 0, end.code\n"
            "slow = {'torch', 'numpy', 'PIL', 'torchvision', 'timm', 'transformers'} & set(sys.modules)\n"
            "assert not slow, slow"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["fits"], "No such command 'fits'"),
            (["list", "methods"], "'methods' is not one of"),
            (["fit", "--fast"], "No such option: --fast"),
            (["fit", MODEL], "Missing option '--data'"),
            (["score"], "Missing argument"),
            (
                ["score", "folder", "--model", MODEL],
                "a saved detector and images are needed, and only folder was given",
            ),
            (["fit", MODEL, "energy", "--data", "data", "--out", "x", "--batch", "0"], "Invalid value for '--batch'"),
            (["fit", MODEL, "energy", "--data", "data", "--out", "x", "--tpr", "much"], "Invalid value for '--tpr'"),
        ],
    )
    def test_bad_usage(self, run: Run, arguments: list[str], message: str) -> None:
        assert_fails(run(*arguments), message)

    @pytest.mark.parametrize("place", [0, 1])
    def test_debug_shows_where(self, run: Run, place: int) -> None:
        arguments = ["inspect", "gone:make"]
        arguments.insert(place, "--debug")
        done = run(*arguments)
        assert done.status == 2
        assert "Traceback" in done.err
        assert done.err.splitlines()[-1].startswith("error: cannot import 'gone'")

    def test_unforeseen_errors_are_one_line_too(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("two\nlines")

        monkeypatch.setattr("davis.models.load_model", fail)
        assert_fails(run("inspect", MODEL), "RuntimeError: two lines (--debug shows where)")

    def test_interrupt(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupt(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("davis.models.load_model", interrupt)
        assert run("inspect", MODEL) == Result(130, "", "")

    @pytest.mark.parametrize("said", ["Ran out of input", ""])
    def test_the_end_of_a_file_is_no_interrupt(self, run: Run, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
        def end(*_: object, **__: object) -> None:
            raise EOFError(said)

        monkeypatch.setattr("davis.models.load_model", end)
        assert_fails(
            run("inspect", MODEL), f"a file ends too early: {said or 'nothing is left to read'} (--debug shows"
        )

    @pytest.mark.slow
    def test_interrupt_from_outside(self, workplace: Path) -> None:
        (workplace / "sleeper_of_test_cli.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(60)")
        code = "from davis.cli import main; main(['inspect', 'sleeper_of_test_cli:make'])"
        command = [sys.executable, "-c", code]
        heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  tests in the background inherit deafness
        with subprocess.Popen(command, cwd=workplace, stderr=subprocess.PIPE, text=True, preexec_fn=heard) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "here\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 130
            assert process.stderr.read() == ""

    @pytest.mark.slow
    @pytest.mark.parametrize("form", ["--json", "text"])
    def test_reader_that_stops_early(self, form: str) -> None:
        arguments = ["list", "presets", *([form] if form == "--json" else [])]
        command = [sys.executable, "-c", f"from davis.cli import main; main({arguments!r})"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(10)
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(timeout=30) == 1


class TestList:
    def test_everything(self, run: Run) -> None:
        done = run("list")
        assert done.status == 0
        for title in ("stages", "families", "presets"):
            assert f"{title}\n\n" in done.out
        assert len(done.out.splitlines()) < len(presets())  # they are counted, not listed

    def test_everything_as_json(self, run: Run) -> None:
        lists = json.loads(run("list", "--json").out)
        assert {stage["name"] for stage in lists["stages"]} == set(REGISTRY)
        assert len(lists["families"]) == len(FAMILIES)
        assert sum(row["presets"] for row in lists["presets"]) == len(presets())

    def test_stages(self, run: Run) -> None:
        stages = {stage["name"]: stage for stage in json.loads(run("list", "stages", "--json").out)}
        assert stages["scale"]["kind"] == "shape"
        assert stages["scale"]["settings"] == {"p": 85, "rule": "topk", "rectify": False}
        assert stages["gradorth"]["experimental"]
        assert not stages["energy"]["experimental"]
        assert all(stage["does"] for stage in stages.values())
        text = run("list", "stages").out
        assert "p=85, rule=topk, rectify=false" in text
        assert text.count("(experimental)") == sum(stage["experimental"] for stage in stages.values())

    def test_lines_are_whole_outside_a_terminal(self, run: Run) -> None:
        [line] = [line for line in run("list", "stages").out.splitlines() if " adascale_l " in line]
        assert len(line) > 80

    def test_families(self, run: Run) -> None:
        rows = json.loads(run("list", "families", "--json").out)
        assert [row["example"] for row in rows] == [family.example for family in FAMILIES]
        assert "resnet18" in run("list", "families").out

    def test_presets(self, run: Run) -> None:
        rows = json.loads(run("list", "presets", "--id", "cifar10", "--arch", "densenet101", "--json").out)
        assert [row["spec"] for row in rows] == [row.spec for row in presets(id="cifar10", arch="densenet101")]
        assert "DAVIS(m)+Energy" in run("list", "presets", "--arch", "resnet50").out

    def test_refuses(self, run: Run) -> None:
        assert_fails(run("list", "presets", "--id", "cifar11"), "unknown id: 'cifar11'; did you mean 'cifar10")
        assert_fails(run("list", "stages", "--id", "cifar10"), "--id and --arch choose among presets")


class TestInspect:
    def test_model(self, run: Run) -> None:
        found = json.loads(run("inspect", MODEL, "--size", 16, "--json").out)
        assert (found["tap"], found["head"], found["channels"], found["classes"]) == ("1", "4", 8, 3)
        assert found["image_shape"] == [3, 16, 16]
        assert found["map_shape"] == [8, 14, 14]
        assert found["check"] == "passed"
        assert "passed" in run("inspect", MODEL, "--size", 16).out

    @pytest.mark.slow
    def test_zoo_model(self, run: Run) -> None:
        found = json.loads(run("inspect", "mobilenet_v3_small", "--weights", "none", "--size", 64, "--json").out)
        assert (found["tap"], found["head"], found["classes"]) == ("features", "classifier.3", 1000)
        assert "hardswish" in found["neck"]
        assert found["preprocessing"]["resize"] == 73  # the zoo's 256 for 224

    def test_kinds(self, run: Run) -> None:
        found = json.loads(run("inspect", f"{MODULE}:joint", "--size", 16, "--json").out)
        assert (found["kind"], found["head"], found["map_shape"]) == ("map", "head + head_dist", [8, 14, 14])
        found = json.loads(run("inspect", f"{MODULE}:vit", "--size", 16, "--tokens", "class", "--json").out)
        assert (found["kind"], found["tap"], found["map_shape"]) == ("class token", "seen", [8, 16])
        assert_fails(run("inspect", f"{MODULE}:vit", "--size", 16), "(--tokens class)")
        assert_fails(run("inspect", MODEL, "--size", 16, "--tokens", "class"), "leave tokens= out")
        assert_fails(run("inspect", MODEL, "--size", 16, "--tokens", "all"), "'all' is not")

    @pytest.mark.filterwarnings("always:the last map")
    def test_a_map_of_one_position_is_said(self, run: Run) -> None:
        done = run("inspect", MODEL, "--size", 3)
        assert done.status == 0
        assert done.err.count("warning: the last map of Sequential has one position") == 1

    def test_grey_model(self, run: Run) -> None:
        arguments = ("--size", 16, "--mean", "0", "--std", "1", "--json")
        assert json.loads(run("inspect", f"{MODULE}:grey", *arguments).out)["image_shape"] == [1, 16, 16]

    def test_own_tap_and_head(self, run: Run) -> None:
        found = json.loads(run("inspect", MODEL, "--size", 16, "--tap", "1", "--head", "4", "--json").out)
        assert found["tap"] == "1"
        assert_fails(run("inspect", MODEL, "--size", 16, "--tap", "0", "--head", "4"), "do not give the model's logits")
        assert_fails(run("inspect", MODEL, "--size", 16, "--tap", "1"), "without head")

    def test_saved_detector(self, run: Run, fitted: Path) -> None:
        assert json.loads(run("inspect", fitted, "--json").out) == read_record(fitted)
        text = run("inspect", fitted).out
        assert "max + react + energy" in text
        assert "calibration.thresholds" in text

    def test_a_training(self, run: Run, workplace: Path) -> None:
        """Its folder is a model name; a detector that was saved into the same folder is what is meant there."""
        random = numpy.random.default_rng(0)
        images, labels = random.integers(0, 256, (20, 16, 16, 3), dtype=numpy.uint8), numpy.arange(20) % 2
        (workplace / "pictures").mkdir()
        for name in ("train", "test"):
            numpy.savez(workplace / "pictures" / f"{name}.npz", images=images, labels=labels)
        options = ("--epochs", 1, "--batch", 20, "--device", "cpu", "--out", "training")
        assert run("train", "resnet18(width=2)", "pictures", *options).status == 0
        found = json.loads(run("inspect", "training", "--json").out)
        assert (found["classes"], found["image_shape"], found["check"]) == (2, [3, 16, 16], "passed")
        fit = run("fit", "training", "max + energy", "--data", "data", "--out", "training", "--tpr", 0.9)
        assert fit.status == 0, fit.err
        assert json.loads(run("inspect", "training", "--json").out)["spec"] == "max + energy"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["resnet19"], "unknown model 'resnet19'; did you mean"),
            (["gone:make"], "cannot import 'gone'"),
            ([f"{MODULE}:gone"], "has no 'gone'"),
            (["empty"], "no detector there"),
            ([MODEL, "--size", "2"], "does not take images of shape (3, 2, 2)"),
            ([MODEL, "--size", "0"], "size must be a whole number"),
            ([MODEL, "--weights", "gone.pth"], "gone.pth is no file"),
        ],
    )
    def test_refuses(self, run: Run, arguments: list[str], message: str) -> None:
        assert_fails(run("inspect", *arguments), message)

    def test_no_network(self, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise OSError("network is unreachable")

        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        monkeypatch.setattr("torch.hub.download_url_to_file", refuse)
        done = run("inspect", "resnet18")
        assert (done.status, done.out) == (2, "")
        error = done.err.splitlines()[-1]  # behind what older torch says of the download
        assert error.startswith("error: cannot get the pretrained weights of 'resnet18'")
        assert error.endswith("use --weights FILE or --weights none")


FIT = ("fit", MODEL, "max + react + energy", "--size", 12, "--json")


class TestFit:
    def test_is_the_library(self, run: Run, workplace: Path) -> None:
        """The command does what these lines of Python do."""
        done = run(*FIT, "--data", "data", "--out", "one", "--batch", 7, "--tpr", 0.9, "--seed", 3)
        [summary] = done.rows
        assert done.status == 0
        assert "--holdout must name others" in done.err
        preprocessing = Preprocessing(size=12)
        rest, held = split(image_files(["data"]), share=0.2, seed=3)
        labels = ["abc".index(file.parent.name) for file in rest]
        detector = davis.Detector(load_model(MODEL), "max + react + energy")
        detector.fit(Images(rest, preprocessing, labels=labels), seed=3)
        detector.calibrate(Images(held, preprocessing), tpr=0.9)
        assert summary["threshold"] == pytest.approx(detector.threshold, abs=1e-6)
        assert (summary["images_fitted"], summary["images_held_out"], summary["labelled"]) == (72, 18, True)
        assert read_record(workplace / "one")["preprocessing"] == preprocessing.to_dict()

    @pytest.mark.parametrize(
        ("model", "given", "noted"),
        [
            (MODEL, [], True),
            (MODEL, ["--size", 12], True),
            (MODEL, ["--size", 12, "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25"], False),
            ("davis.zoo:cifar10_mobilenet_v2", [], False),
        ],
    )
    def test_says_what_it_took_for_granted(self, run: Run, model: str, given: list[object], noted: bool) -> None:
        done = run("fit", model, "max + energy", "--data", "data", "--out", "one", "--tpr", 0.9, *given)
        assert done.status == 0, done.err
        assert ("prepared as for ImageNet" in done.err) == noted

    def test_table(self, run: Run) -> None:
        done = run(*FIT[:-1], "--data", "data", "--out", "one", "--tpr", 0.9)
        assert "max + react + energy" in done.out
        assert "threshold" in done.out

    def test_holdout_folder(self, run: Run) -> None:
        [summary] = run(*FIT, "--data", "data/a", "--holdout", "data/b", "--out", "one").rows
        assert (summary["images_fitted"], summary["images_held_out"]) == (30, 30)
        assert not summary["labelled"]

    def test_folders_that_are_not_the_classes(self, run: Run, workplace: Path) -> None:
        (workplace / "two").mkdir(exist_ok=True)
        for name in "ab":
            if not (workplace / "two" / name).exists():
                (workplace / "two" / name).symlink_to(workplace / "data" / name)
        done = run(*FIT, "--data", "two", "--out", "one", "--tpr", 0.9)
        assert "two has 2 folders and the model 3 classes: fitting with predicted classes" in done.err
        assert not done.rows[0]["labelled"]

    def test_labels_are_the_sorted_folders(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[tuple[Path, int]] = []
        real = Images.__init__

        def spy(
            self: Images, files: list[Path], *rest: object, labels: list[int] | None = None, **more: object
        ) -> None:
            seen.extend(zip(files, labels or [], strict=bool(labels)))
            real(self, files, *rest, labels=labels, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(Images, "__init__", spy)
        assert run(*FIT, "--data", "data", "--out", "one", "--tpr", 0.9).status == 0
        assert len(seen) == 72
        assert all(label == "abc".index(file.parent.name) for file, label in seen)

    def test_preset(self, run: Run) -> None:
        arguments = ("--preset", "DAVIS(m)+ReAct", "--id", "cifar10", "--arch", "densenet101", "--json")
        data = ("--data", "data", "--out", "one", "--size", 12, "--tpr", 0.9)
        for values in ("published", "reproducing"):
            [summary] = run("fit", MODEL, *arguments, *data, "--values", values).rows
            expected = preset("DAVIS(m)+ReAct", id="cifar10", arch="densenet101", values=values)  # type: ignore[arg-type]
            assert summary["spec"] == davis.canonical(expected.spec)

    def test_reads_images_twice_where_the_method_does(self, run: Run) -> None:
        done = run("fit", MODEL, "react + adascale_a", *FIT[3:], "--data", "data", "--out", "one", "--tpr", 0.9)
        assert done.status == 0, done.err
        assert done.rows[0]["images_fitted"] == 72

    def test_grey_images(self, run: Run, workplace: Path) -> None:
        grey = (f"{MODULE}:grey", "energy", "--mean", "0.5", "--std", "0.25", "--size", 12, "--resize", 14)
        assert run("fit", *grey, "--data", "data", "--out", "grey", "--tpr", 0.9).status == 0
        record = read_record(workplace / "grey")
        assert record["preprocessing"] == Preprocessing(size=12, resize=14, mean=(0.5,), std=(0.25,)).to_dict()
        assert record["backbone"]["image_shape"] == [1, 12, 12]

    def test_unreadable_images_are_told_once_and_skipped(self, run: Run, workplace: Path) -> None:
        broken = workplace / "data" / "a" / "broken.png"
        broken.write_bytes(b"no image")
        try:
            data = ("--data", "data", "--holdout", "held", "--out", "one", "--tpr", 0.9)
            done = run(*FIT, *data)
            strict = run(*FIT, *data, "--strict")
        finally:
            broken.unlink()
        assert done.status == 0
        assert done.err.count("skipped: cannot read data/a/broken.png") == 1
        assert (done.rows[0]["images_fitted"], done.rows[0]["unreadable"]) == (90, 1)
        assert_fails(strict, "cannot read data/a/broken.png")

    def test_failure_leaves_an_older_detector_alone(self, run: Run, fitted: Path) -> None:
        before = read_record(fitted)
        assert_fails(run(*FIT, "--data", "data", "--out", fitted, "--tpr", 2), "tpr must lie between 0 and 1")
        assert read_record(fitted) == before

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["max + scal + energy"], "unknown stage 'scal' in 'max + scal + energy'; did you mean 'scale'?"),
            (["max"], "ends without a score"),
            ([], "give a SPEC such as 'max + energy', or --preset"),
            (["energy", "--preset", "Energy"], "one of the two"),
            (["energy", "--id", "cifar10"], "--id and --arch belong to --preset"),
            (["--preset", "Energy"], "needs --id and --arch"),
            (["--preset", "Enrgy", "--id", "cifar10", "--arch", "resnet18"], "unknown row 'Enrgy'"),
            (["energy", "--data", "gone"], "no such folder of images: gone"),
            (["energy", "--data", "flat/0.png"], "no such folder of images: flat/0.png"),
            (["energy", "--data", "empty"], "no images in empty"),
            (["energy", "--holdout", "gone"], "no such folder of images: gone"),
            (["knn(k=3)", "--holdout-share", "1.5"], "must lie between 0 and 1, got 1.5"),
            (["energy", "--data", "flat"], "images are too few to promise tpr=0.95"),
            (["energy", "--tpr", "1"], "tpr must lie between 0 and 1"),
            (["energy", "--out", "classes.txt"], "classes.txt is a file"),
            (["energy", "--mean", "a,b"], "--mean 'a,b' must be numbers"),
            (["energy", "--mean", "0.5"], "1 means and 3 stds"),
            (["energy", "--device", "warp"], "device 'warp' cannot be used here"),
            (["energy", "--num-classes", "4"], "not --num-classes"),
            (["energy", "--tap", "9", "--head", "4"], "tap='9' is no module"),
            (["knn(k=500)"], "500"),
        ],
    )
    def test_refuses(self, run: Run, arguments: list[str], message: str) -> None:
        given = ["fit", MODEL, *arguments, "--size", "12"]
        for option, value in (("--data", "data"), ("--out", "refused"), ("--tpr", "0.9")):
            if option not in arguments and not (option == "--tpr" and "flat" in arguments):
                given += [option, value]
        assert_fails(run(*given), message)
        assert not Path("refused").exists()


class TestScore:
    def test_is_the_library(self, run: Run, fitted: Path) -> None:
        done = run("score", fitted, "data/a", "flat/0.png", "--model", MODEL, "--json", "--batch", 64)
        files = image_files(["data/a", "flat/0.png"])
        detector = davis.load(fitted, load_model(MODEL))
        [images] = Images(files, Preprocessing(size=12))
        output = detector(images)  # type: ignore[arg-type]
        assert done.status == 0
        assert [row["file"] for row in done.rows] == [str(file) for file in files]
        assert [row["score"] for row in done.rows] == output.score.tolist()
        assert [row["class"] for row in done.rows] == output.logits.argmax(1).tolist()
        assert output.is_ood is not None
        assert [row["verdict"] == "OOD" for row in done.rows] == output.is_ood.tolist()
        probabilities = torch.tensor([row["probability"] for row in done.rows])
        torch.testing.assert_close(probabilities, output.logits.softmax(1).amax(1))

    def test_batch_and_threads_change_nothing_that_matters(self, run: Run, fitted: Path) -> None:
        arguments = ("score", fitted, "data", "--model", MODEL, "--json")
        first = run(*arguments, "--batch", 90, "--workers", 0).rows
        second = run(*arguments, "--batch", 4, "--workers", 3).rows
        assert [row["file"] for row in first] == [row["file"] for row in second]
        scores = ([row["score"] for row in rows] for rows in (first, second))
        numpy.testing.assert_allclose(*scores, rtol=1e-5)

    def test_table(self, run: Run, fitted: Path) -> None:
        lines = run("score", fitted, "flat", "--model", MODEL, "--classes", "classes.txt").out.splitlines()
        assert lines[0].split() == ["file", "class", "name", "probability", "score", "p_value", "verdict"]
        for line in lines[1:]:
            file, label, name, probability, _, p_value, verdict = line.split()
            assert file.startswith("flat/")
            assert name == ["ant", "bee", "cat"][int(label)]
            assert 1 / 3 <= float(probability) <= 1
            assert verdict in ("OOD", "ok")
            assert (float(p_value) <= 0.1) == (verdict == "OOD")

    def test_csv(self, run: Run, fitted: Path, workplace: Path) -> None:
        done = run("score", fitted, "flat", "--model", MODEL, "--csv", "scores.csv")
        assert (done.status, done.out) == (0, "")
        with (workplace / "scores.csv").open(newline="") as stream:
            written = list(csv.DictReader(stream))
        printed = run("score", fitted, "flat", "--model", MODEL, "--json").rows
        plain = [{key: str(value) for key, value in row.items() if key != "calibration"} for row in printed]
        assert plain == written
        assert not list(workplace.glob(".scores*"))

    def test_csv_is_written_whole_or_not_at_all(self, run: Run, fitted: Path, workplace: Path) -> None:
        kept = workplace / "kept.csv"
        kept.write_text("file,class,probability,score,p_value,verdict\nolder\n")
        before = kept.read_text()
        done = run("score", fitted, "mixed", "--model", MODEL, "--csv", "kept.csv", "--strict")
        assert_fails(done, "cannot read mixed/1.png")
        assert kept.read_text() == before
        done = run("score", fitted, "mixed/1.png", "--model", MODEL, "--csv", "kept.csv")
        assert done.status == 1
        assert "no image could be read: kept.csv was not written" in done.err
        assert kept.read_text() == before
        assert run("score", fitted, "mixed", "--model", MODEL, "--csv", "kept.csv").status == 1
        assert len(kept.read_text().splitlines()) == 3  # an older table may be replaced
        assert run("score", fitted, "flat", "--model", MODEL, "--csv", "kept.csv", "--classes", "classes.txt").out == ""
        assert run("score", fitted, "flat", "--model", MODEL, "--csv", "kept.csv").out == ""

    @pytest.mark.parametrize(
        ("place", "message"),
        [
            ("flat/0.png", "would write over flat/0.png, which is read"),
            ("classes.txt", "would write over classes.txt, which is read"),
            ("held/00.png", "would write over held/00.png, which davis did not write"),
            ("flat", "would write over flat, which is no plain file"),
            ("gone/x.csv", "no such folder: gone; make it first"),
            ("classes.txt/x.csv", "classes.txt is a file, and a folder is needed there"),
            ("", "the name is empty"),
        ],
    )
    def test_places_for_the_table_that_are_refused(
        self, run: Run, fitted: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch, place: str, message: str
    ) -> None:
        before = {file: file.read_bytes() for file in workplace.rglob("*") if file.is_file()}
        monkeypatch.setattr("davis.cli.scoring.open_detector", lambda *_: 1 / 0)  # refused before the work
        done = run("score", fitted, "flat", "--model", MODEL, "--classes", "classes.txt", "--csv", place)
        assert_fails(done, message)
        assert {file: file.read_bytes() for file in workplace.rglob("*") if file.is_file()} == before

    @pytest.mark.parametrize("verb", [("score", "--csv", "x.csv"), ("explain", "--out", "new/why")])
    def test_folders_that_cannot_be_written(
        self, run: Run, fitted: Path, monkeypatch: pytest.MonkeyPatch, verb: tuple[str, ...]
    ) -> None:
        def fail(**_: object) -> None:
            raise OSError(errno.EROFS, "Read-only file system", "a name that was tried")

        monkeypatch.setattr("davis.cli.options.tempfile.TemporaryFile", fail)
        done = run(verb[0], fitted, "flat", "--model", MODEL, *verb[1:])
        assert_fails(done, "nothing can be written into")
        assert "(Read-only file system)" in done.err

    def test_names_that_steer_a_terminal(self, run: Run, fitted: Path, workplace: Path) -> None:
        folder = workplace / "strange"
        folder.mkdir(exist_ok=True)
        names = [":cat:.png", "[red].png", "a\nb.png", "c\x1b[2Jd.png"]
        for name in names:
            Image.new("RGB", (12, 12), "red").save(folder / name)
        (folder / "e\nf.jpg").write_text("no image")
        done = run("score", fitted, "strange", "--model", MODEL)
        shown = {line.split()[0] for line in done.out.splitlines()[1:]}
        assert shown == {f"strange/{name}" for name in (":cat:.png", "[red].png", "a\\nb.png", "c\\x1b[2Jd.png")}
        assert [line for line in done.err.splitlines() if line != "a module may print"] == [
            "skipped: cannot read strange/e\\nf.jpg: not an image, or of an unknown kind"
        ]

    def test_unreadable_images_are_skipped(self, run: Run, fitted: Path) -> None:
        done = run("score", fitted, "mixed", "--model", MODEL, "--json")
        assert done.status == 1
        assert done.err.count("skipped: cannot read mixed/1.png: ") == 1
        assert [row["file"] for row in done.rows] == ["mixed/0.png", "mixed/2.png"]

    def test_nothing_readable(self, run: Run, fitted: Path) -> None:
        for form in ([], ["--json"], ["--csv", "none.csv"]):
            done = run("score", fitted, "mixed/1.png", "--model", MODEL, *form)
            assert (done.status, done.out) == (1, "")

    def test_own_tap_and_head_need_not_be_given_again(self, run: Run) -> None:
        adapter = ("--tap", "1", "--head", "4")
        assert run(*FIT, "--data", "data", "--out", "own", "--tpr", 0.9, *adapter).status == 0
        assert run("score", "own", "flat", "--model", MODEL, "--json").status == 0

    @pytest.mark.parametrize(("model", "options"), [("joint", ()), ("vit", ("--tokens", "class"))])
    def test_kinds_need_not_be_given_again(self, run: Run, model: str, options: tuple[str, ...]) -> None:
        name, data = f"{MODULE}:{model}", ("--data", "data", "--out", model, "--tpr", 0.9, "--size", 16)
        assert run("fit", name, "max + dice(p=40) + energy", *data, *options).status == 0
        before = run("score", model, "flat", "--model", name, "--json").rows
        assert len(before) == 3
        assert run("calibrate", model, "--data", "held", "--model", name, "--tpr", 0.9).status == 0
        after = run("score", model, "flat", "--model", name, "--json").rows
        assert [row["score"] for row in after] == [row["score"] for row in before]

    @pytest.mark.slow
    def test_a_neck_is_found_again(self, run: Run, workplace: Path) -> None:
        torch.manual_seed(0)
        torch.save(load_model("mobilenet_v3_small", weights="none", classes=3).state_dict(), workplace / "mobile.pth")
        model = ("mobilenet_v3_small", "--weights", "mobile.pth", "--num-classes", 3)
        data = ("--data", "data", "--out", "neck", "--tpr", 0.9, "--size", 64)
        assert run("fit", *model, "max + energy", *data).status == 0
        assert len(run("score", "neck", "flat", "--model", *model, "--json").rows) == 3

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["gone", "flat", "--model", MODEL], "no detector there"),
            (["fitted", "gone", "--model", MODEL], "no such file or folder: gone"),
            (["fitted", "empty", "--model", MODEL], "no images in empty"),
            (["fitted", "flat", "--model", "gone:make"], "cannot import 'gone'"),
            (["fitted", "flat", "--model", f"{MODULE}:grey"], "does not take images of shape"),
            (["fitted", "flat", "--model", MODEL, "--json", "--csv", "x.csv"], "choose one"),
            (["fitted", "flat", "--model", MODEL, "--classes", "gone.txt"], "No such file or directory: gone.txt"),
            (["fitted", "flat", "--model", MODEL, "--classes", "short.txt"], "names 2 classes, and the model has 3"),
            (["fitted", "mixed", "--model", MODEL, "--strict"], "cannot read mixed/1.png"),
            (["fitted", "flat"], "fitted is a saved detector; name the model that it was fitted for with --model"),
            (["flat/0.png", "fitted", "--model", MODEL], "the first argument must be the folder of a saved detector"),
            (["fitted", "", "--model", MODEL], "the name is empty; write . for the current folder"),
            ([""], "the name is empty"),
            (["fitted", "flat", "--model", MODEL, "--device", "meta"], "device 'meta' cannot be used here ("),
            (["fitted", "flat", "--model", MODEL, "--device", ""], "device '' cannot be used here: write cpu, cuda"),
            (["fitted", "flat", "--model", MODEL, "--device", "cuda:x"], "device 'cuda:x' cannot be used here"),
        ],
    )
    @pytest.mark.usefixtures("fitted")
    def test_refuses(self, run: Run, workplace: Path, arguments: list[str], message: str) -> None:
        (workplace / "short.txt").write_text("ant\nbee\n")
        assert_fails(run("score", *arguments), message)

    def test_other_weights(self, run: Run, fitted: Path, workplace: Path) -> None:
        weights = {name: tensor + 1 for name, tensor in load_model(MODEL).state_dict().items()}
        torch.save(weights, workplace / "other.pth")
        done = run("score", fitted, "flat", "--model", MODEL, "--weights", "other.pth")
        assert_fails(done, "last layer is not the one that")

    def test_detector_without_preprocessing(self, run: Run) -> None:
        detector = davis.Detector(load_model(MODEL), "energy")
        detector(torch.rand(2, 3, 12, 12))
        davis.save(detector, "bare")
        assert_fails(run("score", "bare", "flat", "--model", MODEL), "set detector.preprocessing before saving it")

    def test_detector_that_is_not_calibrated(self, run: Run) -> None:
        detector = davis.Detector(load_model(MODEL), "energy")
        detector(torch.rand(2, 3, 12, 12))
        detector.preprocessing = Preprocessing(size=12).to_dict()
        davis.save(detector, "raw")
        assert {row["verdict"] for row in run("score", "raw", "flat", "--model", MODEL, "--json").rows} == {None}


@pytest.mark.parametrize(
    ("found", "again"),
    [
        ({"tap": "layer4", "head": "fc", "after": None, "neck": None}, {"tap": "layer4", "head": "fc"}),
        ({"tap": "norm", "head": "a + b", "after": None, "neck": None}, {}),
        ({"tap": "2", "head": "(identity)", "after": None, "neck": None}, {}),
        ({"tap": "features", "head": "fc", "after": "relu", "neck": None}, {}),
    ],
)
def test_what_is_found_again(found: dict[str, Any], again: dict[str, Any]) -> None:
    assert recorded_adapter(found) == again


def test_a_detector_of_another_model(run: Run, fitted: Path) -> None:
    done = run("score", fitted, "held", "--model", f"{MODULE}:vit")
    assert_fails(done, "was fitted for a Sequential, and ")


def test_a_replaced_detector_is_said(run: Run) -> None:
    options = ("--data", "data", "--out", "replaced", "--size", 12, "--tpr", 0.9)
    assert "replaced" not in run("fit", MODEL, "max + energy", *options).err
    assert "replaced the detector that was in replaced: max + energy" in run("fit", MODEL, "energy", *options).err


class TestExplain:
    def test_is_the_library(self, run: Run, fitted: Path, workplace: Path) -> None:
        done = run("explain", fitted, "held", "--model", MODEL, "--out", "why", "--channels", 2, "--json")
        assert done.status == 0, done.err
        shown = [json.loads(line) for line in done.out.splitlines()]
        detector = davis.load(fitted, load_model(MODEL))
        for row, file in zip(shown, image_files([workplace / "held"]), strict=True):
            found = davis.explain(detector, file, channels=2)
            assert {name: row[name] for name in found.to_dict()} == found.to_dict()
            assert len(row["channels"]) == 2
            assert {path.name for path in (workplace / "why").glob(f"{file.stem}.*")} == {
                f"{file.stem}.{suffix}" for suffix in ("json", "npz", "png")
            }

    def test_table_and_broken_images(self, run: Run, fitted: Path) -> None:
        done = run("explain", fitted, "mixed", "--model", MODEL, "--out", "why")
        assert done.status == 1
        assert "skipped: cannot read mixed/1.png" in done.err
        assert sum(line.startswith("mixed/") for line in done.out.splitlines()) == 2

    @pytest.mark.parametrize(
        ("spec", "decided", "strongest"),
        [("energy", False, False), ("max + energy", False, True), ("energy | max + energy | stouffer", True, None)],
    )
    def test_text(self, run: Run, spec: str, decided: bool, strongest: bool | None) -> None:
        detector = davis.Detector(load_model(MODEL), spec).fit([torch.randn(450, 3, 12, 12)])
        detector.calibrate([torch.randn(99, 3, 12, 12)])
        detector.preprocessing = Preprocessing(size=12).to_dict()
        davis.save(detector, "shown")
        done = run("explain", "shown", "held/00.png", "--model", MODEL, "--out", "texts")
        assert done.status == 0, done.err
        head, line = (re.split(r"  +", text.strip()) for text in done.out.splitlines())
        row = dict(zip(head, line, strict=True))
        assert row["file"] == "held/00.png"
        assert row["verdict"] in ("ok", "OOD")
        assert row["map accounts for"].endswith("%")
        assert (row.get("decided by") in ("mean + energy", "max + energy")) == decided
        if strongest is not None:
            assert (row["strongest channel"] != "-") == strongest
            assert (row["at"] != "-") == strongest

    def test_a_map_of_little_is_said(self, run: Run) -> None:
        options = ("--data", "data", "--out", "near", "--size", 12, "--tpr", 0.9)
        assert run("fit", MODEL, "max + knn(k=5)", *options).status == 0
        done = run("explain", "near", "held/00.png", "--model", MODEL, "--out", "near-why")
        assert "beware: held/00.png, max + knn(k=5): the heat map accounts for " in done.err

    def test_names_that_meet(self, run: Run, fitted: Path, workplace: Path) -> None:
        for folder in ("one", "two"):
            (workplace / "meeting" / folder).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (12, 12), "red").save(workplace / "meeting" / folder / "x.png")
        done = run("explain", fitted, "meeting", "--model", MODEL, "--out", "met", "--json")
        assert done.status == 0, done.err
        assert [row["picture"] for row in done.rows] == ["met/one-x.png", "met/two-x.png"]
        Image.new("RGB", (12, 12), "red").save(workplace / "meeting" / "one" / "x.jpg")
        assert_fails(run("explain", fitted, "meeting", "--model", MODEL, "--out", "met"), "2 images are called")

    def test_names_that_are_too_long_are_refused_before_the_work(
        self, run: Run, fitted: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for stem in ("x" * 250, "x" * 251):
            Image.new("RGB", (12, 12), "red").save(workplace / f"{stem}.ppm", "PPM")
        assert run("explain", fitted, f"{'x' * 250}.ppm", "--model", MODEL, "--out", "long").status == 0
        monkeypatch.setattr("davis.cli.explaining.open_detector", lambda *_, **__: 1 / 0)
        done = run("explain", fitted, f"{'x' * 251}.ppm", "--model", MODEL, "--out", "longer")
        assert_fails(done, "would have a name of 256 bytes, and 255 are allowed; rename the image")
        assert not (workplace / "longer").exists()

    @pytest.mark.filterwarnings("ignore:.*files of other kinds left out")
    def test_what_it_wrote_is_left_out_and_replaced(self, run: Run, fitted: Path, workplace: Path) -> None:
        folder = workplace / "again"
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (12, 12), "red").save(folder / "photo.jpg")
        for _ in range(2):
            done = run("explain", fitted, "again", "--model", MODEL, "--out", "again/explanations", "--json")
            assert done.status == 0, done.err
            assert [row["file"] for row in done.rows] == ["again/photo.jpg"]
        done = run("explain", fitted, "again/explanations", "--model", MODEL, "--out", "elsewhere")
        assert done.status == 2
        assert "are only pictures that davis explain wrote" in done.err

    @pytest.mark.parametrize(
        ("photo", "other", "out"),
        [("photo.jpg", "photo.json", "."), ("photo.jpg", "photo.png", "."), ("photo.jpg", "photo.npz", "."),
         ("detector.jpg", "fitted/detector.json", "fitted")],
    )  # fmt: skip
    def test_what_it_did_not_write_is_kept(
        self, run: Run, fitted: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch, photo: str, other: str, out: str
    ) -> None:
        Image.new("RGB", (12, 12), "red").save(workplace / photo)
        created = not (workplace / other).exists()
        if created:
            (workplace / other).write_text("mine")
        before = (workplace / other).read_bytes()
        monkeypatch.setattr("davis.cli.explaining.open_detector", lambda *_, **__: 1 / 0)  # refused before the work
        done = run("explain", fitted, photo, "--model", MODEL, "--out", out)
        after = (workplace / other).read_bytes()
        if created:
            (workplace / other).unlink()
        assert_fails(done, f"would write over {other}, which davis did not write")
        assert after == before

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["flat/0.png", "fitted", "--model", MODEL], "the first argument must be the folder of a saved detector"),
            (["fitted", "", "--model", MODEL], "the name is empty"),
            (["fitted", "flat", "--model", MODEL, "--device", "meta"], "device 'meta' cannot be used here"),
            (["fitted", "flat"], "name the model that it was fitted for with --model"),
            (["fitted", "--model", MODEL], "a saved detector and images are needed"),
            (["gone", "flat", "--model", MODEL], "no detector there"),
        ],
    )
    @pytest.mark.usefixtures("fitted")
    def test_refuses(self, run: Run, arguments: list[str], message: str) -> None:
        assert_fails(run("explain", *arguments), message)


@pytest.mark.slow
def test_progress_is_for_terminals(run: Run, fitted: Path, workplace: Path) -> None:
    """On a terminal a bar is drawn on stderr; stdout holds the results alone."""
    pty = pytest.importorskip("pty")
    code = f"from davis.cli import main; main(['score', 'fitted', 'data', '--model', {MODEL!r}, '--json'])"
    primary, secondary = pty.openpty()
    drawn = bytearray()

    def drain() -> None:  # a terminal holds some 4 kB; a program that draws more waits for its reader
        with contextlib.suppress(OSError):  # what Linux raises when the other end is closed
            while part := os.read(primary, 4096):
                drawn.extend(part)

    reader = threading.Thread(target=drain)
    reader.start()
    environment = os.environ | {"TERM": "xterm"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=workplace,
            stdout=subprocess.PIPE,
            stderr=secondary,
            env=environment,
            timeout=60,
        )
    finally:
        os.close(secondary)
        reader.join(timeout=10)
        os.close(primary)
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert len([json.loads(line) for line in lines]) == 90
    assert b"score" in drawn
    assert b"100%" in drawn
    assert run("score", fitted, "data", "--model", MODEL, "--json").err == ""
