"""Fused detectors, everywhere a detector goes: fit, score, save, calibrate, the grid."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest
import torch
from scipy import stats

import davis
from davis.fitting import REFERENCE
from davis.joint_fit import fit_from_activations
from davis.scoring import score_all

SPEC = "max + react(p=80) + energy | mean + energy | mean + knn(k=5)"
FIT = [models.photos(150, seed) for seed in (1, 2)]
HELD = [models.photos(80, 3)]
OTHER = [models.photos(100, 4)]
TEST = models.photos(9, 5)


@pytest.fixture(scope="module")
def fused() -> davis.Detector:
    return davis.Detector(models.small_net(), SPEC).fit(FIT)


def test_the_fused_score_is_that_of_its_parts() -> None:
    """Against reference images given by hand: each part alone, ranked by SciPy, then Fisher's sum."""
    detector = davis.Detector(models.small_net(), SPEC).fit(FIT, reference=OTHER)
    parts = davis.fit_all(models.small_net(), SPEC.split("|"), FIT)
    logs = torch.zeros(len(TEST), dtype=torch.float64)
    inside = torch.ones(len(TEST), dtype=torch.bool)
    for part in parts:
        held, new = part.score_images(OTHER[0]).sort().values, part.score_images(TEST)
        places = stats.rankdata(held.numpy(), "ordinal")
        p = torch.from_numpy(np.interp(new.numpy(), held.numpy(), places)) / (len(held) + 1)
        logs += p.log()
        inside &= (p > 0.06) & (p < 0.99)
    assert inside.any()
    torch.testing.assert_close(detector.score_images(TEST)[inside], logs[inside], rtol=1e-6, atol=1e-9)


def test_one_pass_serves_all_parts(fused: davis.Detector) -> None:
    counted = 0

    def count(*_: object) -> None:
        nonlocal counted
        counted += 1

    hook = fused.backbone.model.register_forward_hook(count)
    output = fused(TEST)
    hook.remove()
    assert counted == 1
    assert torch.equal(output.logits, fused.backbone.model(TEST))
    assert torch.equal(output.score, fused.score_images(TEST))
    activations = fused.backbone(TEST, statistics=fused.reads)
    assert torch.equal(output.score, fused.score(activations))


def test_a_tenth_of_the_fit_images_is_held_out(fused: davis.Detector) -> None:
    assert fused.images_seen == 300
    assert fused.fuse is not None
    held = fused.fuse.reference.shape[1]
    assert 15 <= held <= 45
    assert fused.stages[-2].bank.shape[0] == 300 - held  # type: ignore[union-attr]
    again = davis.Detector(models.small_net(), SPEC).fit(FIT)
    assert torch.equal(again.fuse.reference, fused.fuse.reference)  # type: ignore[union-attr]
    other = davis.Detector(models.small_net(), SPEC).fit(FIT, seed=1)
    assert not torch.equal(other.score_images(TEST), fused.score_images(TEST))


def test_company_changes_nothing() -> None:
    """A detector is fitted on all images, with or without a fused one beside it."""
    alone = davis.fit_all(models.small_net(), ["knn(k=5)"], FIT)[0]
    beside, _ = davis.fit_all(models.small_net(), ["knn(k=5)", SPEC], FIT)
    assert torch.equal(alone.score_images(TEST), beside.score_images(TEST))


def test_the_reference_is_bounded() -> None:
    detector = davis.Detector(models.small_net(), "max + energy | energy")
    rows = detector.backbone(torch.cat(FIT), statistics={"max"})
    fit_from_activations([detector], ((rows, None) for _ in range(200)))
    assert detector.fuse is not None
    assert detector.fuse.reference.shape == (2, REFERENCE)


def test_saved_and_loaded(fused: davis.Detector, tmp_path: Path) -> None:
    fused.calibrate(HELD, tpr=0.9)
    again = davis.load(davis.save(fused, tmp_path / "d"), models.small_net())
    one, two = fused(TEST), again(TEST)
    for field in ("score", "p_value", "is_ood"):
        assert torch.equal(getattr(one, field), getattr(two, field))
    assert again.spec == fused.spec == davis.canonical(SPEC)


def test_the_grid_scores_fused_and_single_alike(fused: davis.Detector) -> None:
    specs = [SPEC, "knn(k=5)", "energy", "energy | knn(k=5) | stouffer"]
    detectors = davis.fit_all(models.small_net(), specs, FIT)
    activations = detectors[0].backbone(TEST, statistics={"max"})
    found = score_all(detectors, [(activations, None)])
    assert list(found) == [detector.spec for detector in detectors]
    for detector in detectors:
        torch.testing.assert_close(
            torch.from_numpy(found[detector.spec]), detector.score(activations), rtol=1e-9, atol=0
        )


def test_too_few_to_rank_against() -> None:
    with pytest.raises(ValueError, match=r"are too few, 20 are needed; fit on 400 images or more, or give others"):
        davis.Detector(models.small_net(), "max + energy | energy").fit([models.photos(40, 1)])
    with pytest.raises(ValueError, match="3 are too few"):
        davis.Detector(models.small_net(), "max + energy | energy").fit(FIT, reference=[models.photos(3, 1)])


def test_unfitted_fusions_say_so() -> None:
    detector = davis.Detector(models.small_net(), "max + energy | energy")
    with pytest.raises(davis.NotFittedError, match=r"is not fitted \(fisher learns from data\)"):
        detector(TEST)
    with pytest.raises(ValueError, match="fuses 2 detectors; ask one of them"):
        detector.features(TEST)


def test_thresholds_by_class(fused: davis.Detector) -> None:
    """Each predicted class has its own threshold, or shares that of the rare ones; all are in the artifact."""
    held = [models.photos(600, 6)]
    fused.calibrate(held, tpr=0.9, by_class=True)
    calibration = fused.calibration
    assert calibration is not None
    assert calibration.groups is not None
    output = fused(held[0])
    classes = output.logits.argmax(1)
    groups = torch.tensor(calibration.groups)[classes]
    for group, threshold in enumerate(calibration.thresholds):
        members = groups == group
        assert torch.equal(output.is_ood[members], output.score[members] < threshold)  # type: ignore[index]
        assert (~output.is_ood[members]).double().mean() >= 0.9  # type: ignore[index]


def test_thresholds_by_class_need_counts_of_the_fit() -> None:
    with pytest.raises(ValueError, match="pool rare classes by what the fit saw, and fitting 'mean"):
        davis.Detector(models.small_net(), "energy").calibrate(HELD, by_class=True)


def test_calibrating_on_the_fit_images_is_noticed(fused: davis.Detector, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="about 100% of these images were fitted on"):
        fused.calibrate(FIT)
    again = davis.load(davis.save(fused, tmp_path / "d"), models.small_net())
    with pytest.warns(UserWarning, match="were fitted on"):
        again.calibrate([torch.cat([FIT[0][:40], HELD[0]])])
    again.calibrate(HELD)  # no warning
