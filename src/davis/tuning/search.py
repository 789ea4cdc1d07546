"""Search: one pass over clean and proxied images, then every candidate from what that pass left."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from davis import metrics
from davis import spec as language
from davis.backbone import Backbone
from davis.batches import Batches, split_batch
from davis.data import Preprocessing
from davis.detector import Detector
from davis.joint_fit import fit_from_activations, sketched
from davis.scoring import Scored, score_all, those_that_work
from davis.sketch import Sketch
from davis.statistics import CAPACITY
from davis.tuning.bootstrap import Bootstrap, Metric, interval
from davis.tuning.grid import DEFAULT, edges_of, expand
from davis.tuning.proxies import Proxy, make, parse_proxies
from davis.tuning.surface import NAMES, Point, Row, Tuning
from davis.types import Activations, Labels

Blocks: TypeAlias = Sequence[tuple[Activations, "Labels | None"]]
Measured: TypeAlias = dict[str, Scored]  # set -> spec -> a score per image

FIT, CLEAN = "fit", "holdout"
RESAMPLES = 1000
FEWEST = 20  # held-out images
_ROWS = 2048  # activations scored at a time
_EASY = 0.999  # what is left above it is chance


class Observed(NamedTuple):
    """What one reading of in-distribution images leaves."""

    rest: Blocks  # the images that were not held out
    clean: Blocks
    proxied: dict[str, Blocks]
    again: float = 0.0  # the share of the held-out images that was known before


def tune(
    model: nn.Module | Backbone,
    fit_batches: Batches,
    holdout_batches: Batches,
    *,
    grid: str | Iterable[str] = DEFAULT,
    proxy: str | Iterable[str] = "noise",
    select: Metric = "auroc",
    check: Mapping[str, Batches] | None = None,
    preprocessing: Preprocessing | None = None,
    capacity: int = CAPACITY,
    seed: int = 0,
) -> Tuning:
    """Choose a detector and its settings from in-distribution images alone.

    Every candidate of the ``grid`` is fitted on ``fit_batches`` and has to tell ``holdout_batches``, images the model
    was not trained on, from what the ``proxy`` makes of them; several proxies are averaged. The network sees each
    image once, and once more for each proxy. ``check`` names real OOD sets: they are scored too, and have no part in
    the choice. ``preprocessing`` says how pixels in [0, 1] became these images (ImageNet's mean and std by default).
    """
    specs, proxies = expand(grid), parse_proxies(proxy)
    _check_select(select)
    backbone = Backbone.wrap(model)
    compositions = [language.parse(spec) for spec in specs]
    reads = frozenset[str]().union(*(branch.reads for composition in compositions for branch in composition))
    learns = any(composition.learns for composition in compositions)
    sketch = Sketch()
    fitted = gather(backbone.stream(sketched(fit_batches, sketch), statistics=reads)) if learns else []
    if learns and not fitted:
        raise ValueError("no images were seen: the fit data are empty")
    seen = observe(
        backbone,
        holdout_batches,
        proxies=proxies,
        preprocessing=preprocessing or Preprocessing(),
        statistics=reads,
        seed=seed,
        known=sketch,
    )
    if seen.again:
        warnings.warn(
            f"about {seen.again:.0%} of the held-out images were fitted on: candidates that remember images will win; "
            "hold others out",
            stacklevel=2,
        )
    checks = {name: gather(backbone.stream(batches, statistics=reads)) for name, batches in (check or {}).items()}
    return tune_from_activations(
        backbone,
        fitted=fitted,
        clean=seen.clean,
        proxied=seen.proxied,
        grid=specs,
        select=select,
        check=checks,
        capacity=capacity,
        seed=seed,
    )


def tune_from_activations(
    backbone: Backbone,
    *,
    fitted: Blocks,
    clean: Blocks,
    proxied: Mapping[str, Blocks],
    grid: str | Iterable[str] = DEFAULT,
    select: Metric = "auroc",
    check: Mapping[str, Blocks] | None = None,
    capacity: int = CAPACITY,
    seed: int = 0,
) -> Tuning:
    """The same from activations taken before: lists of (activations, labels), such as ``gather`` makes."""
    _check_select(select)
    check = check or {}
    names = [FIT, CLEAN, *proxied, *check]
    if len(set(names)) < len(names):
        raise ValueError(f"two sets of images have the same name: {', '.join(names)}; give each its own")
    sets = {CLEAN: clean, **proxied, **check}
    for name, blocks in sets.items():
        if not blocks:
            raise ValueError(f"no images were seen: the set {name!r} is empty")
    if _count(clean) < FEWEST:
        raise ValueError(
            f"{_count(clean)} held-out images are too few to compare candidates; {FEWEST} are needed, better hundreds"
        )
    measured, refused = measure(backbone, expand(grid), fitted=fitted, sets=sets, capacity=capacity, seed=seed)
    specs = list(measured[CLEAN])
    if not specs:
        spec, reason = next(iter(refused.items()))
        raise ValueError(f"none of the {len(refused)} candidates works; the first, {spec!r}: {reason}")
    rows = [_row(spec, measured, list(proxied), list(check)) for spec in specs]
    # Best first; of equals the one that is better by the other metric, then the shorter text, then the earlier.
    other: Metric = "fpr95" if select == "auroc" else "auroc"
    rows.sort(key=lambda row: (-row.point.merit(select), -row.point.merit(other), row.spec.count("+")))
    images = {FIT: _count(fitted)} | {name: _count(blocks) for name, blocks in sets.items()}
    return _concluded(rows, measured, select, refused, images, seed)


def gather(stream: Iterable[tuple[Activations, Labels | None]]) -> Blocks:
    """The activations of a stream in a few large blocks, in memory."""
    blocks, waiting, rows = [], [], 0
    for part in stream:
        waiting.append(part)
        rows += len(part[0].logits)
        if rows >= _ROWS:
            blocks.append(_joined(waiting))
            waiting, rows = [], 0
    return [*blocks, _joined(waiting)] if waiting else blocks


def observe(
    backbone: Backbone,
    batches: Batches,
    *,
    proxies: Mapping[str, Proxy],
    preprocessing: Preprocessing,
    statistics: Collection[str],
    share: float = 1,
    seed: int = 0,
    known: Sketch | None = None,
) -> Observed:
    """One reading of the images: a random share of them is held out and goes through the proxies as well."""
    drawn = torch.Generator().manual_seed(seed)
    generators = [torch.Generator().manual_seed(seed + place) for place in range(1, len(proxies) + 1)]
    rest: list[tuple[Activations, Labels | None]] = []
    clean: list[tuple[Activations, Labels | None]] = []
    proxied: dict[str, list[tuple[Activations, Labels | None]]] = {name: [] for name in proxies}
    again: list[float] = []
    for batch in _not_a_tensor(batches):
        images, labels = split_batch(batch)
        activations = backbone(images, statistics=statistics)
        held = torch.rand(len(images), generator=drawn) < share
        for part, chosen in ((rest, ~held), (clean, held)):
            if chosen.any():
                part.append((activations.rows(chosen), None if labels is None else labels[chosen]))
        if known is not None and (seen := known.share(images)) is not None:
            again.append(seen)
        if held.any():
            made = make(images[held], proxies.values(), preprocessing, generators)
            for name, pictures in zip(proxies, made, strict=True):
                if len(pictures):
                    proxied[name].append((backbone(pictures, statistics=statistics), None))
    made_of = {name: gather(parts) for name, parts in proxied.items()}
    return Observed(gather(rest), gather(clean), made_of, sum(again) / len(again) if again else 0.0)


def _joined(parts: Sequence[tuple[Activations, Labels | None]]) -> tuple[Activations, Labels | None]:
    columns = zip(*(activations for activations, _ in parts), strict=True)
    joined = (None if column[0] is None else torch.cat(column) for column in columns)
    labels = [given for _, given in parts if given is not None]
    return Activations(*joined), torch.cat(labels) if len(labels) == len(parts) else None  # type: ignore[arg-type]


def _not_a_tensor(batches: Batches) -> Batches:
    if isinstance(batches, Tensor):
        raise TypeError("one tensor was given where batches are expected; give [images], or a DataLoader")
    return batches


def measure(
    backbone: Backbone,
    specs: Sequence[str],
    *,
    fitted: Blocks,
    sets: Mapping[str, Blocks],
    capacity: int = CAPACITY,
    seed: int = 0,
) -> tuple[Measured, dict[str, str]]:
    """The scores that every candidate gives every set; and the candidates that cannot, with the reason.

    Pooling by pooling: what is learnt of one is let go before the next, and candidates share nothing across poolings.
    """
    refused: dict[str, str] = {}
    by_pool: dict[tuple[str, ...], list[str]] = {}
    for spec in specs:
        pools = tuple(branch.scoring_pool.text() for branch in language.parse(spec))
        by_pool.setdefault(pools, []).append(spec)

    def scores(group: list[str]) -> Measured:
        detectors = [Detector(backbone, spec) for spec in group]
        fit_from_activations(detectors, fitted, capacity=capacity, seed=seed)
        return {name: score_all(detectors, blocks) for name, blocks in sets.items()}

    found: Measured = {name: {} for name in sets}
    for group in by_pool.values():
        for part in those_that_work(scores, group, refused.__setitem__):
            for name, scored in part.items():
                found[name] |= scored
    return {name: {spec: scored[spec] for spec in specs if spec in scored} for name, scored in found.items()}, refused


def _row(spec: str, measured: Measured, proxies: Iterable[str], checks: Iterable[str]) -> Row:
    def point(name: str) -> Point:
        found = metrics.evaluate(measured[CLEAN][spec], measured[name][spec])
        return Point(found.auroc, found.fpr)

    return Row(spec, {name: point(name) for name in proxies}, {name: point(name) for name in checks})


def _concluded(
    rows: list[Row],
    measured: Measured,
    select: Metric,
    refused: dict[str, str],
    images: dict[str, int],
    seed: int,
) -> Tuning:
    best, proxies = rows[0], list(rows[0].proxies)
    bootstrap = Bootstrap(images[CLEAN], {name: images[name] for name in proxies}, resamples=RESAMPLES, seed=seed)

    def drawn(row: Row) -> NDArray[np.float64]:
        proxied = {name: measured[name][row.spec] for name in proxies}
        return bootstrap.values(measured[CLEAN][row.spec], proxied, select)

    sign = 1 if select == "auroc" else -1
    own = drawn(best)
    second = rows[1] if len(rows) > 1 else None
    return Tuning(
        rows=rows,
        select=select,
        interval=interval(own),
        runner_up=None if second is None else second.spec,
        lead=None if second is None else best.point.merit(select) - second.point.merit(select),
        lead_interval=None if second is None else interval(sign * (own - drawn(second))),
        warnings=_warnings(rows, select),
        refused=refused,
        images=images,
        seed=seed,
    )


def _warnings(rows: Sequence[Row], select: Metric) -> list[str]:
    best = rows[0]
    found = [edge.text() for edge in edges_of(best.spec, (row.spec for row in rows))]
    easy = sum(row.auroc >= _EASY for row in rows)
    if easy > 1:
        found.append(
            f"{easy} candidates reach an AUROC of {100 * _EASY:g} or more: {', '.join(best.proxies)} is too easy to "
            "tell them apart, choose harder ones such as 'mix, blur, colour'"
        )
    return found


def _count(blocks: Blocks) -> int:
    return sum(len(activations.logits) for activations, _ in blocks)


def _check_select(select: str) -> None:
    if select not in NAMES:
        raise ValueError(f"select must be one of {', '.join(NAMES)}; got {select!r}")
