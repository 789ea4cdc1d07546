"""Pools against NumPy on the maps themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import softmax

from davis.pooling import STATISTICS, summarise
from davis.stages import Davis, Entropy, Max, Mean, Median, Pool, Unified


def pooled(pool: Pool, maps: np.ndarray) -> np.ndarray:
    activations = summarise(torch.from_numpy(maps), torch.zeros(len(maps), 2), pool.statistics())
    return pool(activations).numpy()


@pytest.fixture(params=["relu", "signed"])
def maps(request: pytest.FixtureRequest) -> np.ndarray:
    maps = np.random.default_rng(2).normal(0, 2, (4, 6, 3, 4))
    maps[1, 2] = 0.0  # a dead channel
    return np.maximum(maps, 0) if request.param == "relu" else maps


def channels(maps: np.ndarray, formula: object) -> np.ndarray:
    """The formula of the positions of each channel of each image, one at a time."""
    return np.array([[formula(channel.ravel()) for channel in image] for image in maps])  # type: ignore[operator]


def test_mean_and_max(maps: np.ndarray) -> None:
    np.testing.assert_allclose(pooled(Mean(), maps), channels(maps, np.mean), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(pooled(Max(), maps), channels(maps, np.max))


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("gamma", [0, 0.5, 3])
def test_davis_and_unified(maps: np.ndarray, gamma: float, ddof: int) -> None:
    spread = channels(maps, lambda v: v.mean() + gamma * v.std(ddof=ddof))
    np.testing.assert_allclose(pooled(Davis(gamma=gamma, ddof=ddof), maps), spread, rtol=1e-12, atol=1e-14)
    unified = spread + channels(maps, np.max)
    np.testing.assert_allclose(pooled(Unified(gamma=gamma, ddof=ddof), maps), unified, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("gamma", [0.5, 3])
def test_signed_pools_go_where_the_mean_points(maps: np.ndarray, gamma: float) -> None:
    def away(v: np.ndarray) -> float:
        return v.mean() + np.copysign(gamma * v.std(ddof=1), v.mean())

    furthest = channels(maps, lambda v: v.min() if v.mean() < 0 else v.max())
    np.testing.assert_array_equal(pooled(Max(signed=True), maps), furthest)
    np.testing.assert_allclose(
        pooled(Davis(gamma=gamma, signed=True), maps), channels(maps, away), rtol=1e-12, atol=1e-14
    )
    np.testing.assert_array_equal(pooled(Max(signed=True), -maps[:1]), -pooled(Max(signed=True), maps[:1]))
    for plain, signed in ((Max(), Max(signed=True)), (Davis(gamma=gamma), Davis(gamma=gamma, signed=True))):
        same = np.array_equal(pooled(plain, maps), pooled(signed, maps))
        assert same == (maps.min() >= 0)


@pytest.mark.parametrize("positions", [(3, 4), (3, 3), (1, 1), (1, 2)])
def test_median(positions: tuple[int, int]) -> None:
    maps = np.random.default_rng(3).normal(size=(3, 5, *positions))
    lower = channels(maps, lambda v: np.sort(v)[(len(v) - 1) // 2])
    np.testing.assert_array_equal(pooled(Median(), maps), lower)
    np.testing.assert_allclose(pooled(Median(ties="mean"), maps), channels(maps, np.median), rtol=1e-14)


def test_entropy_of_the_softmax(maps: np.ndarray) -> None:
    def entropy(values: np.ndarray) -> float:
        q = softmax(values)
        return -(q * np.log(q + 1e-10)).sum()

    np.testing.assert_allclose(pooled(Entropy(variant="softmax"), maps), channels(maps, entropy), rtol=1e-11)
    np.testing.assert_allclose(pooled(Entropy(), maps), 1 / channels(maps, entropy), rtol=1e-11)


def test_entropy_as_printed_in_the_paper() -> None:
    maps = np.maximum(np.random.default_rng(4).normal(0, 2, (4, 6, 3, 4)), 0)
    maps[0, 0] = 0  # dead: uniform, log of the number of positions
    maps[0, 1] = 0
    maps[0, 1, 2, 3] = 5.0  # one position only: 0 log 0 = 0

    def entropy(values: np.ndarray) -> float:
        if values.sum() == 0:
            return np.log(len(values))
        share = values / values.sum()
        return -sum(p * np.log(p) for p in share if p > 0)

    result = pooled(Entropy(variant="paper"), maps)
    np.testing.assert_allclose(result, channels(maps, entropy), rtol=1e-11, atol=1e-12)
    assert result[0, 0] == pytest.approx(np.log(12))
    assert result[0, 1] == 0


def test_entropy_as_printed_refuses_signed_maps() -> None:
    with pytest.raises(ValueError, match="non-negative"):
        pooled(Entropy(variant="paper"), -np.ones((1, 1, 2, 2)))


def test_one_position() -> None:
    maps = np.array([[[[2.0]], [[-3.0]]]])
    for pool in (Mean(), Max(), Davis(gamma=3), Davis(gamma=3, ddof=0), Median(), Median(ties="mean")):
        np.testing.assert_array_equal(pooled(pool, maps), [[2.0, -3.0]], err_msg=repr(pool))
    np.testing.assert_array_equal(pooled(Unified(gamma=3), maps), [[4.0, -6.0]])
    assert np.isfinite(pooled(Entropy(), maps)).all()


def test_a_pool_says_which_statistic_is_missing() -> None:
    activations = summarise(torch.ones(1, 2, 2, 2), torch.zeros(1, 2), {"std"})
    with pytest.raises(ValueError, match=r"without 'max' \(they hold: mean, std\)"):
        Max()(activations)


@pytest.mark.parametrize(
    "pool",
    [
        Mean(),
        Max(),
        Max(signed=True),
        Davis(),
        Davis(signed=True),
        Unified(),
        Median(),
        Median(ties="mean"),
        Entropy(),
        Entropy(variant="paper"),
    ],
)
def test_pools_read_what_they_say(pool: Pool) -> None:
    assert pool.statistics() <= set(STATISTICS)
    activations = summarise(torch.rand(2, 3, 2, 2), torch.zeros(2, 2), pool.statistics())
    assert pool(activations).shape == (2, 3)


@pytest.mark.parametrize("ddof", [-1, 2])
def test_ddof_is_0_or_1(ddof: int) -> None:
    with pytest.raises(ValueError, match="ddof must be 0 or 1"):
        Davis(ddof=ddof)
    with pytest.raises(ValueError, match="ddof must be 0 or 1"):
        Unified(ddof=ddof)
