"""Running a benchmark: fill the caches, fit every detector once, score every set, compare.

A detector that cannot be fitted or scored here is left out with the reason, and costs the others nothing; one that
can, but warns, is kept with its warnings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from davis import __version__, atomic
from davis.backbone import Backbone
from davis.bench.cache import STATISTICS, Cached, Dtype, ImageSet, fill, first_images
from davis.bench.folder import LeftOut, Warned, check_free, claim, is_scored, scores_file
from davis.bench.overhead import overhead
from davis.bench.results import (
    AVERAGES,
    Group,
    Results,
    Row,
    compare,
    load_arrays,
    read_json,
    save,
    save_arrays,
)
from davis.calibrate import calibrate, needed
from davis.detector import Detector
from davis.joint_fit import fit_from_activations, fit_together
from davis.locks import alone_in
from davis.scoring import Scored, accuracies, reason_of, score_all, those_that_work
from davis.sets.classes import agree_on_classes, check_labels
from davis.statistics import CAPACITY
from davis.types import Images

Step: TypeAlias = Callable[[int], None]  # call with the number of images done since the last call
Watch: TypeAlias = Callable[[str, int], AbstractContextManager[Step]]  # title and number of images -> a progress bar

TPR = 0.95
"""The share of in-distribution images that thresholds set on the calibration images accept."""

_SAMPLE = 500  # images of each set whose channel statistics the figures show


@dataclass(frozen=True)
class Benchmark:
    """What is measured: a model, images it knows, images it does not, and detectors."""

    name: str
    model: str  # as a person would name it
    backbone: Backbone
    fit: ImageSet
    test: ImageSet
    ood: Mapping[str, tuple[ImageSet, Group]]
    specs: Sequence[str]
    calibration: ImageSet | None = None  # sets thresholds; fitted on by nobody
    paper: tuple[str, str] | None = None  # (id_dataset, model) in the paper's tables
    gamma: float = 1.0
    pixel_images: int = 2000  # of each set, for methods that move images
    capacity: int = CAPACITY
    dtype: Dtype = "float32"
    batch: int = 100
    seed: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


def _silent(title: str, total: int) -> AbstractContextManager[Step]:
    return nullcontext(lambda done: None)


def run(benchmark: Benchmark, folder: Path, *, cache: Path, watch: Watch = _silent) -> Results:
    """Run a benchmark, or go on with one that was cut off; what is finished is not done again.

    Results do not depend on where a run was cut off: the same benchmark gives the same bytes.
    """
    check_free(folder)
    with alone_in(folder, "benchmarks in"):
        return _run(benchmark, folder, cache=cache, watch=watch)


def _run(benchmark: Benchmark, folder: Path, *, cache: Path, watch: Watch) -> Results:
    detectors = [Detector(benchmark.backbone, spec) for spec in benchmark.specs]
    if not detectors:
        raise ValueError("the benchmark has no methods left to run")
    if len({detector.spec for detector in detectors}) < len(detectors):
        raise ValueError("the benchmark names a detector twice; specs that mean the same count as one")
    names = [name for name, _ in _sets(benchmark)]
    if len(set(names)) < len(names):
        raise ValueError(f"two image sets have the same name: {', '.join(names)}; give each its own")
    for name in names:
        if name in AVERAGES.values():
            raise ValueError(f"{name!r} is what the average over OOD sets is called; give the image set another name")
        if name in ("", "..") or Path(name).name != name:
            raise ValueError(f"{name!r} cannot name an image set: its files are named after it")
    if benchmark.calibration is not None and len(benchmark.calibration) < needed(tpr=TPR):
        raise ValueError(
            f"{len(benchmark.calibration)} calibration images are too few to accept {100 * TPR:g}% of ID images; "
            f"{needed(tpr=TPR)} are needed"
        )
    outputs = benchmark.backbone(first_images(benchmark.fit), statistics=()).logits.shape[1]
    agree_on_classes([benchmark.fit, benchmark.test], outputs)
    seconds: dict[str, float] = {}
    statistics = set(STATISTICS).union(*(detector.reads for detector in detectors))
    caches = {}
    for name, images in _sets(benchmark):
        with watch(f"pass over {name}", len(images)) as step:
            caches[name] = _filled(benchmark, images, statistics, cache, step)
        seconds[f"pass {name}"] = caches[name].seconds
        if images in (benchmark.fit, benchmark.test):
            check_labels(name, caches[name].labels, outputs)
    _check_different(benchmark, caches)
    identity = _identity(benchmark, caches)
    claim(folder, identity, write=False)
    left_out, warned = LeftOut(folder), Warned(folder)
    working = left_out.without(detectors)
    began = time.perf_counter()
    missing = [name for name, _ in _scored_sets(benchmark) if not _is_scored(folder, name, benchmark)]
    if missing:
        with warned.by_stages(working):
            _fit(benchmark, working, caches, watch, left_out)
        working = left_out.without(detectors)
        seconds["fit"] = time.perf_counter() - began
    claim(folder, identity, write=True)  # not before the fit: one that fails leaves the folder free
    for name, images in _scored_sets(benchmark):
        if name not in missing:
            continue
        began = time.perf_counter()
        with watch(f"score {name}", len(caches[name])) as step, warned.by_stages(working):
            scores = _score_cached(working, caches[name], step, left_out)
        seconds[f"score {name}"] = time.perf_counter() - began
        with warned.by_stages(working):
            scores |= _score_pixels(benchmark, working, name, images, watch, left_out, warned)
        working = left_out.without(detectors)
        left_out.save()
        warned.save()  # before the scores: a run that goes on from them does not hear it again
        if name == benchmark.test.name:
            cached = [detector for detector in working if not detector.needs_pixels]
            _save_accuracy(folder, cached, caches[name])
            _save_overhead(folder, benchmark, cached)
        if name != _calibration(benchmark):
            save_arrays(folder / "units" / f"{name}.npz", _units(caches[name]))
        save_arrays(scores_file(folder, name), {detector.spec: scores[detector.spec] for detector in working})
    classifier = benchmark.backbone.classifier
    if classifier.is_linear:
        parts = {"weight": classifier.weight, "bias": classifier.bias}
        save_arrays(folder / "head.npz", {name: part.detach().cpu().numpy() for name, part in parts.items()})
    specs = [detector.spec for detector in working]
    results = _results(benchmark, folder, specs, caches, left_out.among(detectors), warned)
    save(results, folder)
    known = folder / "timings.json"
    earlier = read_json(known) if known.is_file() else {}
    atomic.write(known, (json.dumps(earlier | seconds, indent=1) + "\n").encode())
    return results


def _is_scored(folder: Path, name: str, benchmark: Benchmark) -> bool:
    beside = [] if name == _calibration(benchmark) else [f"units/{name}.npz"]
    beside += ["accuracy.json", "overhead.json"] if name == benchmark.test.name else []
    return is_scored(folder, name, beside)


def _sets(benchmark: Benchmark) -> Iterator[tuple[str, ImageSet]]:
    yield benchmark.fit.name, benchmark.fit
    yield from _scored_sets(benchmark)


def _scored_sets(benchmark: Benchmark) -> Iterator[tuple[str, ImageSet]]:
    yield benchmark.test.name, benchmark.test
    if benchmark.calibration is not None:
        yield benchmark.calibration.name, benchmark.calibration
    for name, (images, _) in benchmark.ood.items():
        yield name, images


def _check_different(benchmark: Benchmark, caches: Mapping[str, Cached]) -> None:
    """The same pictures, known and unknown at once, would give figures that mean nothing."""
    known: dict[str, str] = {}
    for name, _ in _sets(benchmark):
        kind = "OOD" if name in benchmark.ood else "ID"
        same = known.get(caches[name].data)
        if same is not None and not (kind == "OOD" and same in benchmark.ood):  # two OOD names of one set do no harm
            raise ValueError(f"the {kind} set {name} is the ID set {same}: give other images")
        known[caches[name].data] = name


def _calibration(benchmark: Benchmark) -> str | None:
    return None if benchmark.calibration is None else benchmark.calibration.name


def _filled(benchmark: Benchmark, images: ImageSet, statistics: set[str], cache: Path, step: Step) -> Cached:
    done = 0

    def progress(position: int, total: int) -> None:
        nonlocal done
        step(position - done)
        done = position

    return fill(
        cache,
        benchmark.backbone,
        images,
        statistics=statistics,
        dtype=benchmark.dtype,
        batch=benchmark.batch,
        progress=progress,
    )


def _identity(benchmark: Benchmark, caches: Mapping[str, Cached]) -> dict[str, Any]:
    """All that the scores depend on."""
    return {
        "version": __version__,
        "specs": list(benchmark.specs),
        "caches": {name: cached.identity for name, cached in caches.items()},
        "groups": {name: group for name, (_, group) in benchmark.ood.items()},
        "calibration": _calibration(benchmark),
        "pixel_images": benchmark.pixel_images,
        "capacity": benchmark.capacity,
        "seed": benchmark.seed,
    }


def _fit(
    benchmark: Benchmark, detectors: Sequence[Detector], caches: Mapping[str, Cached], watch: Watch, left_out: LeftOut
) -> None:
    name = benchmark.fit.name
    cached = [detector for detector in detectors if not detector.needs_pixels]
    moving = [detector for detector in detectors if detector.needs_pixels]
    options: dict[str, Any] = {"capacity": benchmark.capacity, "seed": benchmark.seed}
    with watch("fit", len(caches[name])) as step:

        def stream() -> Iterator[Any]:
            for activations, labels in caches[name].stream():
                yield activations, labels
                step(len(activations.logits))

        those_that_work(lambda part: fit_from_activations(part, stream(), **options), cached, left_out.add)
    if moving:
        with watch("fit the methods that move images", benchmark.pixel_images) as step:
            batches = list(_some(benchmark.fit, benchmark.pixel_images, benchmark.batch))
            those_that_work(lambda part: fit_together(part, batches, **options), moving, left_out.add)
            step(benchmark.pixel_images)


def _some(images: ImageSet, count: int, batch: int) -> Iterator[Images]:
    """So many of the images, spread evenly: a sorted folder begins with its first classes."""
    waiting: list[Images] = []
    position = 0
    for pictures, _, _ in images.batches(0, batch):
        places = torch.arange(position, position + len(pictures))
        position += len(pictures)
        waiting += pictures[places * count % len(images) < count].split(1)
        while len(waiting) >= batch:
            yield torch.cat(waiting[:batch])
            waiting = waiting[batch:]
    if waiting:
        yield torch.cat(waiting)


def _score_cached(detectors: Sequence[Detector], cached: Cached, step: Step, left_out: LeftOut) -> Scored:
    chosen = [detector for detector in detectors if not detector.needs_pixels]
    parts = those_that_work(lambda part: score_all(part, cached.stream(), tick=step), chosen, left_out.add)
    return {spec: scores for part in parts for spec, scores in part.items()}


def _score_pixels(
    benchmark: Benchmark,
    detectors: Sequence[Detector],
    name: str,
    images: ImageSet,
    watch: Watch,
    left_out: LeftOut,
    warned: Warned,
) -> Scored:
    moving = [detector for detector in detectors if detector.needs_pixels]
    parts: dict[str, list[Tensor]] = {detector.spec: [] for detector in moving}
    if moving:
        with watch(f"methods that move images on {name}", min(benchmark.pixel_images, len(images))) as step:
            for pictures in _some(images, benchmark.pixel_images, benchmark.batch):
                for detector in [each for each in moving if each.spec not in left_out.reasons]:
                    try:
                        with warned.by(detector.spec):
                            parts[detector.spec].append(detector.score_images(pictures))
                    except (ValueError, RuntimeError) as error:
                        left_out.add(detector, reason_of(error))
                step(len(pictures))
    return {spec: torch.cat(part).cpu().numpy() for spec, part in parts.items() if spec not in left_out.reasons}


def _save_accuracy(folder: Path, detectors: Sequence[Detector], cached: Cached) -> None:
    found = accuracies(detectors, cached.stream())
    atomic.write(folder / "accuracy.json", (json.dumps(found, indent=1) + "\n").encode())


def _save_overhead(folder: Path, benchmark: Benchmark, detectors: Sequence[Detector]) -> None:
    first = next(_some(benchmark.test, 1, 1))
    found = overhead(benchmark.backbone, detectors, first)
    atomic.write(folder / "overhead.json", (json.dumps(found, indent=1) + "\n").encode())


def _units(cached: Cached) -> dict[str, NDArray[np.float32]]:
    """The channel statistics of a set: averaged over its images, and of a sample of them."""
    totals: dict[str, Any] = {}
    for activations, _ in cached.stream():
        for name in ("mean", "std", "max"):
            values = getattr(activations, name).double().sum(0)
            totals[name] = totals.get(name, 0) + values
    averages = {name: (total / len(cached)).float().cpu().numpy() for name, total in totals.items()}
    rows = np.linspace(0, len(cached) - 1, min(_SAMPLE, len(cached))).round().astype(int)
    everything = cached.activations()
    sample = {f"sample_{name}": getattr(everything, name)[rows].cpu().numpy() for name in totals}
    return averages | sample


def _results(
    benchmark: Benchmark,
    folder: Path,
    specs: list[str],
    caches: Mapping[str, Cached],
    left_out: Mapping[str, str],
    warned: Warned,
) -> Results:
    def scores(name: str) -> Scored:
        arrays = load_arrays(scores_file(folder, name))
        return {spec: arrays[spec] for spec in specs}

    id_scores = scores(benchmark.test.name)
    held = _calibration(benchmark)
    thresholds = None if held is None else {spec: _threshold(spec, each, warned) for spec, each in scores(held).items()}
    rows: list[Row] = []
    for name, (_, group) in benchmark.ood.items():
        rows += compare(id_scores, name, group, scores(name), thresholds=thresholds)
    accuracy, flops = read_json(folder / "accuracy.json"), read_json(folder / "overhead.json")
    facts = benchmark.facts | {
        "davis": __version__,
        "torch": torch.__version__,
        "device": str(next(benchmark.backbone.model.parameters()).device),
        "images": {name: len(cached) for name, cached in caches.items()},
        "fit_images": {"set": benchmark.fit.name, "images": len(caches[benchmark.fit.name])},
        "pixel_images": benchmark.pixel_images,
        "dtype": benchmark.dtype,
        "skipped": {name: cached.skipped for name, cached in caches.items() if cached.skipped},
        "accuracy_by_spec": {spec: share for spec, share in accuracy["by_spec"].items() if spec in specs},
        "flops": {spec: count for spec, count in flops.items() if spec in ("model", *specs)},
        "calibration": None if held is None else {"set": held, "images": len(caches[held]), "tpr": TPR},
        "left_out": dict(left_out),
        "warnings": warned.among(specs),
    }
    return Results(
        name=benchmark.name,
        model=benchmark.model,
        id=benchmark.test.name,
        paper=benchmark.paper,
        groups={name: group for name, (_, group) in benchmark.ood.items()},
        specs=specs,
        accuracy=accuracy["model"],
        rows=rows,
        gamma=benchmark.gamma,
        facts=facts,
    )


def _threshold(spec: str, scores: NDArray[np.float64], warned: Warned) -> float | None:
    """What accepts the promised share of new ID images; None where a method saw too few to promise anything."""
    if len(scores) < needed(tpr=TPR):
        return None
    with warned.by(spec):
        return calibrate(torch.from_numpy(scores), tpr=TPR).threshold
