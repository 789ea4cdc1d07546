"""Fusions against ranks counted one by one, SciPy's combinations of p-values, and the order of scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from davis.stages import Fisher, Fuse, Minimum, Stouffer
from davis.stages.base import Tail
from davis.stages.fusions import log_p_values, normal_quantiles

TAILS: list[Tail] = ["exponential", "gaussian", "pareto", "zscore"]
every_tail = pytest.mark.parametrize("tail", TAILS)


def ranked(fuse: Fuse, reference: np.ndarray) -> Fuse:
    fuse.rank_against(torch.from_numpy(reference))
    return fuse


def scores_of(count: int, detectors: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, detectors))


def test_inside_the_reference_p_is_the_interpolated_rank() -> None:
    reference = np.sort(scores_of(200, 1)[:, 0])
    new = np.linspace(reference[20], reference[-2], 500)
    places = np.interp(new, reference, np.arange(1, 201)) / 201
    found = log_p_values(torch.from_numpy(new[:, None]), torch.from_numpy(reference[None]), "exponential")
    np.testing.assert_allclose(found[:, 0].exp(), places, rtol=1e-12)


def test_below_it_the_exponential_tail_goes_on() -> None:
    """p(u - d) = p(u) exp(-d / mean excess), u the score of the lowest twentieth."""
    reference = np.sort(scores_of(400, 1)[:, 0])
    u = reference[19]
    excess = (u - reference[:19]).mean()
    depth = np.array([0.1, 1.0, 7.0, 500.0])
    found = log_p_values(torch.from_numpy((u - depth)[:, None]), torch.from_numpy(reference[None]), "exponential")
    np.testing.assert_allclose(found[:, 0], np.log(20 / 401) - depth / excess, rtol=1e-12)


def test_the_gaussian_tail_is_the_normal_law() -> None:
    reference = np.sort(scores_of(300, 1)[:, 0])
    new = np.array([-30.0, -3, 0, 2])
    found = log_p_values(torch.from_numpy(new[:, None]), torch.from_numpy(reference[None]), "gaussian")
    expected = stats.norm.logcdf((new - reference.mean()) / reference.std(ddof=1))
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-10)


def test_a_heavy_tail_is_seen_as_such() -> None:
    """Of Pareto-like scores the generalised Pareto tail falls more slowly than the exponential one."""
    reference = np.sort(-np.random.default_rng(0).pareto(3, 2000))
    far = torch.tensor([[10 * reference[0]]])
    slow, fast = (log_p_values(far, torch.from_numpy(reference[None]), tail) for tail in ("pareto", "exponential"))
    assert slow > fast / 2


@every_tail
@given(st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=60), st.lists(st.floats(-1e7, 1e7), min_size=2, max_size=9))
def test_the_order_of_scores_is_kept(tail: Tail, reference: list[float], new: list[float]) -> None:
    """No score is ranked above a higher one, ties and constant references included."""
    ordered = torch.tensor(sorted(new), dtype=torch.float64)[:, None]
    held = torch.tensor(sorted(reference), dtype=torch.float64)[None]
    found = log_p_values(ordered, held, tail)[:, 0]
    assert found.isfinite().all()
    assert bool((found.diff() >= -1e-9 * found[:-1].abs()).all())


@pytest.mark.parametrize("tail", ["exponential", "gaussian", "pareto"])
def test_scores_below_all_of_the_reference_are_not_tied(tail: Tail) -> None:
    held = torch.from_numpy(np.sort(scores_of(100, 1), axis=0).T.copy())
    below = torch.linspace(-50, -5, 40, dtype=torch.float64)[:, None]
    assert bool((log_p_values(below, held, tail)[:, 0].diff() > 1e-6).all())


def test_fisher_and_stouffer_agree_with_scipy() -> None:
    reference, new = scores_of(500, 3), scores_of(40, 3, seed=1) * 0.7
    columns = zip(new.T, np.sort(reference, axis=0).T, strict=True)
    p = np.stack([np.interp(values, held, np.arange(1, 501)) / 501 for values, held in columns], 1)
    inside = (p > 0.06).all(1) & (p < 0.99).all(1)
    assert inside.sum() > 20
    fisher = ranked(Fisher(), reference)(torch.from_numpy(new[inside]))
    expected = [stats.combine_pvalues(row, "fisher").statistic / -2 for row in p[inside]]
    np.testing.assert_allclose(fisher, expected, rtol=1e-10)
    stouffer = ranked(Stouffer(weights=(2.0, 1.0, 1.0)), reference)(torch.from_numpy(new[inside]))
    expected = [-stats.combine_pvalues(row, "stouffer", weights=[2, 1, 1]).statistic for row in p[inside]]
    np.testing.assert_allclose(stouffer, expected, rtol=1e-8)
    minimum = ranked(Minimum(), reference)(torch.from_numpy(new[inside]))
    np.testing.assert_allclose(minimum, np.log(p[inside]).min(1), rtol=1e-10)


def test_weights_are_relative() -> None:
    reference, new = scores_of(100, 2), torch.from_numpy(scores_of(9, 2, seed=1))
    one, ten = (ranked(Fisher(weights=weights), reference)(new) for weights in ((1.0, 3.0), (10.0, 30.0)))
    torch.testing.assert_close(one, ten)
    plain = ranked(Fisher(), reference)(new)
    torch.testing.assert_close(ranked(Fisher(weights=(5.0, 5.0)), reference)(new), plain)


def test_normal_quantiles_reach_beyond_floats() -> None:
    z = torch.tensor([-100.0, -40, -12, -6, -1, 0, 3], dtype=torch.float64)
    torch.testing.assert_close(normal_quantiles(torch.special.log_ndtr(z)), z, rtol=1e-9, atol=1e-9)


def test_each_detector_is_ranked_against_its_own_scores() -> None:
    """Scaling and shifting one detector's scores changes nothing."""
    reference, new = scores_of(100, 2), scores_of(9, 2, seed=1)
    plain = ranked(Fisher(), reference)(torch.from_numpy(new))
    scale, shift = np.array([1.0, 1000.0]), np.array([0.0, -7.0])
    moved = ranked(Fisher(), reference * scale + shift)(torch.from_numpy(new * scale + shift))
    torch.testing.assert_close(plain, moved, rtol=1e-9, atol=1e-9)
