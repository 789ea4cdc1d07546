"""Saving and loading: bit-equal, no pickle, and one line for everything that does not fit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import models
import pytest
import safetensors.torch
import torch
from torch import Tensor

import davis
from davis import artifact

FIT = [(models.photos(40, seed), torch.arange(40) % models.CLASSES) for seed in (1, 2)]
TEST = models.photos(7, seed=3)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    detector = davis.Detector(models.small_net(), "max + react(p=80) + dice(p=40) + knn(k=5)").fit(FIT)
    return davis.save(detector.calibrate([models.photos(30, 7)], tpr=0.9), tmp_path / "detector")


@pytest.mark.parametrize("spec", models.EVERY_SPEC + models.PIXEL_SPECS)
def test_round_trip_is_bit_equal(spec: str, tmp_path: Path) -> None:
    model = models.small_net()
    detector = davis.Detector(model, spec).fit(FIT).calibrate([models.photos(30, 7)], tpr=0.9)
    again = davis.load(davis.save(detector, tmp_path / "d"), models.small_net())
    first, second = detector(TEST), again(TEST)
    assert torch.equal(first.score, second.score)
    assert torch.equal(first.is_ood, second.is_ood)  # type: ignore[arg-type]
    assert (again.spec, again.calibration, again.images_seen) == (
        detector.spec,
        detector.calibration,
        detector.images_seen,
    )
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["detector.json", "detector.safetensors"]


def test_the_classifier_is_not_copied(saved: Path) -> None:
    tensors = safetensors.torch.load_file(saved / "detector.safetensors")
    assert sorted(tensors) == [
        "backbone.noise",
        "calibration.scores",
        "fit.class_counts",
        "fit.hashes",
        "stages.1.clip",
        "stages.2.mask",
        "stages.3.bank",
        "stages.3.centre",
    ]
    assert tensors["stages.2.mask"].dtype == torch.bool


def test_record_is_readable_without_a_model(saved: Path) -> None:
    record = artifact.read_record(saved)
    assert record["format"] == 2
    assert record["spec"] == "max + react(p=80) + dice(p=40) + knn(k=5)"
    assert record["backbone"]["head"] == "head"
    assert record["calibration"]["sizes"] == [30]


def edit_json(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        record = json.loads((folder / "detector.json").read_text())
        change(record)
        (folder / "detector.json").write_text(json.dumps(record))

    return apply


def edit_tensors(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = safetensors.torch.load_file(folder / "detector.safetensors")
        change(tensors)
        safetensors.torch.save_file(tensors, folder / "detector.safetensors")

    return apply


BROKEN: list[tuple[str, Callable[[Path], object], str]] = [
    ("no folder", lambda f: [path.unlink() for path in f.iterdir()], "does not exist"),
    ("no tensors", lambda f: (f / "detector.safetensors").unlink(), "does not exist"),
    ("no json", lambda f: (f / "detector.json").unlink(), "does not exist"),
    ("future", edit_json(lambda r: r.update(format=99)), "has format 99; this davis"),
    ("no format", edit_json(lambda r: r.pop("format")), "no format number"),
    ("not json", lambda f: (f / "detector.json").write_text("{"), "is not JSON"),
    ("a list", lambda f: (f / "detector.json").write_text("[]"), "not a detector"),
    ("unknown field", edit_json(lambda r: r.update(run="rm -rf")), "has unknown field 'run'"),
    ("missing field", edit_json(lambda r: r.pop("spec")), "lacks field 'spec'"),
    ("wrong type", edit_json(lambda r: r.update(spec=3)), "field 'spec' is a int"),
    ("bad spec", edit_json(lambda r: r.update(spec="max + enrgy")), "did you mean 'energy'"),
    ("bad calibration", edit_json(lambda r: r.update(calibration={})), "its calibration is broken"),
    ("bad shape", edit_json(lambda r: r["backbone"].update(image_shape="x")), "image_shape"),
    ("other tap", edit_json(lambda r: r["backbone"].update(tap="conv1")), "has tap"),
    ("other spec", edit_json(lambda r: r.update(spec="mean + energy")), "has unknown tensor"),
    ("missing tensor", edit_tensors(lambda t: t.pop("stages.3.bank")), "lacks tensor 'stages.3.bank'"),
    ("extra tensor", edit_tensors(lambda t: t.update(extra=torch.zeros(1))), "has unknown tensor 'extra'"),
    ("misshapen", edit_tensors(lambda t: t.update({"stages.3.bank": torch.zeros(2, 2)})), "'stages.3.bank' is"),
    ("changed values", edit_tensors(lambda t: t["stages.3.bank"].add_(1)), "sha256 differs"),
    ("not safetensors", lambda f: (f / "detector.safetensors").write_bytes(b"junk"), "not a readable safetensors"),
]


@pytest.mark.parametrize(("break_it", "says"), [pytest.param(*case[1:], id=case[0]) for case in BROKEN])
def test_broken_artifacts_are_one_line(saved: Path, break_it: Callable[[Path], object], says: str) -> None:
    break_it(saved)
    with pytest.raises((ValueError, FileNotFoundError), match=says) as error:
        davis.load(saved, models.small_net())
    assert "\n" not in str(error.value)


def test_another_classifier_is_refused(saved: Path) -> None:
    with pytest.raises(ValueError, match="last layer is not the one"):
        davis.load(saved, models.small_net(seed=1))
    with pytest.raises(ValueError, match="fitted with"):
        davis.load(saved, models.SmallNet(classes=3))


def test_another_body_with_the_same_last_layer_is_refused(saved: Path) -> None:
    model = models.small_net()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "head" not in name and parameter.ndim == 4:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    with pytest.raises(ValueError, match="and gives other features"):
        davis.load(saved, model)
    record, tensors = artifact._verified(saved)
    del tensors["backbone.noise"]  # as an earlier version saved it
    artifact._write_both(saved, record, tensors)
    davis.load(saved, model)


def test_unfitted_and_unseen_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not fitted"):
        davis.save(davis.Detector(models.small_net(), "knn"), tmp_path / "d")
    with pytest.raises(ValueError, match="has not seen an image"):
        davis.save(davis.Detector(models.small_net(), "energy"), tmp_path / "d")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        davis.save(davis.Detector(models.small_net(), "knn").fit(FIT), tmp_path / "file")


@pytest.mark.parametrize("fails_at", [1, 2])
def test_a_crash_while_saving_loses_neither_detector(
    saved: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """Before the first file is in place the old detector loads, after it the new one."""
    old = davis.load(saved, models.small_net())
    new = davis.Detector(models.small_net(), "max + react(p=50) + dice(p=40) + knn(k=5)").fit(FIT)
    calls = 0

    def crash(source: Path, target: Path, replace: Callable[[Path, Path], None] = os.replace) -> None:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        davis.save(new, saved)
    expected = old if fails_at == 1 else new
    assert torch.equal(davis.load(saved, models.small_net())(TEST).score, expected(TEST).score)


def test_other_files_in_the_folder_stay(saved: Path) -> None:
    (saved / "README.md").write_text("mine")
    davis.save(davis.Detector(models.small_net(), "knn(k=5)").fit(FIT), saved)
    assert (saved / "README.md").read_text() == "mine"


@pytest.mark.parametrize(
    ("field", "value"),
    [("spec", "mean + knn(k=3)"), ("spec", "max + knn(k=4)"), ("preprocessing", {"mean": [0.1, 0.1, 0.1]})],
)
def test_a_changed_text_that_fits_is_refused(tmp_path: Path, field: str, value: object) -> None:
    """The tensors are those of the other detector too, and its threshold is not."""
    detector = davis.Detector(models.small_net(), "max + knn(k=3)").fit([models.photos(40, 1)])
    detector.preprocessing = davis.data.Preprocessing(size=12)
    text = davis.save(detector.calibrate([models.photos(30, 2)], tpr=0.9), tmp_path) / "detector.json"
    record = json.loads(text.read_text())
    record[field] = record[field] | value if isinstance(value, dict) else value
    text.write_text(json.dumps(record))
    with pytest.raises(ValueError, match="was changed after it was saved"):
        davis.load(tmp_path, models.small_net())


@pytest.mark.parametrize("name", ["detector.json", "detector.json.next", "detector.safetensors"])
def test_files_of_somebody_else_are_kept(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    detector = davis.Detector(models.small_net(), "energy")
    detector.backbone.probe((3, 12, 12))
    with pytest.raises(ValueError, match="choose another folder"):
        davis.save(detector, tmp_path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "precious")]
