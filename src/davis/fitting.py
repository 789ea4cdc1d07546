"""Fitting compositions from activations: one stream fills the statistics of every pool, then stages learn from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from davis.backbone import Backbone
from davis.branch import Composition
from davis.stages import Pool
from davis.statistics import Statistics
from davis.types import Activations, Labels

Stream = Iterable[tuple[Activations, Labels | None]]

REFERENCE = 2000
"""The most held-out images that fused detectors are ranked against."""

_SHARE = 0.1  # of the fit images, held out for that where no others are given
_FEWEST = 20
_ROWS = 2048  # activations scored at a time: bounds the memory of neighbour searches


def fit(
    backbone: Backbone,
    compositions: Sequence[Composition],
    stream: Stream,
    *,
    capacity: int,
    seed: int,
    reference: Stream | None = None,
) -> Tensor | None:
    """Fit every stage in one pass over activations; how often each class was predicted, None if no pass was needed.

    Fused detectors are ranked against images that none of them was fitted on: ``reference``, or else a tenth of the
    stream, drawn at random, which is then left out of *their* statistics and of nobody else's.
    """
    fused = [composition for composition in compositions if composition.fuse is not None]
    held = _Reference(seed) if fused and reference is None else None
    wanted: dict[tuple[str, bool], _Wanted] = {}
    for composition in compositions:
        apart = composition.fuse is not None and held is not None
        for branch in composition:
            if branch.needs:
                pool = branch.scoring_pool
                entry = wanted.setdefault((pool.text(), apart), _Wanted(pool, frozenset(), apart))
                entry.needs |= branch.needs
    counts = None
    if wanted or held is not None:
        counts = _collect(backbone, list(wanted.values()), held, stream, capacity=capacity, seed=seed)
    for composition in compositions:
        apart = composition.fuse is not None and held is not None
        for branch in composition:
            statistics = wanted[branch.scoring_pool.text(), apart].statistics if branch.needs else None
            if statistics is not None:
                branch.fit(statistics, backbone.classifier)
    if fused:
        _rank(backbone, fused, [(held.activations(), None)] if held is not None else reference or [], seed)
    return counts


@dataclass
class _Wanted:
    """What some detectors want to know of the features of one pool."""

    pool: Pool
    needs: frozenset[str]
    apart: bool  # without the held-out reference
    statistics: Statistics | None = None


class _Reference:
    """A random part of a stream, set aside and bounded; the same for the same seed and batches."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.kept: list[tuple[Tensor, Activations]] = []

    def set_aside(self, activations: Activations) -> Tensor:
        """Take a part of a batch; the positions of the rest."""
        keys = torch.rand(len(activations.logits), generator=self.generator, dtype=torch.float64)
        taken = keys < _SHARE
        if taken.any():
            places = taken.nonzero().flatten().to(activations.logits.device)
            self.kept.append((keys[taken], activations.rows(places)))
            if sum(len(part) for part, _ in self.kept) > 4 * REFERENCE:
                self.kept = [self._fewest()]
        return (~taken).nonzero().flatten().to(activations.logits.device)

    def activations(self) -> Activations:
        if not self.kept:
            raise ValueError(_too_few(0))
        return self._fewest()[1]

    def _fewest(self) -> tuple[Tensor, Activations]:
        keys = torch.cat([part for part, _ in self.kept])
        order = keys.argsort(stable=True)[:REFERENCE]
        columns = zip(*(rows for _, rows in self.kept), strict=True)
        joined = Activations(*(None if column[0] is None else torch.cat(column) for column in columns))  # type: ignore[arg-type]
        return keys[order], joined.rows(order.to(joined.logits.device))


def _collect(
    backbone: Backbone,
    wanted: list[_Wanted],
    held: _Reference | None,
    stream: Stream,
    *,
    capacity: int,
    seed: int,
) -> Tensor:
    """Fill the statistics of every pool in one pass; how often each class was predicted."""
    counts: Tensor | None = None
    for activations, labels in stream:
        classes = activations.logits.shape[1]
        found = torch.bincount(activations.logits.argmax(1), minlength=classes)
        counts = found if counts is None else counts + found
        views = {False: (activations, labels)}
        if held is not None:
            rest = held.set_aside(activations)
            views[True] = (activations.rows(rest), None if labels is None else labels[rest.to(labels.device)])
        with torch.autocast(activations.mean.device.type, enabled=False):
            gaps = {apart: backbone.neck(seen.mean) for apart, (seen, _) in views.items()}
            for entry in wanted:
                seen, known = views[entry.apart]
                features = backbone.neck(entry.pool(seen))
                if entry.statistics is None:
                    entry.statistics = Statistics(entry.needs, classes=classes, capacity=capacity, seed=seed)
                if len(features):
                    entry.statistics.update(features, backbone.classifier(features), known, gaps[entry.apart])
    if counts is None:
        raise ValueError("no images were seen: the fit data are empty")
    return counts.cpu()


def _rank(backbone: Backbone, compositions: Sequence[Composition], reference: Stream, seed: int) -> None:
    """Keep the scores of held-out images, which fused detectors are ranked against."""
    scores: list[list[Tensor]] = [[] for _ in compositions]
    for activations, _ in reference:
        for start in range(0, len(activations.logits), _ROWS):
            rows = activations.rows(slice(start, start + _ROWS))
            for composition, found in zip(compositions, scores, strict=True):
                found.append(composition.branch_scores(rows, backbone.neck, backbone.classifier))
    count = sum(len(part) for part in scores[0])
    if count < _FEWEST:
        raise ValueError(_too_few(count))
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:REFERENCE]
    for composition, found in zip(compositions, scores, strict=True):
        if composition.fuse is not None:
            composition.fuse.rank_against(torch.cat(found)[chosen.to(found[0].device)])


def _too_few(count: int) -> str:
    return (
        f"fused detectors are ranked against held-out images: {count} are too few, {_FEWEST} are needed; "
        f"fit on {int(2 * _FEWEST / _SHARE)} images or more, or give others as reference="
    )


@contextmanager
def no_graph() -> Iterator[None]:
    """No gradients, but not inference mode: ODIN needs a graph through the same tensors."""
    with torch.inference_mode(False), torch.no_grad():
        yield
