"""Many detectors on activations taken before: what they have in common is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from davis.branch import Branch
from davis.detector import Detector
from davis.stages import NeighbourScore
from davis.types import Activations, Features, Labels, Logits

Scored: TypeAlias = dict[str, NDArray[np.float64]]  # spec -> a score per image
Tick: TypeAlias = Callable[[int], None]  # images scored since the last call


def score_all(
    detectors: Sequence[Detector], stream: Iterable[tuple[Activations, Labels | None]], *, tick: Tick | None = None
) -> Scored:
    """The scores of every detector, equal to ``detector.score`` one by one.

    Detectors that agree up to their score share pooling, shaping and logits; those that look for neighbours in equal
    banks share one search.
    """
    groups = _groups(detectors)
    scores: dict[str, list[Tensor]] = {detector.spec: [] for detector in detectors}
    with torch.no_grad():
        for activations, _ in stream:
            for group in groups:
                for spec, values in group.score(activations).items():
                    scores[spec].append(values)
            if tick is not None:
                tick(len(activations.logits))
    gathered = {spec: torch.cat(parts).cpu().numpy() for spec, parts in scores.items()}
    for spec, found in gathered.items():
        if not np.isfinite(found).all():
            row = int(np.argmin(np.isfinite(found)))
            raise ValueError(f"{spec!r} gave NaN or infinity, at image {row} first; choose milder settings")
    return gathered


class _Group:
    """Detectors that agree in everything before the score."""

    def __init__(self, detectors: Sequence[Detector]) -> None:
        self.backbone = detectors[0].backbone
        self.members = [(detector.spec, _branch(detector)) for detector in detectors]
        self.searches = _searches([branch for _, branch in self.members])

    def features(self, activations: Activations) -> Features:
        _, first = self.members[0]
        return first.shape(self.backbone.neck(first.scoring_pool(activations)))

    def logits(self, activations: Activations) -> Logits:
        return self.members[0][1].logits(self.features(activations), self.backbone.classifier)

    def score(self, activations: Activations) -> dict[str, Tensor]:
        classifier = self.backbone.classifier
        features = self.features(activations)
        logits = self.members[0][1].logits(features, classifier)
        found = [search.search(features, k) for search, k in self.searches]
        scores = {}
        for spec, branch in self.members:
            stage = branch.score
            if isinstance(stage, NeighbourScore):
                place = next(i for i, (search, _) in enumerate(self.searches) if _share(search, stage))
                scores[spec] = stage.from_neighbours(features, found[place][:, : stage.k])
            else:
                scores[spec] = stage(features, logits, classifier)
        return scores


def _groups(detectors: Sequence[Detector]) -> list[_Group]:
    groups: dict[tuple[str, ...], list[Detector]] = {}
    for detector in detectors:
        branch = _branch(detector)
        if branch.needs_pixels:
            raise ValueError(f"{detector.spec!r} moves the images themselves; it cannot be scored from a cache")
        groups.setdefault(tuple(stage.text() for stage in branch.stages[:-1]), []).append(detector)
    return [_Group(members) for members in groups.values()]


def _searches(branches: Sequence[Branch]) -> list[tuple[NeighbourScore, int]]:
    """One search for each distinct bank, for as many neighbours as any of its scores wants."""
    searches: list[tuple[NeighbourScore, int]] = []
    for stage in (branch.score for branch in branches):
        if not isinstance(stage, NeighbourScore):
            continue
        for place, (search, k) in enumerate(searches):
            if _share(search, stage):
                searches[place] = (search, max(k, stage.k))
                break
        else:
            searches.append((stage, stage.k))
    return searches


def _share(first: NeighbourScore, second: NeighbourScore) -> bool:
    return first is second or (first.bank.shape == second.bank.shape and torch.equal(first.bank, second.bank))


def _branch(detector: Detector) -> Branch:
    (branch,) = (branch for branch in detector.branches if isinstance(branch, Branch))
    return branch


def accuracies(detectors: Sequence[Detector], stream: Iterable[tuple[Activations, Labels | None]]) -> dict[str, Any]:
    """Top-1 accuracy of the model, and of the logits that reach each detector's score; None without labels."""
    groups = _groups(detectors)
    right = dict.fromkeys(range(len(groups)), 0)
    own = images = 0
    with torch.no_grad():
        for activations, truth in stream:
            if truth is None:
                return {"model": None, "by_spec": {}}
            images += len(truth)
            own += int(activations.logits.argmax(1).eq(truth).sum())
            for place, group in enumerate(groups):
                right[place] += int(group.logits(activations).argmax(1).eq(truth).sum())
    if images == 0:
        return {"model": None, "by_spec": {}}
    shares = {spec: right[i] / images for i, group in enumerate(groups) for spec, _ in group.members}
    return {"model": own / images, "by_spec": {detector.spec: shares[detector.spec] for detector in detectors}}
