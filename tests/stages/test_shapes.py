"""Shapes against loops over single samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from davis.stages import AshB, AshP, AshS, Bats, Laps, React, Scale, Shape


def shaped(stage: Shape, features: np.ndarray) -> np.ndarray:
    return stage(torch.from_numpy(features)).numpy()


def count_of(channels: int, p: float) -> int:
    return channels - int(np.round(channels * p / 100))


def top(row: np.ndarray, p: float) -> list[int]:
    return sorted(range(len(row)), key=lambda j: (-row[j], j))[: count_of(len(row), p)]


@pytest.mark.parametrize("p", [0, 37.5, 90, 100])
def test_react(case: Any, p: float) -> None:
    stage = case.fit(React(p=p))
    clip = np.percentile(case.train, p)
    np.testing.assert_allclose(shaped(stage, case.test), np.minimum(case.test, clip), rtol=1e-12)


@pytest.mark.parametrize("p", [0, 30, 65, 90, 95])
def test_ash(case: Any, p: float) -> None:
    expected = {"ash_p": np.zeros_like(case.test), "ash_b": np.zeros_like(case.test), "ash_s": np.zeros_like(case.test)}
    for i, h in enumerate(case.test):
        keep = top(h, p)
        s1, s2 = h.sum(), h[keep].sum()
        expected["ash_p"][i, keep] = h[keep]
        expected["ash_b"][i, keep] = s1 / len(keep)
        expected["ash_s"][i, keep] = h[keep] * (np.exp(s1 / s2) if s2 > 0 else 1)
    for stage in (AshP(p=p), AshB(p=p), AshS(p=p)):
        np.testing.assert_allclose(shaped(stage, case.test), expected[stage.name], rtol=1e-11, err_msg=stage.text())


@pytest.mark.parametrize("p", [0, 30, 85, 90])
def test_rectify_sums_the_positive_part(signed: Any, p: float) -> None:
    ash, scale, quantile = (np.zeros_like(signed.test) for _ in range(3))
    for i, h in enumerate(signed.test):
        keep, positive = top(h, p), np.maximum(h, 0)
        factor = np.exp(positive.sum() / positive[keep].sum())
        ash[i, keep] = h[keep] * factor
        scale[i] = h * factor
        threshold = np.quantile(positive, p / 100, method="higher")
        quantile[i] = h * np.exp(positive.sum() / positive[positive >= threshold].sum())
    np.testing.assert_allclose(shaped(AshS(p=p, rectify=True), signed.test), ash, rtol=1e-11)
    np.testing.assert_allclose(shaped(Scale(p=p, rectify=True), signed.test), scale, rtol=1e-11)
    stage = Scale(p=p, rectify=True, rule="quantile_higher")
    np.testing.assert_allclose(shaped(stage, signed.test), quantile, rtol=1e-11)


@pytest.mark.parametrize("p", [0, 30, 65, 85, 95])
def test_scale(case: Any, p: float) -> None:
    by_count, by_quantile = np.zeros_like(case.test), np.zeros_like(case.test)
    for i, h in enumerate(case.test):
        s1, s2 = h.sum(), h[top(h, p)].sum()
        by_count[i] = h * (np.exp(s1 / s2) if s2 > 0 else 1)
        s2 = h[h >= np.quantile(h, p / 100, method="higher")].sum()
        by_quantile[i] = h * (np.exp(s1 / s2) if s2 > 0 else 1)
    np.testing.assert_allclose(shaped(Scale(p=p), case.test), by_count, rtol=1e-11)
    np.testing.assert_allclose(shaped(Scale(p=p, rule="quantile_higher"), case.test), by_quantile, rtol=1e-11)


@pytest.mark.parametrize(
    ("channels", "by_count", "by_quantile"), [(512, 77, 77), (2048, 307, 308), (48, 7, 8), (21, 3, 4), (1, 1, 1)]
)
def test_how_many_channels_scale_keeps(channels: int, by_count: int, by_quantile: int) -> None:
    h = np.random.default_rng(0).permutation(np.arange(1.0, channels + 1) / channels)[None]
    for rule, count in (("topk", by_count), ("quantile_higher", by_quantile)):
        s2 = np.sort(h[0])[::-1][:count].sum()
        factor = np.exp(h.sum() / s2) if count else 1
        np.testing.assert_allclose(shaped(Scale(p=85, rule=rule), h), h * factor, rtol=1e-10, err_msg=rule)


def test_quantile_higher_counts_all_channels_at_the_threshold() -> None:
    h = np.array([[1.0, 3.0, 3.0, 3.0, 2.0]])  # the threshold at p=70 is 3, reached three times
    np.testing.assert_allclose(shaped(Scale(p=70, rule="quantile_higher"), h), h * np.exp(12 / 9), rtol=1e-12)
    np.testing.assert_allclose(shaped(Scale(p=70), h), h * np.exp(12 / 3), rtol=1e-12)  # 5 - round(3.5) = 1


def test_nothing_and_everything_pruned() -> None:
    h = np.array([[1.0, 2.0, 0.0, 5.0]])
    np.testing.assert_array_equal(shaped(AshP(p=0), h), h)
    np.testing.assert_allclose(shaped(AshS(p=0), h), h * np.e, rtol=1e-14)
    np.testing.assert_allclose(shaped(AshB(p=0), h), np.full_like(h, 2.0))
    np.testing.assert_allclose(shaped(Scale(p=0), h), h * np.e, rtol=1e-14)
    np.testing.assert_allclose(shaped(Scale(p=0, rule="quantile_higher"), h), h * np.e, rtol=1e-14)
    top = np.array([[0.0, 0.0, 0.0, 1.0]])  # one channel stays at least
    np.testing.assert_allclose(shaped(AshP(p=100), h), 5 * top)
    np.testing.assert_allclose(shaped(AshS(p=100), h), 5 * np.exp(8 / 5) * top)
    np.testing.assert_allclose(shaped(AshB(p=100), h), 8 * top)
    np.testing.assert_allclose(shaped(Scale(p=100), h), h * np.exp(8 / 5), rtol=1e-14)
    np.testing.assert_allclose(shaped(Scale(p=100, rule="quantile_higher"), h), h * np.exp(8 / 5), rtol=1e-14)


@pytest.mark.parametrize(
    "stage", [AshS(p=50), AshP(p=50), AshB(p=50), Scale(p=50), Scale(p=50, rule="quantile_higher"), AshS(rectify=True)]
)
def test_dead_rows_stay_dead(stage: Shape) -> None:
    assert (shaped(stage, np.zeros((2, 8))) == 0).all()


@pytest.mark.parametrize("rectify", [False, True])
def test_negative_rows_keep_their_size(rectify: bool) -> None:
    h = -np.arange(1.0, 9)[None]
    np.testing.assert_array_equal(shaped(Scale(p=50, rectify=rectify), h), h)
    np.testing.assert_array_equal(shaped(Scale(p=50, rule="quantile_higher", rectify=rectify), h), h)
    np.testing.assert_array_equal(shaped(AshS(p=50, rectify=rectify), h), np.where(h >= -4, h, 0))


def test_ties_go_to_the_lowest_channel() -> None:
    h = np.array([[2.0, 5.0, 5.0, 5.0, 2.0, 2.0]])  # as after react
    np.testing.assert_array_equal(shaped(AshP(p=200 / 3), h), [[0, 5, 5, 0, 0, 0]])
    np.testing.assert_array_equal(shaped(AshB(p=200 / 6), h), [[5.25, 5.25, 5.25, 5.25, 0, 0]])
    zeros = np.array([[0.0, 0.0, 3.0, 0.0]])  # fewer positive channels than are kept
    np.testing.assert_array_equal(shaped(AshB(p=50), zeros), [[1.5, 0, 1.5, 0]])


def test_a_ratio_that_overflows_float32_does_not_in_float64() -> None:
    h = np.full((1, 200), 1.0)
    result = stage_dtype(AshS(p=99.5), h, torch.float64)  # one channel of 200: exp(200)
    assert result.max().item() == pytest.approx(np.exp(200), rel=1e-9)
    assert stage_dtype(AshS(p=99), h, torch.float32).isinf().any()  # exp(100): not clamped silently


def stage_dtype(stage: Shape, features: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    result = stage(torch.from_numpy(features).to(dtype))
    assert result.dtype == dtype
    return result


@pytest.mark.parametrize("lam", [0.3, 1.05, 3.25])
def test_bats(case: Any, lam: float) -> None:
    stage = case.fit(Bats(lam=lam))
    mean, std = case.train.mean(0), case.train.std(0, ddof=1)
    expected = np.maximum(np.minimum(case.test, mean + lam * std), mean - lam * std)
    np.testing.assert_allclose(shaped(stage, case.test), expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("lam", "m", "n"), [(1.5, 13, 0), (1.5, 0.4, 0), (0.8, 0.3, -0.7), (1, 0, 2.0)])
def test_laps(case: Any, lam: float, m: float, n: float) -> None:
    stage = case.fit(Laps(lam=lam, m=m, n=n))
    means, stds = case.train.mean(0), case.train.std(0, ddof=1)
    expected = np.zeros_like(case.test)
    for j in range(case.test.shape[1]):
        up = lam + m * (means.mean() - means[j]) + n * (stds.mean() - stds[j])
        low = lam - m * (means.mean() - means[j]) + n * (stds.mean() - stds[j])
        clipped = np.minimum(case.test[:, j], means[j] + stds[j] * up)
        expected[:, j] = np.maximum(clipped, means[j] - stds[j] * low)
    np.testing.assert_allclose(shaped(stage, case.test), expected, rtol=1e-10, atol=1e-12)


def test_one_training_row(make: Any) -> None:
    case = make("signed", rows=1, classes=1)
    for stage in (Bats(), Laps()):
        result = shaped(case.fit(stage), case.test)
        np.testing.assert_allclose(result, np.broadcast_to(case.train, result.shape), rtol=1e-12)
    clip = np.percentile(case.train, 90)
    np.testing.assert_allclose(shaped(case.fit(React()), case.test), np.minimum(case.test, clip), rtol=1e-12)


@pytest.mark.parametrize("stage", [React, AshS, AshP, AshB, Scale])
@pytest.mark.parametrize("p", [-0.5, 100.5])
def test_percents_are_checked(stage: type[Shape], p: float) -> None:
    with pytest.raises(ValueError, match="p must be a percent from 0 to 100"):
        stage(p=p)  # type: ignore[call-arg]


def test_bats_needs_a_width() -> None:
    with pytest.raises(ValueError, match="lam must be greater than 0"):
        Bats(lam=0)
