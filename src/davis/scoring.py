"""Many detectors on activations taken before: what they have in common is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from davis.backbone import Backbone
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

    Branches that agree up to their score share pooling, shaping and logits; those that look for neighbours in equal
    banks share one search; fused detectors share their parts.
    """
    groups = _groups(detectors)
    scores: dict[str, list[Tensor]] = {detector.spec: [] for detector in detectors}
    with torch.no_grad():
        for activations, _ in stream:
            found: dict[_Key, Tensor] = {}
            for group in groups:
                found.update(group.score(activations))
            for detector in detectors:
                columns = torch.stack([found[_key(detector, branch)] for branch in detector.composition], 1)
                scores[detector.spec].append(detector.composition.fused(columns))
            if tick is not None:
                tick(len(activations.logits))
    gathered = {spec: torch.cat(parts).cpu().numpy() for spec, parts in scores.items()}
    for spec, values in gathered.items():
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise ValueError(f"{spec!r} gave NaN or infinity, at image {row} first; choose milder settings")
    return gathered


_Key: TypeAlias = tuple[str, bool]


def _key(detector: Detector, branch: Branch) -> _Key:
    """What a branch is known by: fused ones were fitted without the images that they are ranked against."""
    return branch.text(), detector.fuse is not None


class _Group:
    """Branches that agree in everything before the score."""

    def __init__(self, backbone: Backbone, members: dict[_Key, Branch]) -> None:
        self.backbone = backbone
        self.members = members
        self.first = next(iter(members.values()))
        self.searches = _searches(list(members.values()))

    def features(self, activations: Activations) -> Features:
        return self.first.shape(self.backbone.neck(self.first.scoring_pool(activations)))

    def logits(self, activations: Activations) -> Logits:
        return self.first.logits(self.features(activations), self.backbone.classifier)

    def score(self, activations: Activations) -> dict[_Key, Tensor]:
        classifier = self.backbone.classifier
        features = self.features(activations)
        logits = self.first.logits(features, classifier)
        found = [search.search(features, k) for search, k in self.searches]
        scores = {}
        for key, branch in self.members.items():
            stage = branch.score
            if isinstance(stage, NeighbourScore):
                place = next(i for i, (search, _) in enumerate(self.searches) if _share(search, stage))
                scores[key] = stage.from_neighbours(features, found[place][:, : stage.k])
            else:
                scores[key] = stage(features, logits, classifier)
        return scores


def _groups(detectors: Sequence[Detector]) -> list[_Group]:
    groups: dict[tuple[object, ...], dict[_Key, Branch]] = {}
    for detector in detectors:
        for branch in detector.composition:
            if branch.needs_pixels:
                raise ValueError(f"{detector.spec!r} moves the images themselves; it cannot be scored from a cache")
            before = (*(stage.text() for stage in branch.stages[:-1]), detector.fuse is not None)
            groups.setdefault(before, {}).setdefault(_key(detector, branch), branch)
    return [_Group(detectors[0].backbone, members) for members in groups.values()]


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
    shares = {key: right[i] / images for i, group in enumerate(groups) for key in group.members}
    single = [detector for detector in detectors if detector.fuse is None]
    by_spec = {detector.spec: shares[_key(detector, *detector.composition)] for detector in single}
    return {"model": own / images, "by_spec": by_spec}
