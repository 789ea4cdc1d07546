"""The channel statistics of an activation map: the few numbers that survive one pass."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from davis.types import Activations, Features, Logits, Map, at_least_float32


def summarise(activation_map: Map, logits: Logits, statistics: Collection[str]) -> Activations:
    """The named channel statistics of a map, and its mean always.

    The map is (batch, channel, *space) with any number of spatial axes, in any memory format.
    Half precision is raised to float32 first: its sums and squares overflow early.

    >>> activations = summarise(torch.ones(2, 3, 4, 4), torch.zeros(2, 10), {"std"})
    >>> activations.mean.shape, activations.std.sum().item(), activations.max
    (torch.Size([2, 3]), 0.0, None)
    """
    unknown = set(statistics) - {"mean", *STATISTICS}
    if unknown:
        raise ValueError(f"unknown statistic {sorted(unknown)[0]!r}; known: mean, {', '.join(STATISTICS)}")
    if activation_map.ndim < 3 or activation_map.numel() == 0:
        raise ValueError(f"a map is (batch, channel, *space) with a value at least, got {tuple(activation_map.shape)}")
    values = at_least_float32(activation_map)
    space = tuple(range(2, values.ndim))
    positions = values[0, 0].numel()
    computed = {name: STATISTICS[name](values, space) for name in statistics if name != "mean"}
    return Activations(
        logits=logits,
        positions=torch.full((len(values),), positions, device=values.device),
        mean=values.mean(space),
        **computed,
    )


def _std(values: Map, space: tuple[int, ...]) -> Features:
    if values[0, 0].numel() == 1:  # the unbiased estimate of one value is 0 / 0
        return torch.zeros_like(values[(...,) + (0,) * len(space)])
    return values.std(space)


def _max(values: Map, space: tuple[int, ...]) -> Features:
    return values.amax(space)


def _min(values: Map, space: tuple[int, ...]) -> Features:
    return values.amin(space)


def _median(values: Map, space: tuple[int, ...]) -> Features:
    return values.flatten(2).median(-1).values


def _median_mean(values: Map, space: tuple[int, ...]) -> Features:
    ordered = values.flatten(2).sort(-1).values
    last = ordered.shape[-1] - 1
    return (ordered[..., last // 2] + ordered[..., (last + 1) // 2]) / 2


def _entropy(values: Map, space: tuple[int, ...]) -> Features:
    share = values.flatten(2).softmax(-1)
    return -(share * (share + 1e-10).log()).sum(-1)  # the authors' guard, kept for their numbers


def _entropy_paper(values: Map, space: tuple[int, ...]) -> Features:
    values = values.flatten(2)
    if (values < 0).any():
        raise ValueError(
            "entropy(variant=paper) is defined for non-negative maps only and this model's map has "
            "negative values; use entropy(variant=official) or entropy(variant=softmax)"
        )
    largest = values.amax(-1, keepdim=True)
    alive = largest > 0
    # Over the largest first, so that the sum stays in range; a dead channel says nothing about position.
    values = torch.where(alive, values / torch.where(alive, largest, 1), 1)
    share = values / values.sum(-1, keepdim=True)
    return -(share * share.clamp_min(torch.finfo(share.dtype).tiny).log()).sum(-1)


STATISTICS: dict[str, Callable[[Tensor, tuple[int, ...]], Features]] = {
    "std": _std,
    "max": _max,
    "median": _median,
    "median_mean": _median_mean,
    "entropy": _entropy,
    "entropy_paper": _entropy_paper,
    "min": _min,
}
