"""Scores from covariances against SciPy's pseudo-inverse and NumPy's SVD."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.linalg import pinvh
from scipy.special import logsumexp, softmax

from davis.stages import GradOrth, Mahalanobis, Vim


def mahalanobis(case: Any, features: np.ndarray, *, shrinkage: float = 0, cutoff: float = 1e-9) -> np.ndarray:
    n = case.train.shape[1]
    means = {c: case.train[case.labels == c].mean(0) for c in sorted(set(case.labels))}
    scatter = np.zeros((n, n))
    for h, y in zip(case.train, case.labels, strict=True):
        scatter += np.outer(h - means[y], h - means[y])
    scatter /= len(case.train)
    scatter = (1 - shrinkage) * scatter + shrinkage * np.trace(scatter) / n * np.eye(n)
    precision = pinvh(scatter, rtol=cutoff)
    return np.array([-min((h - m) @ precision @ (h - m) for m in means.values()) for h in features])


@pytest.mark.parametrize("shrinkage", [0, 0.2, 1])
def test_mahalanobis(case: Any, shrinkage: float) -> None:
    stage = case.fit(Mahalanobis(shrinkage=shrinkage))
    np.testing.assert_allclose(case.score(stage), mahalanobis(case, case.test, shrinkage=shrinkage), rtol=1e-9)


def test_mahalanobis_without_a_class(signed: Any) -> None:
    signed.labels[signed.labels == 2] = 1
    np.testing.assert_allclose(signed.score(signed.fit(Mahalanobis())), mahalanobis(signed, signed.test), rtol=1e-9)


def test_mahalanobis_with_one_image_of_a_class(signed: Any) -> None:
    signed.labels[signed.labels == 2] = 1
    signed.labels[0] = 2
    stage = signed.fit(Mahalanobis())
    np.testing.assert_allclose(signed.score(stage), mahalanobis(signed, signed.test), rtol=1e-9)
    np.testing.assert_allclose(signed.score(stage, signed.train[:1]), 0, atol=1e-9)


def test_mahalanobis_with_fewer_rows_than_channels(make: Any) -> None:
    case = make("signed", rows=15, channels=40)
    np.testing.assert_allclose(case.score(case.fit(Mahalanobis())), mahalanobis(case, case.test), rtol=1e-7)


def test_mahalanobis_with_one_image_per_class(make: Any) -> None:
    case = make("signed", rows=5)
    np.testing.assert_array_equal(np.abs(case.score(case.fit(Mahalanobis()))), np.zeros(9))  # no spread, no distance


def test_mahalanobis_of_constant_features(make: Any) -> None:
    case = make("relu")
    case.train[:] = 2.0
    assert np.isfinite(case.score(case.fit(Mahalanobis()))).all()
    assert np.isfinite(case.score(case.fit(Mahalanobis(shrinkage=0.5)))).all()


def test_mahalanobis_far_from_the_origin(signed: Any) -> None:
    """A large common offset must not eat the digits of the covariance."""
    near = signed.score(signed.fit(Mahalanobis()))
    signed.train[:] += 1e4
    np.testing.assert_allclose(signed.score(signed.fit(Mahalanobis()), signed.test + 1e4), near, rtol=1e-6)


def test_mahalanobis_without_labels_takes_predictions(signed: Any) -> None:
    stage = signed.fit(Mahalanobis(), labelled=False)
    signed.labels[:] = signed.logits(signed.train).argmax(1)
    np.testing.assert_allclose(signed.score(stage), mahalanobis(signed, signed.test), rtol=1e-9)


@pytest.mark.parametrize("shrinkage", [-0.1, 1.1])
def test_shrinkage_is_a_share(shrinkage: float) -> None:
    with pytest.raises(ValueError, match="shrinkage must be from 0 to 1"):
        Mahalanobis(shrinkage=shrinkage)


def vim(case: Any, features: np.ndarray, d: int) -> np.ndarray:
    u = -np.linalg.pinv(case.weight) @ case.bias
    x = case.train - u
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    residual = vectors[:, np.argsort(values)][:, : len(u) - d]
    alpha = case.logits(case.train).max(1).mean() / np.linalg.norm(x @ residual, axis=1).mean()
    return logsumexp(case.logits(features), axis=1) - alpha * np.linalg.norm((features - u) @ residual, axis=1)


@pytest.mark.parametrize("d", ["auto", 1, 8, 23])
def test_vim(case: Any, d: Any) -> None:
    if d == 23:
        case.train[:, 3] += np.random.default_rng(0).normal(size=70)  # no dead channel: its residual would be 0
    expected = vim(case, case.test, 12 if d == "auto" else d)
    np.testing.assert_allclose(case.score(case.fit(Vim(d=d))), expected, rtol=1e-9)


def test_vim_with_fewer_rows_than_channels(make: Any) -> None:
    case = make("signed", rows=30, channels=40)
    np.testing.assert_allclose(case.score(case.fit(Vim())), vim(case, case.test, 20), rtol=1e-9)


@pytest.mark.parametrize(
    ("channels", "d"), [(2048, 1000), (4096, 1000), (2047, 512), (768, 512), (767, 383), (512, 256), (2, 1)]
)
def test_vim_dimension(channels: int, d: int) -> None:
    assert Vim().dimension(channels) == d


@pytest.mark.parametrize("d", [24, 500])
def test_vim_without_a_residual(signed: Any, d: int) -> None:
    with pytest.raises(ValueError, match=f"vim: d={d} leaves no residual of 24 channels"):
        signed.fit(Vim(d=d))


def test_vim_of_dead_training_data(make: Any) -> None:
    case = make("relu")
    case.train[:] = 0
    case.bias[:] = 0
    assert np.isfinite(case.score(case.fit(Vim()))).all()


@pytest.mark.parametrize("eps", [0.5, 0.97, 1])
def test_gradorth(case: Any, eps: float) -> None:
    _, values, rows = np.linalg.svd(case.train, full_matrices=False)
    share = np.cumsum(values**2) / (values**2).sum()
    rank = next(k for k in range(1, 25) if share[k - 1] >= eps - 1e-13)
    v = rows[:rank].T
    features = np.where(case.train.any(0), case.test, 0)  # at eps=1 rounding decides on a dead channel
    expected = []
    for h, f in zip(features, case.logits(features), strict=True):
        expected.append(np.linalg.norm(np.outer(softmax(f) - 1 / 5, h) @ v))
    np.testing.assert_allclose(case.score(case.fit(GradOrth(eps=eps)), features), expected, rtol=1e-9)


@pytest.mark.parametrize("eps", [0, 1.01])
def test_gradorth_eps_is_a_share(eps: float) -> None:
    with pytest.raises(ValueError, match="eps must be a share"):
        GradOrth(eps=eps)


def test_gradorth_is_experimental() -> None:
    assert GradOrth.experimental
    assert not Vim.experimental
