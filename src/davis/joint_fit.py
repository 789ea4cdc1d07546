"""Fitting detectors that share a backbone: one pass for all of them, and all or none of them fitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from davis.batches import Batches, check_batches, pairs, split_batch
from davis.fitting import Stream, fit, no_graph
from davis.sketch import Sketch
from davis.stages import PixelScore
from davis.statistics import CAPACITY

if TYPE_CHECKING:  # which imports this module: a detector fits itself as one of many
    from davis.detector import Detector


def fit_together(
    detectors: Sequence[Detector],
    batches: Batches,
    *,
    capacity: int = CAPACITY,
    seed: int = 0,
    reference: Batches | None = None,
) -> None:
    """Fit detectors that share a backbone: one pass for all statistics, one more where a score reads pixels.

    If anything fails, every detector is left as it was.
    """
    by_pixels = [detector for detector in detectors if detector.reads_pixels_to_fit]
    learns = any(branch.needs for detector in detectors for branch in detector.composition)
    if learns and by_pixels and iter(batches) is batches:
        raise ValueError(
            f"{by_pixels[0].spec!r} reads the images in a pass of its own, and these batches can be read once only; "
            f"give a list or a DataLoader instead of a generator"
        )
    if not detectors:
        return
    backbone, sketch = detectors[0].backbone, Sketch()
    reads = frozenset[str]().union(*(detector.reads for detector in detectors))
    with _all_or_nothing(detectors):
        _fit(
            detectors,
            backbone.stream(sketched(batches, sketch), statistics=reads),
            capacity=capacity,
            seed=seed,
            reference=None if reference is None else backbone.stream(sketched(reference, sketch), statistics=reads),
        )
        if by_pixels:
            with no_graph():
                _observe(by_pixels, sketched(batches, sketch))
        for detector in detectors:
            detector.sketch = sketch


def fit_from_activations(
    detectors: Sequence[Detector],
    stream: Stream,
    *,
    capacity: int = CAPACITY,
    seed: int = 0,
    reference: Stream | None = None,
) -> None:
    """Fit detectors that share a backbone from activations taken before, such as a cache."""
    for detector in detectors:
        if detector.reads_pixels_to_fit:
            raise ValueError(f"{detector.spec!r} is fitted on images, not on activations; call fit with images")
    if detectors:
        with _all_or_nothing(detectors):
            _fit(detectors, stream, capacity=capacity, seed=seed, reference=reference)


def _fit(
    detectors: Sequence[Detector],
    stream: Stream,
    *,
    capacity: int,
    seed: int,
    reference: Stream | None,
) -> None:
    with no_graph():
        counts = fit(
            detectors[0].backbone,
            [detector.composition for detector in detectors],
            stream,
            capacity=capacity,
            seed=seed,
            reference=reference,
        )
    for detector in detectors:
        detector.class_counts = counts
        detector.images_seen = 0 if counts is None else int(counts.sum())
        detector.sketch = Sketch()
        detector.calibration = None  # a threshold belongs to the fit that it was taken from


def sketched(batches: Batches, sketch: Sketch) -> Batches:
    """The batches, remembered as they pass."""
    check_batches(batches)
    for batch in batches:
        yield batch
        sketch.add(split_batch(batch)[0])  # after the pass has checked them


@contextmanager
def _all_or_nothing(detectors: Sequence[Detector]) -> Iterator[None]:
    """Inside, detectors are fitted; if that fails, they are put back as they were."""
    if any(detector.backbone is not detectors[0].backbone for detector in detectors):
        raise ValueError("detectors are fitted together on one Backbone; make them with the same one, or use fit_all")
    before = [
        (
            detector,
            (detector.calibration, detector.images_seen, detector.class_counts, detector.sketch),
            [dict(stage._buffers) for stage in detector.stages],
        )
        for detector in detectors
    ]
    try:
        yield
    except BaseException:
        for detector, facts, buffers in before:
            detector.calibration, detector.images_seen, detector.class_counts, detector.sketch = facts
            for stage, values in zip(detector.stages, buffers, strict=True):
                stage._buffers.update(values)
        raise


def _observe(detectors: list[Detector], batches: Batches) -> None:
    """The pass of the scores that read pixels."""
    branches = [(d, b, b.score) for d in detectors for b in d.composition if isinstance(b.score, PixelScore)]
    observed: list[list[Tensor]] = [[] for _ in branches]
    most = max(score.images_to_fit for _, _, score in branches)
    seen = 0
    for images, _ in pairs(batches):
        images = detectors[0].backbone.prepare(images)[: most - seen]
        for (detector, branch, score), values in zip(branches, observed, strict=True):
            branch.to(images.device)
            values.append(score.observe(images, *detector.handles(branch)))
        seen += len(images)
        if seen >= most:
            break
    if seen == 0:
        raise ValueError("no images were seen: the fit data are empty")
    for (detector, _, score), values in zip(branches, observed, strict=True):
        score.settle(torch.cat(values))
        detector.images_seen = max(detector.images_seen, seen)
