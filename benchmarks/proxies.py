"""Which stand-in for OOD images ranks detectors best: each proxy's order of 200 candidates beside the real one.

python benchmarks/proxies.py DATA CACHE OUT > benchmarks/proxies.md

The networks are the authors' DenseNet-101. DATA holds the datasets, CACHE/<name> what `davis bench` cached of the
real sets; the proxied images go through the network here. OUT keeps the scores, which benchmarks/tuning.py reads.
ID test images are cut in two: the first are tuned on, the others are the ID side of the real comparison.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from davis.bench import describe
from davis.bench.cache import Cached, ImageSet, fill
from davis.data import Preprocessing
from davis.metrics import evaluate
from davis.sets import ArraySet
from davis.tuning.grid import default_grid
from davis.tuning.proxies import make, parse_proxies
from davis.tuning.search import Measured, measure
from davis.tuning.surface import Point, average, spearman

NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
FIT, TUNE, TEST, REAL = 5000, 1000, 4000, 2000  # images of each kind
PROXIES = (
    "noise",
    "noise(clip=false)",
    "patches",
    "mix",
    "blur",
    "colour",
)
COMBINED = {"noise, patches, mix, blur, colour": ("noise", "patches", "mix", "blur", "colour")}
STATISTICS = ("std", "max")


class Proxied:
    """The first images of a set, as a proxy makes them."""

    def __init__(self, images: ArraySet, proxy: str, count: int) -> None:
        self.name = f"{images.name}-{proxy}"
        self.images = ArraySet(images.name, images.images[:count], None, images.preprocessing)
        self.proxy = parse_proxies(proxy)[proxy]

    def __len__(self) -> int:
        return len(self.images)

    def fingerprint(self) -> str:
        return f"{self.images.fingerprint()} {self.proxy!r}"

    def batches(self, start: int, size: int) -> Iterator[tuple[torch.Tensor, None, int]]:
        preprocessing: Preprocessing = self.images.preprocessing
        for images, _, count in self.images.batches(start, size):
            generator = torch.Generator().manual_seed(start)
            start += count
            yield make(images, [self.proxy], preprocessing, [generator])[0], None, count


def blocks(cached: Cached, rows: slice) -> list:
    """Rows of a cache as the tuner takes them."""
    start, stop, _ = rows.indices(len(cached))
    labels = cached.labels
    cuts = [slice(first, min(first + 2048, stop)) for first in range(start, stop, 2048)]
    return [(cached.activations(cut), None if labels is None else labels[cut]) for cut in cuts]


def scores(name: str, data: Path, cache: Path, out: Path) -> tuple[Measured, dict[str, str]]:
    """The scores of every candidate on every set, and the group of each real set; kept in OUT."""
    description, folder = describe.read(f"paper-{name}-densenet101")
    benchmark = describe.build(description, folder, data=data)
    groups = {key: group for key, (_, group) in benchmark.ood.items()}
    kept = out / f"{name}.npz"
    if kept.is_file():
        with np.load(kept) as arrays:
            found: Measured = {}
            for key in arrays.files:
                place, spec = key.split("::")
                found.setdefault(place, {})[spec] = arrays[key]
            return found, groups
    benchmark.backbone.probe((3, 32, 32))

    def cached(images: ImageSet) -> Cached:
        found = Cached(next((cache / name).glob(f"{images.name}-*")))
        if not found.record["complete"]:
            raise SystemExit(f"{found.folder} is not complete; run davis bench first")
        return found

    assert isinstance(benchmark.test, ArraySet)
    sets = {
        "holdout": blocks(cached(benchmark.test), slice(0, TUNE)),
        "test": blocks(cached(benchmark.test), slice(TUNE, TUNE + TEST)),
    }
    for proxy in PROXIES:
        images = Proxied(benchmark.test, proxy, TUNE)
        sets[proxy] = blocks(fill(out / name, benchmark.backbone, images, statistics=STATISTICS), slice(0, TUNE))
    for key, (images, _) in benchmark.ood.items():
        sets[key] = blocks(cached(images), slice(0, REAL))
    measured, refused = measure(
        benchmark.backbone, default_grid(), blocks(cached(benchmark.fit), slice(0, FIT)), sets, capacity=FIT, seed=0
    )
    assert not refused, refused
    out.mkdir(parents=True, exist_ok=True)
    np.savez(kept, **{f"{place}::{spec}": v for place, by in measured.items() for spec, v in by.items()})
    return measured, groups


def point(measured: Measured, spec: str, id: str, oods: list[str]) -> Point:
    """A candidate's averages over sets."""
    found = [evaluate(measured[id][spec], measured[ood][spec]) for ood in oods]
    return average([Point(each.auroc, each.fpr) for each in found])


def page(data: Path, cache: Path, out: Path) -> Iterator[str]:
    yield INTRODUCTION
    for name, title in NAMES.items():
        measured, groups = scores(name, data, cache, out)
        specs = list(measured["holdout"])
        sets = {group: [key for key, of in groups.items() if of == group] for group in ("far", "near")}
        real = {group: {spec: point(measured, spec, "test", sets[group]) for spec in specs} for group in sets}
        yield f"## {title}\n"
        yield f"far: {', '.join(sets['far'])}; near: {', '.join(sets['near'])}; {len(specs)} candidates\n"
        yield "| proxy | chosen | ρ far | ρ near | ρ far, top 50 | regret far | near | median far | near |"
        yield "|---" * 9 + "|"
        for proxy, parts in {**{p: (p,) for p in PROXIES}, **COMBINED}.items():
            merit = {spec: point(measured, spec, "holdout", list(parts)) for spec in specs}
            chosen = max(specs, key=lambda spec: (merit[spec].auroc, -merit[spec].fpr95))
            cells = [f"`{chosen}`"]
            own = np.array([merit[spec].auroc for spec in specs])
            for group in sets:
                cells.append(_two(spearman(own, np.array([real[group][spec].auroc for spec in specs]))))
            best = sorted(specs, key=lambda spec: -real["far"][spec].auroc)[:50]
            cells.append(
                _two(
                    spearman(
                        np.array([merit[spec].auroc for spec in best]),
                        np.array([real["far"][spec].auroc for spec in best]),
                    )
                )
            )
            for group in sets:
                values = [real[group][spec].auroc for spec in specs]
                cells.append(f"{100 * (max(values) - real[group][chosen].auroc):.2f}")
            for group in sets:  # what a blind choice would lose
                values = [real[group][spec].auroc for spec in specs]
                cells.append(f"{100 * (max(values) - float(np.median(values))):.2f}")
            yield f"| {proxy} | {' | '.join(cells)} |"
        yield "\nThe best in hindsight: " + ", ".join(
            f"{group} `{max(specs, key=lambda s: real[group][s].auroc)}` "
            f"{100 * max(p.auroc for p in real[group].values()):.2f}"
            for group in sets
        )
        yield ""


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


INTRODUCTION = f"""# Which proxy ranks detectors best

Written by `benchmarks/proxies.py`. The authors' DenseNet-101; {FIT:,} training images to fit on, {TUNE:,} test images
to tune on, {TEST:,} other test images against up to {REAL:,} images of each real OOD set. ρ is Spearman's correlation
between a candidate's AUROC on the proxy and its average AUROC on the real sets. Regret is the AUROC (in points) that
the proxy's choice loses to the best candidate in hindsight; median is what a candidate drawn blindly loses.
"""


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    print("\n".join(page(*map(Path, sys.argv[1:]))))
