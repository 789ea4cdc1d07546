"""Energy, maximal probability and generalised entropy against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp, softmax

from davis.stages.confidence import energy, generalised_entropy, max_probability


@pytest.fixture
def logits() -> np.ndarray:
    return np.random.default_rng(1).normal(0, 4, (20, 12))


@pytest.mark.parametrize("t", [0.5, 1, 1000])
def test_energy(logits: np.ndarray, t: float) -> None:
    expected = t * logsumexp(logits / t, axis=1)
    np.testing.assert_allclose(energy(torch.from_numpy(logits), t), expected, rtol=1e-12)


@pytest.mark.parametrize("t", [0.5, 1, 1000])
def test_max_probability(logits: np.ndarray, t: float) -> None:
    expected = softmax(logits / t, axis=1).max(1)
    np.testing.assert_allclose(max_probability(torch.from_numpy(logits), t), expected, rtol=1e-12)


@pytest.mark.parametrize("m", [1, 2, 5, 12, 100])
@pytest.mark.parametrize("gamma", [0.1, 0.5, 2])
def test_generalised_entropy(logits: np.ndarray, gamma: float, m: int) -> None:
    expected = []
    for row in logits:
        total = 0.0
        log_p = np.sort(log_softmax(row))[::-1]
        for i, log_probability in enumerate(log_p[:m]):
            others = logsumexp(np.delete(log_p, i))  # log(1 - p) with no cancellation
            total += np.exp(gamma * (log_probability + others))
        expected.append(total)
    result = generalised_entropy(torch.from_numpy(logits), gamma, m)
    np.testing.assert_allclose(result, expected, rtol=1e-9)


def test_generalised_entropy_keeps_the_complement_of_a_saturated_probability() -> None:
    # The others hold 2 exp(-60): 1 - p is 0 in float64, and 0 to the power 0.1 would lose the term.
    result = generalised_entropy(torch.tensor([[60.0, 0.0, 0.0]]), 0.1, 1)
    np.testing.assert_allclose(result, [(2 * np.exp(-60)) ** 0.1], rtol=1e-9)


def test_one_class_is_constant() -> None:
    logits = torch.tensor([[-5.0], [0.0], [700.0]])
    assert max_probability(logits).tolist() == [1, 1, 1]
    assert generalised_entropy(logits, 0.1, 100).tolist() == [0, 0, 0]


def test_large_float32_logits_keep_their_order() -> None:
    gaps = torch.linspace(5, 30, 26)
    logits = torch.stack([1000 + gaps, torch.full_like(gaps, 1000)], 1)
    assert logits.softmax(1).amax(1).unique().numel() < 20  # float32 ties them
    probabilities = max_probability(logits)
    assert (probabilities.diff() > 0).all()
    assert energy(torch.tensor([[1e30, 0.0]])).isfinite().all()
