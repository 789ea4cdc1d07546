"""What an attack on verdicts, fusion, grids and caches found: each once, so that it stays mended."""

from __future__ import annotations

from pathlib import Path

import models
import pytest
import safetensors.torch
import torch
from test_cli import MODEL, Run, assert_fails, fitted, run, workplace

import davis
from davis import artifact
from davis.bench.cache import fill
from davis.calibrate import calibrate
from davis.scoring import score_all
from davis.stages import Stouffer
from davis.stages.fusions import normal_quantiles
from davis.tuning.grid import expand

__all__ = ["fitted", "run", "workplace"]  # fixtures

FIT, OTHER, HELD = ([models.photos(400, seed)] for seed in (1, 2, 3))


def test_no_normal_quantile_is_lost() -> None:
    log_p = -torch.logspace(-3, 60, 400, dtype=torch.float64)
    found = normal_quantiles(log_p)
    assert found.isfinite().all()
    assert bool((found.diff() <= 0).all())


def test_weights_have_bounds() -> None:
    for weights in ((1e308, 1e308), (1e-308, 1.0), (0.0, 1.0)):
        with pytest.raises(ValueError, match="weights must be greater than 0, from 1e-6 to 1e6"):
            Stouffer(weights=weights)


def test_scores_that_are_no_numbers_get_no_verdict() -> None:
    found = calibrate(torch.arange(40.0))
    for judge in (found.p_values, found.is_ood):
        with pytest.raises(ValueError, match="1 of 2 scores are NaN or infinite"):
            judge(torch.tensor([1.0, torch.nan]), torch.zeros(2, dtype=torch.int64))


@pytest.mark.parametrize(
    ("classes", "groups", "says"),
    [
        ([0, 1], [-1, 0], "numbered from 0"),
        ([0, 1], [0, 2], "numbered from 0"),
        ([0, 5], [0, 1], "from 0 to 1"),
        ([0, -1], [0, 1], "from 0 to 1"),
        ([0.5, 1.0], [0, 1], "whole numbers"),
        ([0], [0, 1], "one for each score"),
    ],
)
def test_classes_and_groups_fit_together(classes: list[float], groups: list[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        calibrate(torch.arange(2.0), classes=torch.tensor(classes), groups=groups)


def test_recalibration_does_not_sign_what_was_tampered_with(tmp_path: Path) -> None:
    detector = davis.Detector(models.small_net(), "knn(k=5)").fit(FIT).calibrate(HELD)
    folder = davis.save(detector, tmp_path / "d")
    tensors = safetensors.torch.load_file(folder / "detector.safetensors")
    tensors["stages.2.bank"] = tensors["stages.2.bank"] + 1
    safetensors.torch.save_file(tensors, folder / "detector.safetensors")
    assert detector.calibration is not None
    with pytest.raises(ValueError, match="sha256 differs"):
        artifact.recalibrate(folder, detector.calibration)
    with pytest.raises(ValueError, match="sha256 differs"):
        artifact.saved_calibration(folder)


def test_reference_images_count_as_seen() -> None:
    detector = davis.Detector(models.small_net(), "energy | knn(k=5)").fit(FIT, reference=OTHER)
    with pytest.warns(UserWarning, match="were fitted on"):
        detector.calibrate(OTHER)


def test_detectors_that_were_fitted_apart_are_scored_apart() -> None:
    backbone = davis.Backbone(models.small_net())
    one = davis.Detector(backbone, "energy | knn(k=5)").fit(FIT)
    two = davis.Detector(backbone, "msp | knn(k=5)").fit(OTHER)
    activations = backbone(HELD[0], statistics=())
    found = score_all([one, two], [(activations, None)])
    for detector in (one, two):
        torch.testing.assert_close(
            torch.from_numpy(found[detector.spec]), detector.score(activations), rtol=1e-9, atol=0
        )
    with pytest.raises(ValueError, match="same spec"):
        score_all([one, davis.Detector(backbone, one.spec).fit(OTHER)], [(activations, None)])


def test_other_fitted_values_have_no_old_threshold() -> None:
    one = davis.Detector(models.small_net(), "knn(k=5)").fit(FIT).calibrate(HELD)
    one.load_state_dict(davis.Detector(models.small_net(), "knn(k=5)").fit(OTHER).state_dict())
    assert one.threshold is None
    assert one(HELD[0]).is_ood is None


def test_grids_lose_nothing_and_end() -> None:
    assert expand("energy(t={" + ", ".join(["1"] * 2500) + "}); knn") == ["mean + energy", "mean + knn"]
    with pytest.raises(ValueError, match="more than 2000 specs"):
        expand(" + ".join(["{react(p=90),}"] * 24) + " + energy")


def test_a_wider_cache_may_come_and_go(tmp_path: Path) -> None:
    """A run is known by what its rows depend on, not by which folder serves it."""

    class Pictures:
        name = "pictures"

        def __len__(self) -> int:
            return len(HELD[0])

        def fingerprint(self) -> str:
            return "same"

        def batches(self, start: int, size: int):  # type: ignore[no-untyped-def]
            yield HELD[0][start:], None, len(HELD[0]) - start

    backbone = davis.Backbone(models.small_net())
    wide = fill(tmp_path, backbone, Pictures(), statistics=("std", "max", "median"))
    narrow = fill(tmp_path, backbone, Pictures(), statistics=("max",))
    own = fill(tmp_path / "elsewhere", backbone, Pictures(), statistics=("max",))
    assert narrow.folder == wide.folder
    assert own.identity == wide.identity
    assert torch.equal(own.activations().max, wide.activations().max)  # type: ignore[arg-type]
    (wide.folder / "record.json").write_text('{"form')
    assert fill(tmp_path, backbone, Pictures(), statistics=("max",)).folder != wide.folder


def test_explain_does_not_write_over_photographs(run: Run, fitted: Path, workplace: Path) -> None:
    before = (workplace / "flat" / "0.png").read_bytes()
    assert_fails(run("explain", fitted, "flat/0.png", "--model", MODEL, "--out", "flat"), "would write over")
    assert (workplace / "flat" / "0.png").read_bytes() == before


def test_a_pipe_without_scores_is_no_all_clear(run: Run, monkeypatch: pytest.MonkeyPatch, workplace: Path) -> None:
    import io

    (workplace / "held.csv").write_text("score\n" + "\n".join(map(str, range(200))) + "\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert_fails(run("watch", "-", "--calibration", "held.csv"), "stdin ended without a score")
