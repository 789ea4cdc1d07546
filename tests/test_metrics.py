"""Metrics against scikit-learn, the published codes' conventions, and brute force."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from davis import metrics

SCORES = st.lists(st.integers(-5, 5) | st.floats(-1e6, 1e6), min_size=1, max_size=40)


def labelled(id_scores: list[float], ood_scores: list[float]) -> tuple[np.ndarray, np.ndarray]:
    scores = np.asarray([*id_scores, *ood_scores], dtype=np.float64)
    return np.repeat([1, 0], [len(id_scores), len(ood_scores)]), scores


@given(SCORES, SCORES)
def test_equal_to_scikit_learn(id_scores: list[float], ood_scores: list[float]) -> None:
    truth, scores = labelled(id_scores, ood_scores)
    found = metrics.evaluate(id_scores, ood_scores)
    assert found.auroc == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    assert found.aupr_in == pytest.approx(average_precision_score(truth, scores), abs=1e-12)
    assert found.aupr_out == pytest.approx(average_precision_score(1 - truth, -scores), abs=1e-12)
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert found.fpr == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=1e-12)


@given(SCORES, SCORES, st.sampled_from([0.5, 0.8, 0.9, 0.95, 1.0]))
def test_fpr_by_brute_force(id_scores: list[float], ood_scores: list[float], tpr: float) -> None:
    ids, oods = np.asarray(id_scores, dtype=float), np.asarray(ood_scores, dtype=float)
    allowed = [t for t in ids if np.mean(ids >= t) >= tpr]
    assert metrics.fpr_at_tpr(ids, oods, tpr=tpr) == pytest.approx(min(np.mean(oods >= t) for t in allowed))


GOLDEN = {
    "exact": "fpr95",
    "davis": "davis_official_fpr95_closest_recall",
    "wisc": "wisc_FPR",
    "vim": "vim_fpr95_floor_ge",
    "cadref": "fpr95_cadref_sklearn_drop",
    "openood": "openood_fpr95_ood_positive",
}


def test_golden(shared: Path) -> None:
    expected = json.loads((shared / "golden" / "golden.json").read_text())["metrics"]
    arrays = np.load(shared / "golden" / "golden.npz")
    assert len(expected) == 8
    for name, values in expected.items():
        ids, oods = arrays[f"in|metrics|{name}|id"], arrays[f"in|metrics|{name}|ood"]
        found = metrics.evaluate(ids, oods)
        for key, value in (("auroc", found.auroc), ("aupr_in_ap", found.aupr_in), ("aupr_out_ap", found.aupr_out)):
            assert value == pytest.approx(values[key], abs=1e-12), (name, key)
        for convention, key in GOLDEN.items():
            if key in values:  # wisc has no value where all scores are equal
                value = metrics.fpr_at_tpr(ids, oods, convention=convention)  # type: ignore[arg-type]
                assert value == pytest.approx(values[key], abs=1e-12), (name, convention)
        trapezoid = metrics.aupr_in(ids, oods, rule="trapezoid"), metrics.aupr_out(ids, oods, rule="trapezoid")
        assert trapezoid == pytest.approx((values["aupr_in_trapz"], values["aupr_out_trapz"]), abs=1e-12)


def test_the_direction_of_fpr_is_named() -> None:
    """Peers call both of these FPR95; on the same scores they are different quantities."""
    random = np.random.default_rng(0)
    ids, oods = random.normal(1, 1, 4000), random.normal(0, 3, 4000)
    usual, turned = (metrics.fpr_at_tpr(ids, oods, convention=c) for c in ("exact", "openood"))
    assert usual == pytest.approx(np.mean(oods >= np.sort(ids)[200]), abs=1e-3)
    assert turned == pytest.approx(np.mean(ids <= np.sort(oods)[3800]), abs=1e-3)
    assert abs(usual - turned) > 0.2


def test_ties_cannot_be_gamed() -> None:
    """All scores equal: nothing is told apart, whatever the order of the input."""
    found = metrics.evaluate(np.ones(50), np.ones(70))
    assert found.auroc == 0.5
    assert found.fpr == 1


def test_interval() -> None:
    random = np.random.default_rng(1)
    ids, oods = random.normal(1, 1, 300), random.normal(0, 1, 300)
    low, high = metrics.interval(ids, oods, "auroc")
    assert low < metrics.auroc(ids, oods) < high
    # The Hanley-McNeil standard error of an AUROC of 0.76 from 300 + 300 scores is 0.0195.
    assert high - low == pytest.approx(2 * 1.96 * 0.0195, rel=0.15)
    assert metrics.interval(ids, oods, "auroc") == (low, high)
    assert metrics.interval(ids, oods, "auroc", seed=1) != (low, high)
    low, high = metrics.interval(ids, oods, "fpr", resamples=200)
    assert low < metrics.fpr_at_tpr(ids, oods) < high


def test_torch_tensors_are_scores_too() -> None:
    assert metrics.auroc(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])) == 0.875


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: metrics.auroc([], [1]), "at least one number"),
        (lambda: metrics.auroc([1], []), "OOD scores must be"),
        (lambda: metrics.auroc([[1]], [1]), "got shape"),
        (lambda: metrics.auroc([np.nan], [1]), "ID scores contain NaN"),
        (lambda: metrics.fpr_at_tpr([1], [1], tpr=0), "tpr must be"),
        (lambda: metrics.fpr_at_tpr([1], [1], convention="closest"), "known: exact, davis"),  # type: ignore[arg-type]
        (lambda: metrics.aupr_in([1], [1], rule="x"), "known: step"),  # type: ignore[arg-type]
        (lambda: metrics.interval([1], [1], "f1"), "known: auroc"),  # type: ignore[arg-type]
        (lambda: metrics.interval([1], [1], confidence=1), "confidence"),
    ],
)
def test_bad_input(call: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        call()  # type: ignore[operator]
