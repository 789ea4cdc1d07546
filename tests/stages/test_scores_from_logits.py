"""Scores from logits against SciPy, autograd and loops over single samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from torch import nn

from davis.stages import Energy, Gen, GradNorm, Lts, MaxLogit, Msp, Score


def test_energy(case: Any) -> None:
    f = case.logits(case.test)
    np.testing.assert_allclose(case.score(Energy()), logsumexp(f, axis=1), rtol=1e-12)
    np.testing.assert_allclose(case.score(Energy(t=2.5)), 2.5 * logsumexp(f / 2.5, axis=1), rtol=1e-12)
    np.testing.assert_allclose(case.score(Energy(t=2.5, multiply=False)), logsumexp(f / 2.5, axis=1), rtol=1e-12)


def test_msp_and_maxlogit(case: Any) -> None:
    f = case.logits(case.test)
    np.testing.assert_allclose(case.score(Msp()), softmax(f, axis=1).max(1), rtol=1e-12)
    np.testing.assert_allclose(case.score(Msp(t=1000)), softmax(f / 1000, axis=1).max(1), rtol=1e-12)
    np.testing.assert_array_equal(case.score(MaxLogit()), f.max(1))


@pytest.mark.parametrize(("gamma", "m"), [(0.1, 100), (0.1, 3), (0.5, 1), (2, 5)])
def test_gen(case: Any, gamma: float, m: int) -> None:
    expected = []
    for row in case.logits(case.test):
        p = np.sort(softmax(row))[::-1][:m]
        expected.append(-(p**gamma * (1 - p) ** gamma).sum())
    np.testing.assert_allclose(case.score(Gen(gamma=gamma, m=m)), expected, rtol=1e-9)


@pytest.mark.parametrize("t", [1, 2.5])
@pytest.mark.parametrize("target", ["ones", "uniform"])
def test_gradnorm_equals_the_gradient(case: Any, target: Any, t: float) -> None:
    expected = []
    for h in torch.from_numpy(case.test):
        linear = nn.Linear(24, 5, dtype=torch.float64)
        linear.load_state_dict(case.classifier.module.state_dict())
        wanted = torch.full((5,), 1 if target == "ones" else 0.2, dtype=torch.float64)
        loss = -(wanted * (linear(h) / t).log_softmax(0)).sum()
        loss.backward()
        assert linear.weight.grad is not None
        expected.append(linear.weight.grad.abs().sum().item())
    np.testing.assert_allclose(case.score(GradNorm(target=target, t=t)), expected, rtol=1e-9)


@pytest.mark.parametrize("p", [0, 50, 85, 95])
def test_lts(case: Any, p: float) -> None:
    expected = []
    for h, f in zip(case.test, case.logits(case.test), strict=True):
        positive = np.maximum(h, 0)
        count = len(h) - int(np.round(len(h) * p / 100))
        r = positive.sum() / np.sort(positive)[::-1][:count].sum()
        expected.append(logsumexp(f * r**2))
    np.testing.assert_allclose(case.score(Lts(p=p)), expected, rtol=1e-10)


def test_lts_of_dead_and_negative_rows_is_the_energy(signed: Any) -> None:
    rows = np.stack([np.zeros(24), -np.arange(1.0, 25)])
    np.testing.assert_allclose(signed.score(Lts(), rows), logsumexp(signed.logits(rows), axis=1), rtol=1e-12)


def test_one_class(make: Any) -> None:
    case = make("relu", classes=1)
    assert case.score(Msp()).tolist() == [1] * 9
    assert (case.score(Gen()) == 0).all()
    np.testing.assert_allclose(case.score(Energy()), case.logits(case.test)[:, 0], rtol=1e-12)
    np.testing.assert_allclose(case.score(GradNorm()), 0, atol=1e-12)


def test_scores_do_not_saturate_in_float32(signed: Any) -> None:
    gaps = torch.linspace(8, 30, 12)
    logits = torch.stack([500 + gaps, torch.full_like(gaps, 500), torch.full_like(gaps, 490)], 1)
    for stage in (Msp(), Gen(), Energy(), MaxLogit()):
        scores = stage(torch.zeros(12, 24), logits, signed.classifier)
        assert (scores.diff() > 0).all(), stage
    assert GradNorm()(torch.ones(12, 24), logits, signed.classifier).isfinite().all()


def test_scores_of_huge_logits_are_finite(signed: Any) -> None:
    logits = torch.tensor([[3e38, -3e38, 0.0]])
    for stage in (Msp(), Gen(), Energy(), MaxLogit(), GradNorm(), Lts()):
        assert stage(torch.ones(1, 24), logits, signed.classifier).isfinite().all(), stage


@pytest.mark.parametrize("stage", [Energy, Msp, GradNorm])
@pytest.mark.parametrize("t", [0, -1])
def test_temperatures_are_positive(stage: type[Score], t: float) -> None:
    with pytest.raises(ValueError, match="t must be greater than 0"):
        stage(t=t)  # type: ignore[call-arg]


def test_gen_settings_are_positive() -> None:
    with pytest.raises(ValueError, match="gamma must be greater than 0"):
        Gen(gamma=0)
    with pytest.raises(ValueError, match="m must be greater than 0"):
        Gen(m=0)
