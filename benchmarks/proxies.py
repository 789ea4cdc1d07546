"""Which stand-in for OOD images ranks detectors best: each proxy's order of 200 candidates beside the real one.

python benchmarks/proxies.py DATA CACHE OUT [NAME ...] > benchmarks/proxies.md

The networks are the authors' DenseNet-101. DATA holds the datasets, CACHE/<name> what `davis bench` cached of the
real sets, if anything; the rest goes through the network here. OUT keeps the scores, which benchmarks/tuning.py reads.
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
from davis.metrics import evaluate
from davis.sets import ArraySet
from davis.tuning.grid import default_grid
from davis.tuning.proxies import make, parse_proxies
from davis.tuning.search import Measured, measure
from davis.tuning.surface import Point, average, spearman

NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
FIT, TUNE, TEST, REAL = 5000, 1000, 2000, 1000  # images of each kind
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


class Part:
    """The first images of a set, as they are or as a proxy makes them."""

    def __init__(self, images: ArraySet, count: int, proxy: str | None = None) -> None:
        self.name = f"{images.name}-{proxy or 'plain'}"
        self.images = ArraySet(images.name, images.images[:count], None, images.preprocessing)
        self.proxy = None if proxy is None else parse_proxies(proxy)[proxy]

    def __len__(self) -> int:
        return len(self.images)

    def fingerprint(self) -> str:
        return f"{self.images.fingerprint()} {self.proxy!r}"

    def batches(self, start: int, size: int) -> Iterator[tuple[torch.Tensor, None, int]]:
        for images, _, count in self.images.batches(start, size):
            generator = torch.Generator().manual_seed(start)
            start += count
            if self.proxy is not None:
                (images,) = make(images, [self.proxy], self.images.preprocessing, [generator])
            yield images, None, count


class Network:
    """A network of the paper and its image sets, read from caches where they are."""

    def __init__(self, name: str, data: Path, cache: Path, out: Path) -> None:
        description, folder = describe.read(f"paper-{name}-densenet101")
        self.benchmark = describe.build(description, folder, data=data)
        self.backbone = self.benchmark.backbone
        self.cache, self.out = cache / name, out / name

    def blocks(self, images: ImageSet, start: int, count: int, proxy: str | None = None) -> list:
        """The activations of some images as the tuner takes them, by a pass where there is no cache of them."""
        stop = min(start + count, len(images))
        kept = [Cached(folder) for folder in self.cache.glob(f"{images.name}-*")] if proxy is None else []
        whole = next((each for each in kept if len(each) >= stop), None)
        if whole is None:
            assert isinstance(images, ArraySet)
            whole = fill(self.out, self.backbone, Part(images, stop, proxy), statistics=STATISTICS)
        cuts = [slice(first, min(first + 2048, stop)) for first in range(start, stop, 2048)]
        return [(whole.activations(cut), None) for cut in cuts]

    def measured(self) -> Measured:
        """The scores of every candidate on every set, kept in OUT."""
        kept = self.out / "scores.npz"
        if kept.is_file():
            found: Measured = {}
            with np.load(kept) as arrays:
                for key in arrays.files:
                    place, spec = key.split("::")
                    found.setdefault(place, {})[spec] = arrays[key]
            return found
        self.backbone.probe((3, 32, 32))
        test = self.benchmark.test
        sets = {"holdout": self.blocks(test, 0, TUNE)}
        sets |= {proxy: self.blocks(test, 0, TUNE, proxy) for proxy in PROXIES}
        sets |= {"test": self.blocks(test, TUNE, TEST)}
        sets |= {key: self.blocks(images, 0, REAL) for key, (images, _) in self.benchmark.ood.items()}
        fitted = self.blocks(self.benchmark.fit, 0, FIT)
        scores, refused = measure(self.backbone, default_grid(), fitted=fitted, sets=sets, capacity=FIT)
        assert not refused, refused
        np.savez(kept, **{f"{place}::{spec}": v for place, by in scores.items() for spec, v in by.items()})
        return scores

    def groups(self) -> dict[str, list[str]]:
        """far and near -> the names of the real sets."""
        ood = self.benchmark.ood.items()
        return {group: [key for key, (_, of) in ood if of == group] for group in ("far", "near")}


def point(measured: Measured, spec: str, id: str, oods: list[str]) -> Point:
    """A candidate's averages over sets."""
    found = [evaluate(measured[id][spec], measured[ood][spec]) for ood in oods]
    return average([Point(each.auroc, each.fpr) for each in found])


def page(data: Path, cache: Path, out: Path, *names: Path) -> Iterator[str]:
    yield INTRODUCTION
    for name, title in NAMES.items():
        if names and Path(name) not in names:
            continue
        network = Network(name, data, cache, out)
        measured, sets = network.measured(), network.groups()
        specs = list(measured["holdout"])
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
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    print("\n".join(page(*map(Path, sys.argv[1:]))))
