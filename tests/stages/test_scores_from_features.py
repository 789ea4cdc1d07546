"""Scores that compare with training means and bins, against explicit loops."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax

from davis.stages import CadRef, CaRef, Fdbd, Nci, OptFs


@pytest.mark.parametrize("normalizer", ["distance", "feature"])
def test_fdbd(case: Any, normalizer: Any) -> None:
    stage = case.fit(Fdbd(normalizer=normalizer))
    mean = case.train.mean(0)
    expected = []
    for h, f in zip(case.test, case.logits(case.test), strict=True):
        best, total = f.argmax(), 0.0
        for c in range(5):
            if c != best:
                total += abs(f[best] - f[c]) / np.linalg.norm(case.weight[best] - case.weight[c])
        expected.append(total / np.linalg.norm(h - mean if normalizer == "distance" else h))
    np.testing.assert_allclose(case.score(stage), expected, rtol=1e-9)


def test_fdbd_with_equal_class_weights(make: Any) -> None:
    case = make("signed", classes=3)
    case.weight[1] = case.weight[0]
    scores = case.score(case.fit(Fdbd()))
    mean = case.train.mean(0)
    for h, f, score in zip(case.test, case.logits(case.test), scores, strict=True):
        best = f.argmax()
        terms = [
            abs(f[best] - f[c]) / np.linalg.norm(case.weight[best] - case.weight[c])
            for c in range(3)
            if {best, c} not in ({0, 1}, {best})
        ]
        assert score == pytest.approx(sum(terms) / np.linalg.norm(h - mean), rel=1e-9)


def test_fdbd_at_the_mean_at_zero_and_with_one_class(make: Any) -> None:
    case = make("signed")
    rows = np.stack([case.train.mean(0), np.zeros(24)])
    assert np.isfinite(case.score(case.fit(Fdbd()), rows)).all()
    assert np.isfinite(case.score(case.fit(Fdbd(normalizer="feature")), rows)).all()
    case = make("signed", classes=1)
    assert case.score(case.fit(Fdbd())).tolist() == [0] * 9


@pytest.mark.parametrize("alpha", [0, 0.0001, 0.1])
def test_nci(case: Any, alpha: float) -> None:
    stage = case.fit(Nci(alpha=alpha))
    mean = case.train.mean(0)
    expected = []
    for h, f in zip(case.test, case.logits(case.test), strict=True):
        centred = h - mean
        expected.append(case.weight[f.argmax()] @ centred / np.linalg.norm(centred) + alpha * np.abs(h).sum())
    np.testing.assert_allclose(case.score(stage), expected, rtol=1e-9, atol=1e-12)


def test_nci_at_the_mean(signed: Any) -> None:
    assert np.isfinite(signed.score(signed.fit(Nci()), signed.train.mean(0)[None])).all()


def means_by_prediction(case: Any) -> np.ndarray:
    predicted = case.logits(case.train).argmax(1)
    return np.stack([case.train[predicted == c].mean(0) for c in range(5)])


def test_caref(case: Any) -> None:
    means = means_by_prediction(case)
    expected = []
    for h, f in zip(case.test, case.logits(case.test), strict=True):
        expected.append(-np.abs(h - means[f.argmax()]).sum() / np.abs(h).sum())
    np.testing.assert_allclose(case.score(case.fit(CaRef())), expected, rtol=1e-10)


def confidence(logits: np.ndarray, kind: str) -> np.ndarray:
    if kind == "energy":
        return logsumexp(logits, axis=1)
    if kind == "maxlogit":
        return logits.max(1)
    p = softmax(logits, axis=1)
    if kind == "msp":
        return p.max(1)
    p = np.sort(p, axis=1)[:, ::-1][:, : max(10, p.shape[1] // 10)]
    return 1 / (p**0.1 * (1 - p) ** 0.1).sum(1)


@pytest.mark.parametrize("logit", ["energy", "maxlogit", "msp", "gen"])
def test_cadref(case: Any, logit: Any) -> None:
    means = means_by_prediction(case)
    average = confidence(case.logits(case.train), logit).mean()
    f = case.logits(case.test)
    own = confidence(f, logit)
    expected = []
    for i, h in enumerate(case.test):
        c = f[i].argmax()
        positive = negative = 0.0
        for j in range(24):
            signed = (h[j] - means[c, j]) * np.sign(case.weight[c, j])
            positive += max(signed, 0) / np.abs(h).sum()
            negative += max(-signed, 0) / np.abs(h).sum()
        expected.append(-(positive / own[i] + negative / average))
    np.testing.assert_allclose(case.score(case.fit(CadRef(logit=logit))), expected, rtol=1e-9)


def test_cadref_with_many_classes_takes_a_tenth_of_them(make: Any) -> None:
    case = make("signed", classes=120, rows=300)
    stage = case.fit(CadRef(logit="gen"))
    assert stage.confidence.item() == pytest.approx(confidence(case.logits(case.train), "gen").mean(), rel=1e-9)


def test_cadref_drops_channels_of_weight_zero(make: Any) -> None:
    case = make("signed")
    case.weight[:, 5] = 0
    stage = case.fit(CadRef())
    moved = case.test.copy()
    moved[:, 5] *= -1  # the same |h|
    np.testing.assert_allclose(case.score(stage, moved), case.score(stage), rtol=1e-12)


def test_classes_that_were_never_predicted(make: Any) -> None:
    case = make("signed")
    case.bias[3] = case.bias[4] = -1e4  # never predicted in training
    case.labels[case.labels == 4] = 0  # and 4 has no label either
    predicted = case.logits(case.train).argmax(1)
    assert set(predicted) <= {0, 1, 2}
    stage = case.fit(CaRef())
    np.testing.assert_allclose(stage.means[0], case.train[predicted == 0].mean(0), rtol=1e-10)
    np.testing.assert_allclose(stage.means[3], case.train[case.labels == 3].mean(0), rtol=1e-10)
    np.testing.assert_allclose(stage.means[4], case.train.mean(0), rtol=1e-10)
    unlabelled = case.fit(CaRef(), labelled=False)
    np.testing.assert_allclose(unlabelled.means[3], case.train.mean(0), rtol=1e-10)
    assert stage.means.isfinite().all()
    assert case.fit(CadRef()).means.isfinite().all()


def test_dead_rows_have_finite_scores(relu: Any) -> None:
    rows = np.zeros((2, 24))
    for stage in (CaRef(), CadRef(), CadRef(logit="gen"), Nci(), Fdbd(normalizer="feature"), OptFs()):
        assert np.isfinite(relu.score(relu.fit(stage), rows)).all(), stage


def test_cadref_warns_of_confidences_below_zero(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    case = make("signed")
    with caplog.at_level(logging.WARNING):
        case.fit(CadRef(logit="msp"))
    assert not caplog.records
    case.bias[:] = -100
    with caplog.at_level(logging.WARNING):
        case.fit(CadRef())
    assert "cadref" in caplog.text


def test_cadref_with_one_class(make: Any) -> None:
    case = make("relu", classes=1)
    for logit in ("energy", "maxlogit", "msp", "gen"):
        assert np.isfinite(case.score(case.fit(CadRef(logit=logit)))).all(), logit


def bins_of(case: Any) -> tuple[np.ndarray, float, np.ndarray]:
    """The left edges of OptFS, their width and the weight of each bin, as the original computes them."""
    low, high = np.quantile(case.train, 0.001), np.quantile(case.train, 0.999)
    width = (high - low) / 100
    lefts = np.arange(low, high, width)
    predicted = case.logits(case.train).argmax(1)
    influence = np.zeros(len(lefts))
    for b, left in enumerate(lefts):
        for h, c in zip(case.train, predicted, strict=True):
            inside = (h >= left) & (h < left + width)
            influence[b] += (inside * case.weight[c] * h).sum() / len(case.train)
    return lefts, width, 1000 * influence / np.linalg.norm(influence)


def test_optfs(case: Any) -> None:
    lefts, width, theta = bins_of(case)
    vanilla, energy = [], []
    features = np.concatenate([case.test, [np.full(24, 1e3)], [np.full(24, -1e3)]])  # outside all bins
    for h, f in zip(features, case.logits(features), strict=True):
        shaped = np.zeros(24)
        for j, value in enumerate(h):
            for left, weight in zip(lefts, theta, strict=True):
                if left <= value < left + width:
                    shaped[j] = weight * value
        vanilla.append(case.weight[f.argmax()] @ shaped)
        energy.append(logsumexp(case.weight @ shaped + case.bias))
    np.testing.assert_allclose(case.score(case.fit(OptFs()), features), vanilla, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(case.score(case.fit(OptFs(score="energy")), features), energy, rtol=1e-9)


def test_optfs_bins_are_half_open(make: Any) -> None:
    """Whole numbers from 0 to 100 lie on the edges of 100 bins of width 1; the last edge is outside."""
    case = make("relu")
    case.train[:] = np.random.default_rng(0).integers(0, 101, case.train.shape)
    case.train[:2] = 0
    case.train[2:4] = 100
    assert (np.quantile(case.train, 0.001), np.quantile(case.train, 0.999)) == (0, 100)
    predicted = case.logits(case.train).argmax(1)
    influence = np.array([(np.where(case.train == v, v, 0) * case.weight[predicted]).sum() for v in range(101)])
    influence[100] = 0
    theta = 1000 * influence / np.linalg.norm(influence)
    values = np.random.default_rng(1).integers(0, 101, (9, 24))
    values[0] = 100
    best = case.logits(values.astype(float)).argmax(1)
    expected = (case.weight[best] * values * theta[values]).sum(1)
    np.testing.assert_allclose(case.score(case.fit(OptFs()), values.astype(float)), expected, rtol=1e-9, atol=1e-9)


def test_optfs_of_constant_features_is_refused(make: Any) -> None:
    case = make("relu")
    case.train[:] = 1.0
    with pytest.raises(ValueError, match="optfs: nearly all training features are equal"):
        case.fit(OptFs())


def test_constant_features_are_fine_elsewhere(make: Any) -> None:
    case = make("relu")
    case.train[:] = 1.0
    for stage in (Fdbd(), Nci(), CaRef(), CadRef()):
        assert np.isfinite(case.score(case.fit(stage))).all(), stage
        assert np.isfinite(case.score(stage, case.train[:3])).all(), stage


def test_predictions_come_from_the_logits_that_reach_the_score(signed: Any) -> None:
    stage = signed.fit(CaRef())
    features = torch.from_numpy(signed.test)
    logits = torch.zeros(9, 5, dtype=torch.float64)
    logits[:, 2] = 1
    expected = -np.abs(signed.test - means_by_prediction(signed)[2]).sum(1) / np.abs(signed.test).sum(1)
    np.testing.assert_allclose(stage(features, logits, signed.classifier), expected, rtol=1e-10)
