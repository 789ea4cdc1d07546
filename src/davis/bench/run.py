"""Running a benchmark: fill the caches, fit every detector once, score every set, compare."""

from __future__ import annotations

import hashlib
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

from davis import __version__
from davis.backbone import Backbone
from davis.bench.cache import STATISTICS, Cached, Dtype, ImageSet, fill
from davis.bench.overhead import overhead
from davis.bench.results import Group, Results, Row, compare, save, save_arrays, write_atomically
from davis.detector import Detector, fit_from_activations, fit_together
from davis.scoring import Scored, accuracies, score_all
from davis.statistics import CAPACITY
from davis.types import Images

Step: TypeAlias = Callable[[int], None]  # call with the number of images done since the last call
Watch: TypeAlias = Callable[[str, int], AbstractContextManager[Step]]  # title and number of images -> a progress bar

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
    detectors = [Detector(benchmark.backbone, spec) for spec in benchmark.specs]
    if not detectors:
        raise ValueError("the benchmark has no methods left to run")
    if len({detector.spec for detector in detectors}) < len(detectors):
        raise ValueError("the benchmark names a detector twice; specs that mean the same count as one")
    names = [name for name, _ in _sets(benchmark)]
    if len(set(names)) < len(names):
        raise ValueError(f"two image sets have the same name: {', '.join(names)}; give each its own")
    for name in names:
        if not name or Path(name).name != name:
            raise ValueError(f"{name!r} cannot name an image set: its files are named after it")
    _check_free(folder)
    seconds: dict[str, float] = {}
    statistics = set(STATISTICS).union(*(detector.reads for detector in detectors))
    caches = {}
    for name, images in _sets(benchmark):
        with watch(f"pass over {name}", len(images)) as step:
            caches[name] = _filled(benchmark, images, statistics, cache, step)
        seconds[f"pass {name}"] = caches[name].seconds
    _claim(folder, benchmark, caches, write=False)
    cached = [detector for detector in detectors if not detector.needs_pixels]
    moving = [detector for detector in detectors if detector.needs_pixels]
    began = time.perf_counter()
    missing = [name for name, _ in _scored_sets(benchmark) if not _file(folder, name).is_file()]
    if missing:
        _fit(benchmark, cached, moving, caches, watch)
        seconds["fit"] = time.perf_counter() - began
    _claim(folder, benchmark, caches, write=True)  # not before the fit: one that fails leaves the folder free
    for name, images in _scored_sets(benchmark):
        if name not in missing:
            continue
        began = time.perf_counter()
        with watch(f"score {name}", len(caches[name])) as step:
            scores = score_all(cached, caches[name].stream(), tick=step)
        seconds[f"score {name}"] = time.perf_counter() - began
        scores |= _score_pixels(benchmark, moving, name, images, watch)
        if name == benchmark.test.name:
            _save_accuracy(folder, cached, caches[name])
            _save_overhead(folder, benchmark, cached)
        save_arrays(folder / "units" / f"{name}.npz", _units(caches[name]))
        save_arrays(_file(folder, name), {spec: scores[spec] for spec in (d.spec for d in detectors)})
    classifier = benchmark.backbone.classifier
    if classifier.is_linear:
        parts = {"weight": classifier.weight, "bias": classifier.bias}
        save_arrays(folder / "head.npz", {name: part.detach().cpu().numpy() for name, part in parts.items()})
    results = _results(benchmark, folder, [detector.spec for detector in detectors], caches)
    save(results, folder)
    known = folder / "timings.json"
    earlier = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else {}
    write_atomically(known, (json.dumps(earlier | seconds, indent=1) + "\n").encode())
    return results


def _sets(benchmark: Benchmark) -> Iterator[tuple[str, ImageSet]]:
    yield benchmark.fit.name, benchmark.fit
    yield from _scored_sets(benchmark)


def _scored_sets(benchmark: Benchmark) -> Iterator[tuple[str, ImageSet]]:
    yield benchmark.test.name, benchmark.test
    for name, (images, _) in benchmark.ood.items():
        yield name, images


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


def _claim(folder: Path, benchmark: Benchmark, caches: Mapping[str, Cached], *, write: bool) -> None:
    """Make sure that the folder is this benchmark's own, finished parts of another must not be mixed in; take it."""
    identity = {
        "version": __version__,
        "specs": list(benchmark.specs),
        "caches": {name: cached.identity for name, cached in caches.items()},
        "groups": {name: group for name, (_, group) in benchmark.ood.items()},
        "pixel_images": benchmark.pixel_images,
        "capacity": benchmark.capacity,
        "seed": benchmark.seed,
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    file = folder / "benchmark.json"
    _check_free(folder)
    if file.is_file():
        if json.loads(file.read_text(encoding="utf-8")).get("sha256") != digest:
            raise ValueError(
                f"{folder} holds another benchmark, or this one with other data, methods or options; "
                "choose another folder"
            )
    elif write:
        write_atomically(file, (json.dumps(identity | {"sha256": digest}, indent=1) + "\n").encode())


def _check_free(folder: Path) -> None:
    taken = folder.is_dir() and not (folder / "benchmark.json").is_file()
    if taken and any(entry.name != "cache" for entry in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no benchmark; choose another folder")


def _file(folder: Path, name: str) -> Path:
    return folder / "scores" / f"{name}.npz"


def _fit(
    benchmark: Benchmark,
    cached: list[Detector],
    moving: list[Detector],
    caches: Mapping[str, Cached],
    watch: Watch,
) -> None:
    name = benchmark.fit.name
    with watch("fit", len(caches[name])) as step:

        def stream() -> Iterator[Any]:
            for activations, labels in caches[name].stream():
                yield activations, labels
                step(len(activations.logits))

        fit_from_activations(cached, stream(), capacity=benchmark.capacity, seed=benchmark.seed)
    if moving:
        with watch("fit the methods that move images", benchmark.pixel_images) as step:
            batches = list(_first(benchmark.fit, benchmark.pixel_images, benchmark.batch))
            fit_together(moving, batches, capacity=benchmark.capacity, seed=benchmark.seed)
            step(benchmark.pixel_images)


def _first(images: ImageSet, count: int, batch: int) -> Iterator[Images]:
    for pictures, _, _ in images.batches(0, batch):
        if len(pictures):
            yield pictures[:count]
        count -= len(pictures)
        if count <= 0:
            return


def _score_pixels(
    benchmark: Benchmark, moving: Sequence[Detector], name: str, images: ImageSet, watch: Watch
) -> Scored:
    scores: Scored = {}
    for detector in moving:
        parts = []
        with watch(f"{detector.spec} on {name}", min(benchmark.pixel_images, len(images))) as step:
            for pictures in _first(images, benchmark.pixel_images, benchmark.batch):
                parts.append(detector.score_images(pictures))
                step(len(pictures))
        scores[detector.spec] = torch.cat(parts).cpu().numpy()
    return scores


def _save_accuracy(folder: Path, detectors: Sequence[Detector], cached: Cached) -> None:
    found = accuracies(detectors, cached.stream())
    write_atomically(folder / "accuracy.json", (json.dumps(found, indent=1) + "\n").encode())


def _save_overhead(folder: Path, benchmark: Benchmark, detectors: Sequence[Detector]) -> None:
    first = next(_first(benchmark.test, 1, 1))
    found = overhead(benchmark.backbone, detectors, first)
    write_atomically(folder / "overhead.json", (json.dumps(found, indent=1) + "\n").encode())


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


def _results(benchmark: Benchmark, folder: Path, specs: list[str], caches: Mapping[str, Cached]) -> Results:
    def scores(name: str) -> Scored:
        with np.load(_file(folder, name)) as arrays:
            return {spec: arrays[spec] for spec in specs}

    id_scores = scores(benchmark.test.name)
    rows: list[Row] = []
    for name, (_, group) in benchmark.ood.items():
        rows += compare(id_scores, name, group, scores(name))
    accuracy = json.loads((folder / "accuracy.json").read_text(encoding="utf-8"))
    facts = benchmark.facts | {
        "davis": __version__,
        "torch": torch.__version__,
        "device": str(next(benchmark.backbone.model.parameters()).device),
        "images": {name: len(cached) for name, cached in caches.items()},
        "fit_images": {"set": benchmark.fit.name, "images": len(caches[benchmark.fit.name])},
        "pixel_images": benchmark.pixel_images,
        "dtype": benchmark.dtype,
        "skipped": {name: cached.skipped for name, cached in caches.items() if cached.skipped},
        "accuracy_by_spec": accuracy["by_spec"],
        "flops": json.loads((folder / "overhead.json").read_text(encoding="utf-8")),
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
