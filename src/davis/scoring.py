"""Many detectors on activations taken before: what they have in common is computed once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from davis.backbone import Backbone
from davis.branch import Branch
from davis.detector import Detector
from davis.stages import NeighbourScore, Stage
from davis.types import Activations, Features, Labels, Logits

Scored: TypeAlias = dict[str, NDArray[np.float64]]  # spec -> a score per image
Tick: TypeAlias = Callable[[int], None]  # images scored since the last call
_Item = TypeVar("_Item")
_Found = TypeVar("_Found")


def score_all(
    detectors: Sequence[Detector], stream: Iterable[tuple[Activations, Labels | None]], *, tick: Tick | None = None
) -> Scored:
    """The scores of every detector, equal to ``detector.score`` one by one.

    Branches that agree up to their score share pooling, shaping and logits; those that look for neighbours in equal
    banks share one search; fused detectors share their parts.
    """
    scores: dict[str, list[Tensor]] = {detector.spec: [] for detector in detectors}
    if len(scores) < len(detectors):
        raise ValueError("two detectors have the same spec; score them apart")
    groups = _groups(detectors)
    with torch.no_grad():
        for activations, _ in stream:
            found: dict[Branch, Tensor] = {}
            for group in groups:
                found.update(group.score(activations))
            for detector in detectors:
                columns = torch.stack([found[branch] for branch in detector.composition], 1)
                scores[detector.spec].append(detector.composition.fused(columns))
            if tick is not None:
                tick(len(activations.logits))
    gathered = {spec: torch.cat(parts).cpu().numpy() for spec, parts in scores.items()}
    for spec, values in gathered.items():
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise ValueError(f"{spec!r} gave NaN or infinity, at image {row} first; choose milder settings")
    return gathered


class _Group:
    """Branches that agree in everything before the score, in what was fitted too."""

    def __init__(self, backbone: Backbone, branch: Branch) -> None:
        self.backbone = backbone
        self.first = branch
        self.members: list[list[Branch]] = []  # those that agree in their score as well, side by side
        self.searches: list[tuple[NeighbourScore, int]] = []

    def takes(self, branch: Branch) -> bool:
        return _agree(self.first.stages[:-1], branch.stages[:-1])

    def add(self, branch: Branch) -> None:
        for twins in self.members:
            if _agree([twins[0].score], [branch.score]):
                twins.append(branch)
                return
        self.members.append([branch])
        self.searches = _searches([twins[0] for twins in self.members])

    def features(self, activations: Activations) -> Features:
        return self.first.shape(self.backbone.neck(self.first.scoring_pool(activations)))

    def logits(self, activations: Activations) -> Logits:
        return self.first.logits(self.features(activations), self.backbone.classifier)

    def score(self, activations: Activations) -> dict[Branch, Tensor]:
        classifier = self.backbone.classifier
        features = self.features(activations)
        logits = self.first.logits(features, classifier)
        found = [search.search(features, k) for search, k in self.searches]
        scores = {}
        for twins in self.members:
            stage = twins[0].score
            if isinstance(stage, NeighbourScore):
                place = next(i for i, (search, _) in enumerate(self.searches) if _share(search, stage))
                values = stage.from_neighbours(features, found[place][:, : stage.k])
            else:
                values = stage(features, logits, classifier)
            scores.update(dict.fromkeys(twins, values))
        return scores


def _groups(detectors: Sequence[Detector]) -> list[_Group]:
    groups: dict[str, list[_Group]] = {}
    for detector in detectors:
        for branch in detector.composition:
            if branch.needs_pixels:
                raise ValueError(f"{detector.spec!r} moves the images themselves; it cannot be scored from a cache")
            alike = groups.setdefault(" + ".join(stage.text() for stage in branch.stages[:-1]), [])
            group = next((group for group in alike if group.takes(branch)), None)
            if group is None:
                group = _Group(detector.backbone, branch)
                alike.append(group)
            group.add(branch)
    return [group for alike in groups.values() for group in alike]


def _agree(first: Sequence[Stage], second: Sequence[Stage]) -> bool:
    """Whether stages have equal texts and equal fitted values: only then do they give equal results."""
    return [stage.text() for stage in first] == [stage.text() for stage in second] and all(
        torch.equal(getattr(one, name), getattr(other, name))
        for one, other in zip(first, second, strict=True)
        for name in one.fitted
    )


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


def those_that_work(
    work: Callable[[list[_Item]], _Found], items: list[_Item], refuse: Callable[[_Item, str], None]
) -> list[_Found]:
    """The work done on all items at once; where some of them fail, on halves, until those are found and refused."""
    if not items:
        return []
    try:
        return [work(items)]
    except (ValueError, TypeError, RuntimeError) as error:
        if len(items) == 1:
            refuse(items[0], reason_of(error))
            return []
    middle = len(items) // 2
    return [found for half in (items[:middle], items[middle:]) for found in those_that_work(work, half, refuse)]


def reason_of(error: Exception) -> str:
    """Why a method does not work here, in a line; an accelerator that broke down is no fault of a method's."""
    if isinstance(error, getattr(torch, "AcceleratorError", ())):
        raise error
    return str(error).partition("\n")[0] or type(error).__name__


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
    shares = {
        branch: right[i] / images for i, group in enumerate(groups) for twins in group.members for branch in twins
    }
    single = [detector for detector in detectors if detector.fuse is None]
    by_spec = {detector.spec: shares[detector.composition.branches[0]] for detector in single}
    return {"model": own / images, "by_spec": by_spec}
