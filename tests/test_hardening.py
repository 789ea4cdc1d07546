"""Faults that an attack on the library found; each must stay fixed."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import davis
from davis import stages

FIT = [models.photos(60, 1)]
HELD = [models.photos(60, 11)]
TEST = models.photos(6, 2)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    "spec", ["react + energy", "bats + energy", "laps(m=1) + energy", "react + knn(k=3)", "energy"]
)
def test_infinity_does_not_hide_behind_a_clip(spec: str) -> None:
    detector = davis.Detector(models.small_net(), spec).fit(FIT).calibrate(HELD)
    with pytest.raises(ValueError, match=r"gave NaN or infinity for 1 of 1 images|NaN or inf in 1 of 1 rows"):
        detector(torch.full((1, 3, 12, 12), 3e38))
    with pytest.raises(ValueError, match="NaN or inf in 1 of 1 rows"):
        detector(torch.full((1, 3, 12, 12), 1e39, dtype=torch.float64))


def test_threads_that_share_a_model() -> None:
    """Two backbones and a caller of the model itself: hooks, modes and scores must not mix."""
    model = models.small_net().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = [models.photos(3, seed) for seed in (1, 2)]
    detectors = [davis.Detector(davis.Backbone(model), spec) for spec in ("max + energy", "davis(gamma=2) + energy")]
    expected = [detector(images).score for detector, images in zip(detectors, inputs, strict=True)]
    wrong: list[int] = []

    def work(place: int) -> None:
        for _ in range(60):
            if not torch.equal(detectors[place](inputs[place]).score, expected[place]):
                wrong.append(place)

    workers = [threading.Thread(target=work, args=(place,)) for place in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class SizeNeck(nn.Module):
    """What follows pooling depends on the size of the map."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.conv(images).relu()
        return self.head(maps.mean((2, 3)) * maps.shape[-1])


def test_a_neck_that_depends_on_the_image_size_is_refused() -> None:
    detector = davis.Detector(SizeNeck().eval(), "max + energy")
    detector(torch.rand(2, 3, 8, 8))
    with pytest.raises(ValueError, match="depends on the image size"):
        detector(torch.rand(2, 3, 16, 16))


def test_godin_in_training_mode_leaves_the_model_alone() -> None:
    body = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(*body, stages.GodinHead(12, 4)).eval()
    detector = davis.Detector(davis.Backbone(model, tap="1", head="4"), "godin(score=g)")
    expected, before = detector(TEST).score, {k: v.clone() for k, v in model.state_dict().items()}
    model.train()
    assert torch.equal(detector(TEST).score, expected)
    torch.testing.assert_close(detector(TEST[:1]).score, expected[:1])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("spec", ["react + knn(k=20)", "react + adascale_a(k_shift=10)"])
def test_a_failed_refit_changes_nothing(spec: str) -> None:
    detector = davis.Detector(models.small_net(), spec).fit(FIT).calibrate(HELD)
    before = detector(TEST)
    broken = models.photos(5, 3) * 100
    bad = [broken] if "knn" in spec else [broken, torch.full((1, 3, 12, 12), torch.nan)]
    with pytest.raises(ValueError):
        detector.fit(bad)
    after = detector(TEST)
    assert torch.equal(before.score, after.score)
    assert torch.equal(before.is_ood, after.is_ood)  # type: ignore[arg-type]


class Moody(nn.Module):
    """Averages its map on faint images and takes the maximum of it on others."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.conv(images).relu()
        return self.head(maps.amax((2, 3)) if images.abs().max() > 6 else maps.mean((2, 3)))


def test_the_check_is_made_on_every_batch() -> None:
    detector = davis.Detector(Moody().eval(), "max + energy")
    assert detector(torch.rand(2, 3, 8, 8)).score.isfinite().all()
    with pytest.raises(ValueError, match="do not give the model's logits"):
        detector(10 * torch.rand(2, 3, 8, 8))
    biased = models.map_net()
    with torch.no_grad():
        biased.head.bias.fill_(1e4)
    backbone = davis.Backbone(biased, tap="body", head="head", after=lambda maps: maps * 1.5)
    with pytest.raises(ValueError, match="do not give the model's logits"):
        davis.Detector(backbone, "energy")(models.maps(3))


@pytest.mark.parametrize("scale", [1e-25, 1e22])
def test_directions_of_tiny_and_huge_features(scale: float) -> None:
    single, double = models.map_net(), models.map_net().double()
    fit, test = models.maps(60, 1), models.maps(4, 2) * scale
    for spec in ("knn(k=3)", "combood(k=3)"):
        exact = davis.Detector(double, spec).fit([fit.double()])(test.double()).score
        found = davis.Detector(single, spec).fit([fit])(test).score
        torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-3)


@pytest.mark.filterwarnings("ignore:the last map")
@pytest.mark.parametrize("noise", [1e-2, 1e-3])
def test_neighbours_among_near_duplicates(noise: float) -> None:
    random = torch.Generator().manual_seed(0)
    base = torch.rand(1, 12, 1, 1, generator=random) + 0.5
    bank = base + noise * torch.randn(200, 12, 1, 1, generator=random)
    test = base + noise * torch.randn(5, 12, 1, 1, generator=random)
    model = models.map_net(channels=12)
    found = -davis.Detector(model, "knn(k=1)").fit([bank])(test).score
    unit = [value.flatten(1).double().numpy() for value in (bank, test)]
    unit = [value / np.linalg.norm(value, axis=1, keepdims=True) for value in unit]
    exact = np.linalg.norm(unit[1][:, None] - unit[0][None], axis=2).min(1)
    np.testing.assert_allclose(found.numpy(), exact, rtol=2e-2)


def test_gradients_through_the_papers_entropy() -> None:
    activations = davis.Backbone(models.small_net())(
        images := TEST.clone().requires_grad_(), statistics={"entropy_paper"}, gradients=True
    )
    assert activations.entropy_paper is not None
    (gradient,) = torch.autograd.grad(activations.entropy_paper.sum(), images)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


def test_a_model_without_gradients_says_so() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = models.small_net()

        @torch.no_grad()
        def forward(self, images: Tensor) -> Tensor:
            return self.inner(images)

    with pytest.raises(ValueError, match="gives no gradient with respect to its images"):
        davis.Detector(Frozen(), "odin + msp")(TEST)


def test_every_batch_is_read_whole_or_refused() -> None:
    detector = davis.Detector(models.small_net(), "max + energy")
    with pytest.raises(TypeError, match="a list of 3 was given"):
        detector.calibrate([[TEST, TEST, TEST]])  # type: ignore[list-item]
    for labels, says in (("junk", "must be integers"), (torch.rand(6), "must be integers"), ([1, 2], "one per image")):
        with pytest.raises((TypeError, ValueError), match=says):
            detector.calibrate([(TEST, labels)])  # type: ignore[list-item]
    loader = DataLoader(TensorDataset(models.photos(40)), batch_size=8)
    assert detector.calibrate(loader).calibration.count == 40  # type: ignore[arg-type, union-attr]
    knn = davis.Detector(models.small_net(), "knn(k=3)").fit([(TEST, None)])  # type: ignore[list-item]
    assert knn.images_seen == 6
    for call in (knn.fit, knn.calibrate):
        with pytest.raises(TypeError, match=r"give \[images\], or a DataLoader"):
            call(TEST)  # type: ignore[operator]
    with pytest.raises(TypeError, match="a list of specs"):
        davis.fit_all(models.small_net(), "energy", FIT)


def test_small_data_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        davis.Detector(models.small_net(), "mahalanobis").fit([models.photos(10)])
    assert "10 images for 24 channels" in caplog.text
    caplog.clear()
    few = davis.Detector(models.map_net(), "vim(d=12)").fit([models.maps(4)])
    assert "no residual" in caplog.text
    assert torch.equal(
        few(models.maps(3, 7)).score, davis.Detector(models.map_net(), "energy")(models.maps(3, 7)).score
    )


def test_few_channels_keep_one() -> None:
    model = models.map_net(channels=3)
    images = models.maps(20, 1, channels=3) + 0.1
    for spec in ("ash_s", "ash_p", "ash_b"):
        assert len(davis.Detector(model, f"{spec} + energy")(images).score.unique()) > 10


@pytest.mark.parametrize("spec", ["caref", "fdbd", "nci(alpha=0)", "cadref(logit=msp)"])
def test_scores_that_do_not_depend_on_the_scale_of_features(spec: str) -> None:
    model = models.map_net().double()
    with torch.no_grad():
        model.head.bias.zero_()
    fit, test = models.maps(60, 1).double(), models.maps(4, 2).double()
    plain = davis.Detector(model, spec).fit([fit])(test).score
    small = davis.Detector(model, spec).fit([fit * 1e-15])(test * 1e-15).score
    if spec != "cadref(logit=msp)":  # its confidence falls with the scale
        torch.testing.assert_close(small, plain, rtol=1e-6, atol=0)
    assert small.isfinite().all()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('"tpr": NaN', "NaN is no number"),
        ('"tpr": Infinity', "Infinity is no number"),
        ('"tpr": "0.5"', "its calibration is broken"),
        ('"tpr": true', "its calibration is broken"),
        ('"tpr": 1e999', "its calibration is broken"),
        ('"tpr": 0.9', "its thresholds are"),
        ('"tpr": 0.999', "cannot promise"),
        ('"tpr": 0.5, "tpr": 0.6', "a name stands twice"),
        ('"extra": 1, "tpr": 0.95', "its calibration is broken"),
    ],
)
def test_numbers_in_an_artifact_are_numbers(tmp_path: Path, text: str, says: str) -> None:
    folder = davis.save(davis.Detector(models.small_net(), "max + energy").calibrate(FIT), tmp_path / "d")
    file = folder / "detector.json"
    file.write_text(file.read_text().replace('"tpr": 0.95', text))
    with pytest.raises(ValueError, match=says):
        davis.load(folder, models.small_net())


def test_tensors_of_another_model_are_refused(tmp_path: Path) -> None:
    detector = davis.Detector(models.small_net(), "knn(k=3)").fit(FIT)
    for change in (lambda bank: bank[:, :5], lambda bank: bank[:2], lambda bank: bank * torch.nan):
        copy: Any = davis.Detector(models.small_net(), "knn(k=3)").fit(FIT)
        knn = copy.stages[-1]
        knn.bank = change(knn.bank).contiguous()
        folder = davis.save(copy, tmp_path / "d")
        with pytest.raises(ValueError, match=r"does not fit|holds NaN"):
            davis.load(folder, models.small_net())
    assert detector.is_fitted


def test_a_stage_that_forgets_a_setting_is_caught() -> None:
    from davis.stages.base import REGISTRY, Shape

    try:

        class Forgetful(Shape, name="forgetful_of_test_hardening"):
            """Stores its setting under another name."""

            def __init__(self, *, p: float = 1) -> None:
                super().__init__()
                self.q = p

        with pytest.raises(TypeError, match=r"must store its setting .p. as self\.p"):
            Forgetful()
    finally:
        REGISTRY.pop("forgetful_of_test_hardening", None)


def test_long_specs_are_short_errors() -> None:
    with pytest.raises(ValueError, match="characters") as error:
        davis.canonical("energy(t=" + "1+" * 80_000 + ")")
    assert len(str(error.value)) < 500
