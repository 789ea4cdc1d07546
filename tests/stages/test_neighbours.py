"""Neighbour scores against scikit-learn."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import PowerTransformer, StandardScaler

from davis.stages import CombOod, Knn, NnGuide
from davis.stages.neighbours import yeo_johnson


def unit(features: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(features, axis=1, keepdims=True)
    return np.divide(features, norms, out=np.zeros_like(features), where=norms > 0)


def distances(bank: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
    return NearestNeighbors(n_neighbors=k, algorithm="kd_tree").fit(bank).kneighbors(queries)[0]


@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("reduction", ["kth", "mean"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("k", [1, 5, 70])
def test_knn(case: Any, k: int, normalize: bool, reduction: Any, squared: bool) -> None:
    bank, queries = (unit(case.train), unit(case.test)) if normalize else (case.train, case.test)
    found = distances(bank, queries, k) ** (2 if squared else 1)
    expected = -(found[:, -1] if reduction == "kth" else found.mean(1))
    stage = case.fit(Knn(k=k, normalize=normalize, reduction=reduction, squared=squared))
    np.testing.assert_allclose(case.score(stage), expected, rtol=1e-9)


def test_knn_finds_itself_and_its_copies(signed: Any) -> None:
    assert signed.score(signed.fit(Knn(k=1)), signed.train).tolist() == [0] * 70
    signed.train[1] = signed.train[0]
    signed.train[2] = signed.train[0]
    scores = signed.score(signed.fit(Knn(k=3, normalize=False)), signed.train[:1])
    np.testing.assert_allclose(scores, 0, atol=1e-15)
    assert (signed.score(signed.fit(Knn(k=4)), signed.train[:1]) < 0).all()


def test_knn_in_float32_is_near_its_float64_self(signed: Any) -> None:
    stage = signed.fit(Knn(k=5))
    features = torch.from_numpy(signed.test)
    logits = torch.zeros(9, 5)
    scores = stage(features.float(), logits, signed.classifier)
    assert scores.dtype == torch.float64
    np.testing.assert_allclose(scores, stage(features, logits, signed.classifier), rtol=1e-4)


def test_zero_rows_stay_zero(relu: Any) -> None:
    relu.train[0] = 0
    zero = np.zeros((1, 24))
    stage = relu.fit(Knn(k=2))
    np.testing.assert_allclose(relu.score(stage, zero), [-1.0], rtol=1e-12)  # itself, then any unit vector
    assert np.isfinite(relu.score(relu.fit(NnGuide(ratio=1)), zero)).all()
    assert np.isfinite(relu.score(relu.fit(CombOod(k=1)), zero)).all()


@pytest.mark.parametrize("stage", [Knn(k=71), NnGuide(k=71, ratio=1), CombOod(k=71)])
def test_more_neighbours_than_rows(signed: Any, stage: Any) -> None:
    with pytest.raises(ValueError, match=f"{stage.name}.*k=71 neighbours of 70 training rows"):
        signed.fit(stage)


@pytest.mark.parametrize("k", [1, 10, 70])
def test_nnguide_with_the_whole_bank(case: Any, k: int) -> None:
    energies = logsumexp(case.logits(case.train), axis=1)
    bank = unit(case.train) * energies[:, None]
    expected = []
    for z, f in zip(unit(case.test), case.logits(case.test), strict=True):
        expected.append(np.sort(bank @ z)[-k:].mean() * logsumexp(f))
    np.testing.assert_allclose(case.score(case.fit(NnGuide(k=k, ratio=1))), expected, rtol=1e-9)


@pytest.mark.parametrize(("k", "ratio", "rows"), [(10, 0.01, 10), (2, 0.1, 7), (1, 0.11, 8), (1, 1, 70)])
def test_nnguide_takes_a_share_of_the_rows(signed: Any, k: int, ratio: float, rows: int) -> None:
    stage = signed.fit(NnGuide(k=k, ratio=ratio))
    full = unit(signed.train) * logsumexp(signed.logits(signed.train), axis=1)[:, None]
    assert stage.bank.shape == (rows, 24)
    for row in stage.bank.numpy():
        assert np.abs(full - row).max(1).min() < 1e-10  # a training row, no row twice
    assert len(np.unique(stage.bank.numpy().round(9), axis=0)) == rows


def test_nnguide_counts_its_share_of_all_images_seen(make: Any) -> None:
    case = make("signed", rows=400)
    assert len(case.fit(NnGuide(k=1, ratio=0.1), capacity=100).bank) == 40
    assert len(case.fit(NnGuide(k=1, ratio=1), capacity=100).bank) == 100


def test_nnguide_warns_of_negative_energies(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    case = make("signed")
    case.bias[:] = -100
    with caplog.at_level(logging.WARNING):
        case.fit(NnGuide())
    assert "nnguide" in caplog.text


@pytest.mark.parametrize("ratio", [0, -0.1, 1.5])
def test_nnguide_ratio_is_a_share(ratio: float) -> None:
    with pytest.raises(ValueError, match="ratio must be"):
        NnGuide(ratio=ratio)


@pytest.mark.parametrize(("k", "reg"), [(5, 1), (50, 1), (1, 0.3)])
def test_combood(case: Any, k: int, reg: float) -> None:
    bank, queries = unit(case.train), unit(case.test)
    scaler, power = StandardScaler().fit(bank), PowerTransformer(method="yeo-johnson", standardize=True)
    normal = power.fit_transform(scaler.transform(bank))
    precision = np.linalg.inv(np.cov(normal, rowvar=False, ddof=1) + reg * np.eye(24))
    after = power.transform(scaler.transform(queries))
    d2 = np.array([e @ precision @ e for e in after])
    expected = -np.sqrt(24) * np.log(distances(bank, queries, k)[:, -1] ** 2) - d2
    np.testing.assert_allclose(case.score(case.fit(CombOod(k=k, reg=reg))), expected, rtol=1e-5)


def test_yeo_johnson_against_scikit_learn() -> None:
    values = np.random.default_rng(0).normal(0.5, 2, (200, 6)) ** 3 / 10
    transformer = PowerTransformer(standardize=False).fit(values)
    for powers in (transformer.lambdas_, np.array([0.0, 2.0, 1.0, -1.5, 3.0, 0.5])):
        transformer.lambdas_ = powers
        result = yeo_johnson(torch.from_numpy(values), torch.from_numpy(powers))
        np.testing.assert_allclose(result, transformer.transform(values), rtol=1e-9, atol=1e-9)


def test_yeo_johnson_beside_its_logarithms() -> None:
    """Where scikit-learn 1.7 loses four digits; the two powers at which a logarithm stands are limits of those near."""
    values = torch.from_numpy(np.random.default_rng(0).normal(0.5, 2, (200, 2)) ** 3 / 10)
    limit, near = torch.tensor([0.0, 2.0]).double(), torch.tensor([1e-12, 2 - 1e-12]).double()
    torch.testing.assert_close(yeo_johnson(values, near), yeo_johnson(values, limit), rtol=1e-9, atol=1e-9)


def test_combood_of_a_training_row_is_bounded(signed: Any) -> None:
    stage = signed.fit(CombOod(k=1))
    copies, others = signed.score(stage, signed.train[:5]), signed.score(stage)
    assert np.isfinite(copies).all()
    assert copies.min() > others.max()


def test_combood_of_constant_and_dead_channels(make: Any) -> None:
    case = make("relu")
    case.train[:] = 1.0
    assert np.isfinite(case.score(case.fit(CombOod(k=3)))).all()
    case.train[:] = 0.0
    assert np.isfinite(case.score(case.fit(CombOod(k=3)))).all()


@pytest.mark.parametrize("stage", [Knn, NnGuide, CombOod])
def test_k_is_positive(stage: Any) -> None:
    with pytest.raises(ValueError, match="k must be greater than 0"):
        stage(k=0)
