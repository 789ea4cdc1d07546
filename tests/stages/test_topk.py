"""The top-k rule: counts, masks and ratios."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from davis.stages.topk import kept, largest, quotient, ratio


@pytest.mark.parametrize(
    ("channels", "p", "count"),
    [
        (512, 85, 77),
        (2048, 85, 307),
        (48, 85, 7),
        (2048, 90, 205),
        (10, 25, 8),  # 2.5 rounds to 2
        (10, 35, 6),  # 3.5 rounds to 4
        (7, 0, 7),
        (7, 100, 1),  # one stays at least
        (1, 90, 1),
        (1, 50, 1),
    ],
)
def test_kept_counts(channels: int, p: float, count: int) -> None:
    assert kept(channels, p) == count


@given(st.integers(1, 4096), st.floats(0, 100))
def test_kept_rounds_as_numpy_does(channels: int, p: float) -> None:
    assert kept(channels, p) == max(channels - int(np.round(channels * p / 100)), 1)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.data())
def test_largest_takes_the_lowest_channel_among_equals(row: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(row)))
    expected = sorted(range(len(row)), key=lambda j: (-row[j], j))[:count]
    mask = largest(torch.tensor([row], dtype=torch.float64), count)
    assert mask.dtype == torch.bool
    assert mask[0].nonzero().flatten().tolist() == sorted(expected)


def test_ratio_is_float64_and_undefined_without_positive_mass() -> None:
    rows = torch.tensor([[3.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, 0.0], [-1.0, -2.0, -3.0, -4.0], [1.0, -1.0, -5.0, 0.0]])
    result = ratio(rows, 2, undefined=7)
    assert result.shape == (4, 1)
    assert result.dtype == torch.float64
    assert result.flatten().tolist() == [6 / 5, 7, 7, -5 / 1]
    assert ratio(rows, 0, undefined=7).flatten().tolist() == [7, 7, 7, 7]


def test_quotient_never_divides_by_zero() -> None:
    top = torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
    result = quotient(torch.ones(3, dtype=torch.float64), top, undefined=0.5)
    assert result.tolist() == [0.5, 0.5, 0.5]
    result.sum().backward()
    assert top.grad is not None
    assert top.grad.isfinite().all()  # a NaN hidden behind torch.where would come out here
