"""Thresholds: the k-th smallest held-out score, counted exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from davis.calibrate import Calibration, calibrate


def rank(count: int, tpr: str) -> int:
    """floor((1 - tpr) (n + 1)) in whole numbers, from the digits as written."""
    share = 1 - Fraction(tpr)
    return share.numerator * (count + 1) // share.denominator


@pytest.mark.parametrize("tpr", ["0.5", "0.8", "0.9", "0.95", "0.975", "0.99"])
@pytest.mark.parametrize("count", [19, 20, 39, 99, 100, 199, 999, 1000])
def test_the_rule(tpr: str, count: int) -> None:
    scores = torch.arange(count, dtype=torch.float64)[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    k = rank(count, tpr)
    if k < 1:
        with pytest.raises(ValueError, match="too few"):
            calibrate(scores, tpr=float(tpr))
    else:
        assert calibrate(scores, tpr=float(tpr)) == Calibration(threshold=k - 1, tpr=float(tpr), count=count)


@pytest.mark.parametrize(("tpr", "needed"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1), (0.999, 999), (0.97, 33)])
def test_the_smallest_count(tpr: float, needed: int) -> None:
    scores = torch.arange(float(needed))
    assert calibrate(scores, tpr=tpr).threshold == 0
    with pytest.raises(ValueError, match=rf"{needed - 1} held-out images are too few .*; {needed} are needed"):
        calibrate(scores[1:], tpr=tpr)


@given(st.integers(1, 400), st.integers(1, 99))
def test_no_more_than_promised_fall_below(count: int, percent: int) -> None:
    """A new score, ranked anywhere among the others, is below the threshold in at most 1 - tpr of the ranks."""
    scores = torch.arange(float(count))
    try:
        threshold = calibrate(scores, tpr=percent / 100).threshold
    except ValueError:
        assert (100 - percent) * (count + 1) < 100
        return
    # The new score takes each of the count + 1 ranks alike; threshold + 1 of them lie below the threshold.
    below = int(threshold) + 1
    assert Fraction(below, count + 1) <= Fraction(100 - percent, 100) < Fraction(below + 1, count + 1)


def test_ties() -> None:
    scores = torch.tensor([1.0] * 10 + [2.0] * 30)
    assert calibrate(scores, tpr=0.95).threshold == 1
    assert calibrate(scores, tpr=0.7).threshold == 2  # the 12th smallest of 40
    assert calibrate(torch.full((50,), 3.0), tpr=0.9).threshold == 3  # none is below: all pass
    assert calibrate(-torch.zeros(50), tpr=0.9).threshold == 0


def test_order_does_not_matter_and_scores_stay() -> None:
    scores = torch.rand(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    copy = scores.clone()
    assert calibrate(scores) == calibrate(scores.flip(0)) == calibrate(scores.sort().values)
    assert torch.equal(scores, copy)
    assert calibrate(scores).threshold in scores.tolist()


def test_single_precision_scores() -> None:
    scores = torch.rand(100, generator=torch.Generator().manual_seed(0))
    assert calibrate(scores).threshold == scores.double().sort().values[4].item()


def test_empty() -> None:
    with pytest.raises(ValueError, match=r"0 held-out images are too few .* 19 are needed"):
        calibrate(torch.tensor([]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_broken_scores(value: float) -> None:
    scores = torch.rand(40)
    scores[7] = value
    with pytest.raises(ValueError, match="1 of 40 scores are NaN or infinite"):
        calibrate(scores)


def test_misshapen_scores() -> None:
    with pytest.raises(ValueError, match=r"got shape \(40, 1\)"):
        calibrate(torch.rand(40, 1))


@pytest.mark.parametrize("tpr", [0, 1, -0.1, 1.5, 95, float("nan")])
def test_tpr_is_a_share(tpr: float) -> None:
    with pytest.raises(ValueError, match="tpr must lie between 0 and 1"):
        calibrate(torch.rand(100), tpr=tpr)
