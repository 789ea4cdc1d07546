"""Integrated gradients of one detector's score (Sundararajan et al., 2017), and what its bank holds nearby."""

from __future__ import annotations

import torch
from torch import Tensor

from davis.backbone import Backbone
from davis.branch import Branch
from davis.explaining.explanation import Neighbour
from davis.pooling import summarise
from davis.stages import Score
from davis.types import Features, Logits, Map, Scores, double, length

_STEPS = 32  # of each path
_VALUES = 2**24  # of maps held at a time


def score_of(backbone: Backbone, branch: Branch, pooled: Features) -> Scores:
    """(batch,) what a detector makes of pooled features."""
    return branch.from_pooled(pooled, backbone.neck, backbone.classifier)


def score_of_map(backbone: Backbone, branch: Branch, activation_map: Map, logits: Logits) -> Scores:
    """(batch,) what a detector makes of maps."""
    activations = summarise(activation_map, logits.expand(len(activation_map), -1), branch.reads)
    return score_of(backbone, branch, branch.scoring_pool(activations))


def by_channel(backbone: Backbone, branch: Branch, mean: Features, pooled: Features) -> Tensor:
    """(channel,) on the path from the mean to the pooled features; adds up to the difference of their scores."""
    with torch.enable_grad():
        path = (mean + _middles(mean)[:, None] * (pooled - mean)).detach().requires_grad_()
        gradients = _gradients(branch, score_of(backbone, branch, path), path)
    return double(gradients).mean(0) * double(pooled - mean)[0]


def by_place(backbone: Backbone, branch: Branch, activation_map: Map, logits: Logits) -> Tensor:
    """(rows, columns) on the path from a silent map, all zeros, to this one, summed over the channels."""
    total = torch.zeros_like(double(activation_map[0]))
    for part in _middles(activation_map).split(max(1, _VALUES // activation_map.numel())):
        with torch.enable_grad():
            path = (part[:, None, None, None] * activation_map).detach().requires_grad_()
            gradients = _gradients(branch, score_of_map(backbone, branch, path, logits), path)
        total += double(gradients).sum(0)
    return (total / _STEPS * double(activation_map[0])).sum(0)


def nearest(backbone: Backbone, branch: Branch, pooled: Features, count: int) -> list[Neighbour]:
    """The rows of the score's bank that are nearest to the features that reach it."""
    if not isinstance(branch.score, Score) or count < 1:
        return []
    with torch.no_grad():
        features = branch.shape(backbone.neck(pooled))
        compared = branch.score.compared(features)
        if compared is None:
            return []
        bank, image = compared
        rows = bank.to(features.dtype)
        closest = length(rows - image).topk(min(count, len(rows)), largest=False)
        # A bank of unit vectors forgot how long they were; the image's own length stands in.
        known = rows[closest.indices] * (length(features) / length(image).clamp_min(1e-12))[:, None]
        labels = branch.logits(known, backbone.classifier).argmax(1)
    found = zip(closest.indices.tolist(), closest.values.tolist(), labels.tolist(), strict=True)
    return [Neighbour(row=row, distance=distance, label=label) for row, distance, label in found]


def _middles(like: Tensor) -> Tensor:
    return (torch.arange(_STEPS, device=like.device, dtype=like.dtype) + 0.5) / _STEPS


def _gradients(branch: Branch, scores: Scores, path: Tensor) -> Tensor:
    if not scores.requires_grad:
        raise ValueError(f"{branch.text()!r} has no gradient in its features; explain cannot follow it")
    (gradients,) = torch.autograd.grad(scores.sum(), path)
    return gradients
