"""Benchmarks in TOML: what a description means, and one line on what is wrong with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.models import get_model_weights

import davis
from davis.bench import describe
from davis.bench.run import run
from davis.catalog import DATASETS
from davis.data import ImageError, Preprocessing
from davis.models import load_model
from davis.presets import presets
from davis.sets import FolderSet
from davis.spec import ORDER, parse
from davis.stages import stages_of

MODULE = "tiny_model_of_test_describe"
TINY = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
"""
GOOD = f"""
name = "tiny"
methods = ["msp", "max + energy", "mean + msp"]

[model]
name = "{MODULE}:make"

[preprocessing]
size = 8
resize = 8

[id]
fit = "train"
test = "val"

[far]
dark = "dark"

[near]
odd = "deep/odd"
"""


def pictures(folder: Path, count: int, bright: int = 256) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = numpy.random.default_rng(count)
    for number in range(count):
        values = random.integers(0, bright, (8, 8, 3), dtype=numpy.uint8)
        Image.fromarray(values).save(folder / f"{number}.png")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, images and ``good.toml``."""
    (tmp_path / f"{MODULE}.py").write_text(TINY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    for name, count in (("train/a", 4), ("train/b", 4), ("val/a", 3), ("val/b", 2), ("deep/odd", 4)):
        pictures(tmp_path / name, count)
    pictures(tmp_path / "dark", 5, bright=60)
    (tmp_path / "good.toml").write_text(GOOD)
    return tmp_path


def described(place: Path, text: str = GOOD) -> dict[str, Any]:
    (place / "some.toml").write_text(text)
    return describe.read(str(place / "some.toml"))[0]


def built(place: Path, text: str = GOOD, **options: Any) -> describe.Benchmark:
    return describe.build(described(place, text), place, data=place / "data", **options)


class TestBase:
    def test_what_is_missing_comes_from_it(self, place: Path) -> None:
        found = described(place, 'base = "good.toml"\nname = "other"\n[far]\nodd = "deep/odd"\n[near]\n')
        good = described(place)
        assert found == good | {"name": "other", "far": {"odd": "deep/odd"}, "near": {}}

    def test_it_may_have_one_itself_or_be_shipped(self, place: Path) -> None:
        (place / "middle.toml").write_text('base = "good.toml"\nmethods = ["msp"]')
        assert described(place, 'base = "middle.toml"\nname = "top"')["methods"] == ["msp"]
        assert described(place, 'base = "paper-cifar10-densenet101"\nname = "top"')["gamma"] == 3

    @pytest.mark.parametrize(
        ("base", "message"),
        [
            ("'nowhere.toml'", "no base 'nowhere.toml'"),
            ("3", "base is 3"),
            ("'first.toml'", "base is 'first.toml'; it must name another benchmark"),
        ],
    )
    def test_a_bad_one_is_said_in_one_line(self, place: Path, base: str, message: str) -> None:
        (place / "first.toml").write_text('base = "second.toml"')
        (place / "second.toml").write_text('base = "first.toml"')
        with pytest.raises((ValueError, FileNotFoundError)) as error:
            described(place, f"base = {base}\nname = 'top'")
        assert message in str(error.value)
        assert "\n" not in str(error.value)

    def test_every_shipped_benchmark_reads(self) -> None:
        for name in describe.shipped():
            description = describe.read(name)[0]
            assert description["name"] == name
            assert name.startswith("imagenet-crops") or description["paper"][0].startswith(name.split("-")[1])
            assert describe.methods(description)


class TestRead:
    def test_a_file(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(place.parent)
        description, folder = describe.read(f"{place.name}/good.toml")
        assert folder == place
        assert description["methods"] == ["msp", "max + energy", "mean + msp"]
        assert description["id"] == {"fit": "train", "test": "val"}

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ('name = "tiny"', 'nane = "tiny"', "unknown field 'nane'; known: name, model"),
            ('name = "tiny"', "name = 3", "name is 3, which is not what that field takes"),
            ('name = "tiny"', 'name = "tiny"\ngamma = true', "gamma is True"),
            ('name = "tiny"', 'name = "tiny"\npixel_images = 1.5', "pixel_images is 1.5"),
            ('methods = ["msp", "max + energy", "mean + msp"]', 'methods = "msp"', "methods is 'msp'"),
            ('methods = ["msp", "max + energy", "mean + msp"]', "", "lacks 'methods'"),
            ('name = "tiny"', "", "lacks 'name'"),
            (f'[model]\nname = "{MODULE}:make"', "", "lacks 'model'"),
            (f'name = "{MODULE}:make"', 'title = "mine"', "[model] lacks 'name'"),
            (f'name = "{MODULE}:make"', "name = 3", "[model] lacks 'name'"),
            ('test = "val"', "", "[id] lacks 'test'"),
            ('fit = "train"', 'images = "train"', "[id] takes fit and test, or images alone"),
            ('[far]\ndark = "dark"\n\n[near]\nodd = "deep/odd"', "", "has no OOD set; add a table [far] or [near]"),
            ('dark = "dark"\n\n[near]\nodd = "deep/odd"', "", "has no OOD set"),
            ('name = "tiny"', 'name = "tiny', "is not TOML: "),
        ],
    )
    def test_what_is_wrong_is_said_in_one_line(self, place: Path, old: str, new: str, message: str) -> None:
        assert old in GOOD
        with pytest.raises(ValueError) as error:
            described(place, GOOD.replace(old, new))
        assert message in str(error.value)
        assert str(error.value).startswith(str(place / "some.toml"))
        assert "\n" not in str(error.value)

    def test_neither_file_nor_shipped(self, place: Path) -> None:
        for source in ("nothere", str(place)):
            with pytest.raises(
                FileNotFoundError, match=r"no benchmark .*: no such file, and shipped are imagenet-crops"
            ):
                describe.read(source)


class TestBuild:
    def test_what_is_described(self, place: Path) -> None:
        found = built(place, batch=3)
        assert (found.name, found.model) == ("tiny", f"{MODULE}:make")
        assert found.specs == ["mean + msp", "max + energy"]  # what means the same counts once
        assert (found.fit.name, len(found.fit), found.test.name, len(found.test)) == ("train", 8, "val", 5)
        assert {name: (len(images), group) for name, (images, group) in found.ood.items()} == {
            "dark": (5, "far"),
            "odd": (4, "near"),
        }
        assert (found.paper, found.gamma, found.pixel_images, found.capacity, found.batch) == (None, 1, 2000, 50_000, 3)
        images, labels, _ = next(iter(found.fit.batches(0, 8)))
        assert images.shape == (8, 3, 8, 8)
        assert labels is not None
        assert labels.tolist() == [0] * 4 + [1] * 4
        torch.testing.assert_close(found.backbone(images).logits, load_model(f"{MODULE}:make")(images))

    def test_its_options(self, place: Path) -> None:
        text = 'gamma = 3\npixel_images = 7\ncapacity = 90\npaper = ["cifar10", "densenet101"]\n' + GOOD
        found = built(place, text.replace("[preprocessing]", 'title = "Tiny"\n[preprocessing]'))
        assert (found.gamma, found.pixel_images, found.capacity) == (3, 7, 90)
        assert (found.paper, found.model) == (("cifar10", "densenet101"), "Tiny")

    def test_weights_of_the_file_and_in_their_place(self, place: Path) -> None:
        for name, value in (("one", 1.0), ("two", 2.0)):
            model = load_model(f"{MODULE}:make")
            torch.nn.init.constant_(model[4].bias, value)  # type: ignore[index, arg-type]
            torch.save(model.state_dict(), place / f"{name}.pt")
        text = GOOD.replace("[preprocessing]", 'weights = "one.pt"\n[preprocessing]')
        assert built(place, text).backbone.model.get_parameter("4.bias").tolist() == [1, 1]
        assert built(place, text, weights="two.pt").backbone.model.get_parameter("4.bias").tolist() == [2, 2]
        with pytest.raises(FileNotFoundError, match=r"no 'gone\.pt' beside the benchmark"):
            built(place, text, weights="gone.pt")

    def test_folders_may_lie_in_the_data_directory(self, place: Path) -> None:
        pictures(place / "data" / "elsewhere", 3)
        found = built(place, GOOD.replace('"dark"', '"elsewhere"'))
        assert len(found.ood["dark"][0]) == 3

    def test_a_missing_folder(self, place: Path) -> None:
        with pytest.raises(FileNotFoundError) as error:
            built(place, GOOD.replace('dark = "dark"', 'dark = "gone/dark"'))
        assert str(error.value) == (
            f"no 'gone/dark' beside the benchmark ({place}) or in the data directory ({place / 'data'})"
        )

    def test_a_word_may_name_a_dataset(self, place: Path) -> None:
        name = "dtd10"
        (place / "data").mkdir()
        images = numpy.zeros((DATASETS[name].count, 2, 2, 3), dtype=numpy.uint8)
        with pytest.raises(FileNotFoundError, match=r"dtd10 .* is not in .*; to get it: "):
            built(place, GOOD.replace('"dark"', f'"{name}"'))
        numpy.savez(place / "data" / DATASETS[name].places[0], images=images)
        found = built(place, GOOD.replace('"dark"', f'"{name}"'))
        assert len(found.ood["dark"][0]) == DATASETS[name].count

    def test_unknown_method(self, place: Path) -> None:
        with pytest.raises(ValueError, match="unknown stage 'mspp' in 'mspp'; did you mean 'msp'"):
            built(place, GOOD.replace('"msp"', '"mspp"'))

    def test_unknown_preprocessing(self, place: Path) -> None:
        with pytest.raises(ValueError, match="preprocessing has unknown 'resiz'"):
            built(place, GOOD.replace("resize", "resiz"))

    @pytest.mark.parametrize("folders", [True, False])
    def test_id_images_are_split_in_two(self, place: Path, folders: bool) -> None:
        source = "train" if folders else "train/a"
        found = built(place, GOOD.replace('fit = "train"\ntest = "val"', f'images = "{source}"'))
        assert isinstance(found.fit, FolderSet)
        assert isinstance(found.test, FolderSet)
        assert (found.fit.name, found.test.name) == ("fit", "test")
        everything = sorted((place / source).rglob("*.png"))
        assert not set(found.fit.files) & set(found.test.files)
        assert sorted([*found.fit.files, *found.test.files]) == everything
        assert len(found.fit) == len(found.test) == len(everything) // 2
        assert found.fit.labels == ([0, 0, 1, 1] if folders else None)
        assert found.fit.fingerprint() != found.test.fingerprint()

    def test_a_third_for_calibration(self, place: Path) -> None:
        found = built(place, GOOD.replace('fit = "train"\ntest = "val"', 'images = "train"\ncalibration = true'))
        parts = [found.fit, found.calibration, found.test]
        assert [part and part.name for part in parts] == ["fit", "calibration", "test"]
        assert [part and len(part) for part in parts] == [3, 3, 2]

    def test_calibration_images_of_their_own(self, place: Path) -> None:
        for name in ("held", "other/val"):
            pictures(place / name, 3)
            found = built(place, GOOD.replace('test = "val"', f'test = "val"\ncalibration = "{name}"'))
            assert found.calibration is not None
            assert found.calibration.name == {"held": "held", "other/val": "val-calibration"}[name]

    def test_only_folders_are_split(self, place: Path) -> None:
        numpy.savez(place / "arrays.npz", images=numpy.zeros((6, 8, 8, 3), dtype=numpy.uint8))
        with pytest.raises(ValueError, match=r"'arrays\.npz' is no folder to be split; give \[id\] fit and test"):
            built(place, GOOD.replace('fit = "train"\ntest = "val"', 'images = "arrays.npz"'))

    def test_fit_and_test_folders_of_the_same_name(self, place: Path) -> None:
        pictures(place / "other" / "val", 3)
        found = built(place, GOOD.replace('"train"', '"other/val"'))
        assert (found.fit.name, found.test.name) == ("val-fit", "val")

    def test_sets_of_the_same_name_are_refused(self, place: Path) -> None:
        found = built(place, GOOD.replace("dark = ", "val = "))
        with pytest.raises(ValueError, match="two image sets have the same name: train, val, val, odd; give each"):
            run(found, place / "run", cache=place / "cache")

    @pytest.mark.parametrize("role", ["train", "val", "dark"])
    def test_a_set_in_which_nothing_can_be_read_is_named(self, place: Path, role: str) -> None:
        for file in (place / role).rglob("*.png"):
            file.write_bytes(b"no image")
        found = built(place, on_error=lambda *_: None)
        count = {"train": 8, "val": 5, "dark": 5}[role]
        with pytest.raises(ValueError, match=f"none of the {count} pictures of {role} can be read"):
            run(found, place / "run", cache=place / "cache")

    @pytest.mark.parametrize(
        ("also", "shares"), [("", "fit, test"), ("\ncalibration = true", "fit, calibration, test")]
    )
    def test_too_few_images_to_split(self, place: Path, also: str, shares: str) -> None:
        pictures(place / "few", len(shares.split(", ")) - 1)
        with pytest.raises(ValueError, match=f"pictures in few are too few for {shares}; give more"):
            built(place, GOOD.replace('fit = "train"\ntest = "val"', f'images = "few"{also}'))

    def test_known_and_unknown_share_no_picture(self, place: Path) -> None:
        (place / "linked").symlink_to(place / "val")
        (place / "mixed").mkdir()
        pictures(place / "mixed", 2)
        (place / "mixed" / "link.png").symlink_to(place / "train" / "a" / "0.png")
        for ood, message in (
            ("linked", "5 of the 5 pictures of dark are also in val"),
            ("mixed", "1 of the 3 pictures of dark are also in train"),
            ("train/a", "4 of the 4 pictures of dark are also in train"),
        ):
            with pytest.raises(ValueError, match=message):
                built(place, GOOD.replace('dark = "dark"', f'dark = "{ood}"'))
        with pytest.raises(ValueError, match="4 of the 4 pictures of a are also in train"):
            built(place, GOOD.replace('test = "val"', 'test = "train/a"'))

    def test_an_ood_folder_around_the_id_images(self, place: Path) -> None:
        pictures(place / "all" / "train", 6)
        pictures(place / "all" / "other", 5)
        given = GOOD.replace('fit = "train"\ntest = "val"', 'images = "all/train"')
        with pytest.raises(ValueError, match="3 of the 11 pictures of dark are also in fit; give images that are not"):
            built(place, given.replace('dark = "dark"', 'dark = "all"'))

    def test_missing_weights_and_images_are_named_together(self, place: Path) -> None:
        text = GOOD.replace("[preprocessing]", 'weights = "gone.pt"\n[preprocessing]')
        with pytest.raises(FileNotFoundError) as caught:
            built(place, text.replace('dark = "dark"', 'dark = "gone/dark"'))
        assert str(caught.value).splitlines() == [
            f"2 things are missing; the data directory is {place / 'data'}",
            "(1) 'gone.pt'",
            "(2) 'gone/dark'",
            f"(1), (2): looked for beside the benchmark ({place}) and in the data directory",
        ]

    def test_broken_images_are_reported(self, place: Path) -> None:
        (place / "dark" / "2.png").write_bytes(b"no image")
        told: list[Path] = []

        def tell(file: Path, error: ImageError) -> None:
            told.append(file)

        dark = built(place, on_error=tell).ood["dark"][0]
        assert sum(len(images) for images, _, _ in dark.batches(0, 2)) == 4
        assert told == [place / "dark" / "2.png"]


class TestMethods:
    def test_presets_stand_for_the_rows_of_the_paper(self) -> None:
        pair = {"id": "cifar10", "arch": "densenet101"}
        rows = list(dict.fromkeys(row.spec for row in presets(**pair)))
        found = describe.methods({"methods": ["knn(k=7)", "presets"], "paper": list(pair.values())})
        assert found == ["mean + knn(k=7)", *[spec for spec in rows if spec != "mean + knn(k=7)"]]

    def test_presets_need_the_pair(self) -> None:
        with pytest.raises(ValueError, match=r"'presets' needs paper = \[id, arch\]"):
            describe.methods({"methods": ["presets"]})
        with pytest.raises(ValueError, match="unknown arch for cifar10: 'nonet'"):
            describe.methods({"methods": ["presets"], "paper": ["cifar10", "nonet"]})

    def test_without(self) -> None:
        given = {"methods": ["msp", "max + energy", "knn"], "without": ["mean + msp", "vim", "max+energy"]}
        assert describe.methods(given) == ["mean + knn"]

    def test_without_pixels(self) -> None:
        specs = [davis.canonical(text) for text in ("odin + msp", "energy", "adascale_a", "max + knn")]
        assert describe.without_pixels(specs) == ["mean + energy", "max + knn"]


class TestShipped:
    @pytest.mark.parametrize("name", list(describe.shipped()))
    def test_is_sound(self, name: str) -> None:
        text = describe.shipped()[name]
        description, folder = describe.read(name)
        assert folder == Path.cwd()
        assert description["name"] == name
        assert text.startswith("# ")  # what `davis bench --shipped` says of it
        specs = describe.methods(description)
        assert specs
        assert specs == list(dict.fromkeys(davis.canonical(spec) for spec in specs))
        assert not set(specs) & {davis.canonical(method) for method in description.get("without", [])}
        assert all(parse(spec) for spec in specs)

    @pytest.mark.parametrize("name", list(describe.shipped()))
    def test_its_sets_and_its_model_are_known(self, name: str) -> None:
        description = describe.read(name)[0]
        sets = [
            *(source for source in description["id"].values() if source is not True),
            *description.get("far", {}).values(),
            *description.get("near", {}).values(),
        ]
        assert {name for name in sets if "/" not in name} <= set(DATASETS)
        if "images" not in description["id"]:
            assert description["id"]["fit"] != description["id"]["test"]
        model = description["model"]["name"]
        if model.startswith("torchvision:"):
            versions = get_model_weights(model.removeprefix("torchvision:"))
            assert description["model"]["weights"] in versions.__members__
        elif ":" in model:
            module, factory = model.split(":")
            assert hasattr(__import__(module, fromlist=[factory]), factory)
        else:
            assert isinstance(load_model(model, weights="none"), nn.Module)
        if "paper" in description:
            assert presets(id=description["paper"][0], arch=description["paper"][1])

    @pytest.mark.parametrize("model", ["mobilenet_v2", "efficientnet_lite0"])
    def test_imagenet_crops_run_every_method(self, model: str) -> None:
        specs = describe.methods(describe.read(f"imagenet-crops-{model}")[0])
        used = {stage.name for spec in specs for branch in parse(spec) for stage in branch.stages}
        registered = {stage.name for kind in ORDER for stage in stages_of(kind)}
        assert registered - used == {"godin"}  # which needs a network that was trained with its head

    def test_halves_of_a_named_dataset(self, tmp_path: Path) -> None:
        def images(key: str, source: str) -> FolderSet:
            return FolderSet(tmp_path, Preprocessing(size=8), name=source)

        for number in range(5):
            Image.new("RGB", (8, 8)).save(tmp_path / f"{number}.png")
        fit, held, test = describe._known({"images": "imagenet_crops"}, images)
        assert (fit.name, held, test.name) == ("imagenet_crops_fit", None, "imagenet_crops_test")
        assert (len(fit), len(test)) == (3, 2)
        fit, held, test = describe._known({"images": "imagenet_crops", "calibration": True}, images)
        assert held is not None
        assert [part.name for part in (fit, held, test)] == [
            f"imagenet_crops_{part}" for part in ("fit", "calibration", "test")
        ]
        files = [set(part.files) for part in (fit, held, test)]
        assert [len(part) for part in files] == [2, 2, 1]
        assert len(set.union(*files)) == 5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[preprocessing]", 'wieghts = "x"\n[preprocessing]'), "takes name, weights and title"),
        (('dark = "dark"', "dark = 3"), "stands where a text is expected"),
        (("[near]", '[near]\ndark = "dark"'), "both near and far"),
        (('name = "', 'paper = ["cifar10"]\nname = "'), "paper is \\[id, arch\\]"),
        (('name = "', 'capacity = 0\nname = "'), "capacity must be at least 1"),
        (('test = "val"', 'test = "val"\ncalibration = true'), "calibration = true takes a third of images"),
        (('test = "val"', 'test = "val"\ncalibration = "train"'), "names the same images twice"),
        (('test = "val"', 'test = "val"\ncalibration = 1'), "1 stands where a text is expected"),
        (('dark = "dark"', 'dark = "val"'), "the OOD set dark names the ID images 'val'; give other images"),
    ],
)
def test_descriptions_that_would_be_misread(place: Path, change: tuple[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        built(place, GOOD.replace(*change, 1))
