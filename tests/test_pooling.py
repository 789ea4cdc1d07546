"""The channel statistics of a map: dtypes, memory formats and shapes. Their formulae are tested with the pools."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from davis.pooling import STATISTICS, summarise
from davis.types import Activations


def maps_of(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float64).mul(3).to(dtype)


def all_of(maps: Tensor) -> Activations:
    return summarise(maps, torch.zeros(len(maps), 2), STATISTICS)


def fields(activations: Activations) -> dict[str, Tensor]:
    return {name: getattr(activations, name) for name in ("mean", *STATISTICS)}


def test_only_what_is_asked_for() -> None:
    logits = torch.rand(2, 7)
    activations = summarise(maps_of(2, 3, 4, 5), logits, {"max"})
    assert activations.logits is logits
    assert activations.positions.tolist() == [20, 20]
    assert activations.max is not None
    for name in ("std", "median", "median_mean", "entropy", "entropy_paper", "min"):
        assert getattr(activations, name) is None
    assert summarise(maps_of(2, 3, 4, 5), logits, {"mean"}).max is None


def test_unknown_statistic() -> None:
    with pytest.raises(ValueError, match="unknown statistic 'range'; known: mean, std, max"):
        summarise(maps_of(1, 1, 1, 1), torch.zeros(1, 2), {"range"})


@pytest.mark.parametrize("shape", [(2, 3), (0, 3, 2, 2), (2, 3, 0, 0), (3,)])
def test_what_is_no_map(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a map is"):
        summarise(torch.zeros(shape), torch.zeros(shape[0], 2), {"std"})


@pytest.mark.parametrize("shape", [(2, 3, 12), (2, 3, 3, 4), (2, 3, 2, 3, 2)])
def test_any_number_of_spatial_axes(shape: tuple[int, ...]) -> None:
    maps = maps_of(2, 3, 12)
    for name, value in fields(all_of(maps.reshape(shape))).items():
        assert value.shape == (2, 3)
        torch.testing.assert_close(value, fields(all_of(maps))[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_raised(dtype: torch.dtype) -> None:
    maps = maps_of(2, 3, 30, 30, dtype=dtype)
    exact = maps.double().numpy()
    activations = all_of(maps)
    for name, value in fields(activations).items():
        assert value.dtype == torch.float32, name
    np.testing.assert_allclose(activations.mean, exact.mean((2, 3)), rtol=1e-5)
    np.testing.assert_allclose(activations.std, exact.std((2, 3), ddof=1), rtol=1e-5)
    np.testing.assert_array_equal(activations.max, exact.max((2, 3)))


def test_half_precision_does_not_overflow() -> None:
    maps = torch.full((1, 1, 8, 8), 6e4, dtype=torch.float16)  # the sum and the squares are beyond 65504
    maps[0, 0, 0, 0] = 0
    assert all(value.isfinite().all() for value in fields(all_of(maps)).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision_is_kept(dtype: torch.dtype) -> None:
    assert all(value.dtype == dtype for value in fields(all_of(maps_of(2, 3, 4, 4, dtype=dtype))).values())


def test_memory_formats() -> None:
    maps = maps_of(3, 8, 5, 6)
    expected = fields(all_of(maps))
    last = maps.contiguous(memory_format=torch.channels_last)
    strided = maps_of(3, 8, 5, 6).permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    sliced = torch.cat([maps, maps], 3)[..., :6]
    for other in (last, strided, sliced):
        assert not other.is_contiguous()
        for name, value in fields(all_of(other)).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-12, atol=1e-14)


def test_one_position() -> None:
    maps = maps_of(2, 3, 1, 1)
    activations = all_of(maps)
    assert activations.positions.tolist() == [1, 1]
    assert torch.equal(activations.std, torch.zeros(2, 3, dtype=torch.float64))
    for name in ("mean", "max", "median", "median_mean"):
        assert torch.equal(getattr(activations, name), maps[:, :, 0, 0]), name
    torch.testing.assert_close(activations.entropy, torch.zeros(2, 3, dtype=torch.float64), rtol=0, atol=1e-9)
    assert torch.equal(activations.entropy_paper, torch.zeros(2, 3, dtype=torch.float64))


def test_constant_and_dead_channels() -> None:
    maps = torch.zeros(1, 2, 4, 4, dtype=torch.float64)
    maps[0, 1] = 0.1
    activations = all_of(maps)
    torch.testing.assert_close(activations.std, torch.zeros(1, 2, dtype=torch.float64), rtol=0, atol=1e-15)
    for name in ("entropy", "entropy_paper"):
        torch.testing.assert_close(
            getattr(activations, name), torch.full((1, 2), np.log(16), dtype=torch.float64), rtol=0, atol=1e-8
        )


def test_the_map_is_not_changed() -> None:
    maps = maps_of(2, 3, 4, 4)
    copy = maps.clone()
    all_of(maps)
    assert torch.equal(maps, copy)


def test_batch_equals_one_by_one() -> None:
    maps = maps_of(4, 3, 5, 5)
    whole = fields(all_of(maps))
    for i in range(4):
        for name, value in fields(all_of(maps[i : i + 1])).items():
            torch.testing.assert_close(value[0], whole[name][i], rtol=1e-12, atol=1e-14)


def test_gradients_flow() -> None:
    maps = maps_of(2, 3, 4, 4).requires_grad_()
    for name, value in fields(all_of(maps)).items():
        (gradient,) = torch.autograd.grad(value.sum(), maps, retain_graph=True)
        assert gradient.isfinite().all(), name


def test_the_gradient_of_a_constant_channel_is_finite() -> None:
    """The square root in the standard deviation has an infinite slope at 0; ODIN must not see NaN."""
    maps = torch.zeros(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    for name, value in fields(all_of(maps)).items():
        (gradient,) = torch.autograd.grad(value.sum(), maps, retain_graph=True)
        assert gradient.isfinite().all(), name


def test_rows_of_activations() -> None:
    activations = summarise(maps_of(4, 3, 2, 2), torch.arange(8.0).reshape(4, 2), {"max"})
    some = activations.rows(torch.tensor([2, 0]))
    assert torch.equal(some.logits, activations.logits[[2, 0]])
    assert torch.equal(some.max, activations.max[[2, 0]])
    assert some.std is None
    assert len(activations.rows(slice(1, 3)).positions) == 2
