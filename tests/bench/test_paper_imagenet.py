"""The paper's ImageNet benchmarks run on pictures that stand where the real ones would."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from davis.bench import describe
from davis.bench.report import tabulate
from davis.bench.results import load
from davis.bench.run import run
from davis.catalog import DATASETS, MissingDataset
from davis.cli.app import main

FAST = ("mobilenet_v2", "efficientnet_b0")  # in methods that move images, of which there are many
ARCHS = ("resnet50", "densenet121", "mobilenet_v2", "efficientnet_b0", "swin_b", "convnext_base")
SETS = ("inaturalist", "sun", "places", "textures", "openimage_o", "ssb_hard", "ninco", "imagenet_o")


def paint(folder: Path, count: int, seed: int) -> None:
    """Pictures of noise, of different sizes as photographs are, in two class folders."""
    random = np.random.default_rng(seed)
    for number in range(count):
        parent = folder / f"n{number % 2:08}"
        parent.mkdir(parents=True, exist_ok=True)
        values = random.integers(0, 256, (random.integers(40, 60), 50, 3), dtype=np.uint8)
        Image.fromarray(values).save(parent / f"{number}.jpg")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with every set of the benchmark in its place, each with a few pictures."""
    paint(tmp_path / "imagenet" / "train", 12, 0)
    for seed, name in enumerate(("imagenet", *SETS), start=1):
        paint(tmp_path / DATASETS[name].places[0], 4, seed)
        monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], count=4))
    return tmp_path


@pytest.mark.parametrize("arch", ARCHS)
def test_it_names_the_papers_sets(arch: str) -> None:
    description = describe.read(f"paper-imagenet-{arch}")[0]
    assert (*description["far"], *description["near"]) == SETS
    assert description["paper"] == ["imagenet1k", arch]
    gamma = 0.5 if arch in ("resnet50", "densenet121", "mobilenet_v2") else 2
    assert description["gamma"] == gamma
    assert f"davis(gamma={gamma}) + energy" in describe.methods(description)


def test_all_that_is_missing_is_named_before_weights_are_fetched(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(describe, "load_model", lambda *_, **__: pytest.fail("the model was loaded"))
    description, folder = describe.read("paper-imagenet-resnet50")
    shutil.rmtree(data / DATASETS["sun"].places[0])
    with pytest.raises(MissingDataset, match=r"^sun \(SUN scenes, .*; to get it: http.*/SUN\.tar\.gz"):
        describe.build(description, folder, data=data)
    with pytest.raises(MissingDataset, match=r"^10 things are missing; ") as caught:
        describe.build(description, folder, data=tmp_path / "nothing")
    text = str(caught.value)
    assert "\n(1) 'imagenet/train'; looked for beside the benchmark" in text
    for number, name in enumerate(("imagenet", *SETS), 2):
        assert f"\n({number}) {name} (" in text
        assert text.count(DATASETS[name].origin) == 1


@pytest.mark.slow
def test_it_runs(data: Path, tmp_path: Path) -> None:
    description, folder = describe.read("paper-imagenet-mobilenet_v2")
    chosen = [spec for spec in describe.methods(description) if spec.endswith("energy") and "odin" not in spec]
    description["methods"] = chosen
    built = describe.build(description, folder, data=data, weights="none", batch=4)
    assert len(built.fit) == 12
    with pytest.warns(UserWarning, match="has 2 class folders and the model 1000 classes: not used as labels"):
        found = run(built, tmp_path / "run", cache=tmp_path / "cache")
    assert {row.set for row in found.rows} == set(SETS)
    assert set(found.groups.values()) == {"far", "near"}
    assert found.facts["images"] == {"train": 12, "imagenet": 4, **dict.fromkeys(SETS, 4)}
    lines = tabulate(found)
    assert any(line.paper for line in lines if line.dataset == "sun")  # the paper's numbers stand beside


@pytest.mark.heavy
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_command_runs_whole(arch: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a user would, on folders like the real ones: every row of the paper, those that move images where quick."""
    paint(data / "imagenet" / "train", 60, 99)
    words = [
        "bench",
        f"paper-imagenet-{arch}",
        "--data",
        str(data),
        "--weights",
        "none",
        "--out",
        str(tmp_path / "run"),
    ]
    words += ["--pixel-images", "2"] if arch in FAST else ["--no-pixels"]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--json"])
    assert ended.value.code == 0
    found = load(tmp_path / "run")
    assert found.facts["left_out"] == {}
    assert {row.set for row in found.rows} == set(SETS)
    expected = describe.methods(describe.read(f"paper-imagenet-{arch}")[0])
    assert len(found.specs) == len(expected if arch in FAST else describe.without_pixels(expected))
    assert (tmp_path / "run" / "report.html").is_file()
    assert str(tmp_path / "run") in "".join(capsys.readouterr())
