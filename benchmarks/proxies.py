"""Which stand-in for OOD images ranks detectors best: each proxy's order of 200 candidates beside the real one.

python benchmarks/proxies.py DATA CACHE OUT [NAME ...] > benchmarks/proxies.md

The networks are the authors' DenseNet-101. DATA holds the datasets, CACHE/<name> what `davis bench` cached of the
real sets, if anything; the rest goes through the network here. OUT keeps the scores, which benchmarks/tuning.py reads.
ID test images are cut in two: the first are tuned on, the others are the ID side of the real comparison.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from davis.bench import describe
from davis.bench.cache import Cached, ImageSet, fill
from davis.metrics import evaluate
from davis.sets import ArraySet
from davis.tuning.advice import PROXY, candidates
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
KINDS = ("noise", "patches", "mix", "blur", "colour")
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


class Ranked:
    """All candidates of a network on every proxy and on the real sets."""

    def __init__(self, network: Network) -> None:
        measured, self.groups = network.measured(), network.groups()
        self.specs = list(measured["holdout"])
        self.on = {proxy: {spec: point(measured, spec, "holdout", [proxy]) for spec in self.specs} for proxy in PROXIES}
        self.real = {
            group: {spec: point(measured, spec, "test", sets) for spec in self.specs}
            for group, sets in self.groups.items()
        }
        self.few = [spec for spec in candidates(network.backbone.model) if spec in self.specs]

    def choice(self, proxies: tuple[str, ...], specs: list[str]) -> str:
        """What the tuner takes: the best average AUROC over the proxies, then the best FPR95."""
        merit = {spec: average([self.on[proxy][spec] for proxy in proxies]) for spec in specs}
        return max(specs, key=lambda spec: (merit[spec].auroc, -merit[spec].fpr95))

    def correlation(self, proxies: tuple[str, ...], group: str) -> float | None:
        own = np.array([average([self.on[proxy][spec] for proxy in proxies]).auroc for spec in self.specs])
        return spearman(own, np.array([self.real[group][spec].auroc for spec in self.specs]))

    def values(self, specs: list[str]) -> list[list[float]]:
        """far, near and their mean: the real AUROC of some candidates."""
        apart = [[points[spec].auroc for spec in specs] for points in self.real.values()]
        return [*apart, [float(np.mean(pair)) for pair in zip(*apart, strict=True)]]

    def regret(self, chosen: str) -> list[float]:
        """far, near and their mean: what a choice loses to the best of all candidates for that."""
        best = [max(values) for values in self.values(self.specs)]
        return [top - values[0] for top, values in zip(best, self.values([chosen]), strict=True)]


def best_combination(ranked: Ranked) -> tuple[str, ...]:
    """The proxies, of all subsets of the five, whose choice loses least on far and near OOD together."""
    subsets = [subset for size in range(1, 6) for subset in combinations(KINDS, size)]
    return min(subsets, key=lambda subset: ranked.regret(ranked.choice(subset, ranked.specs))[2])


def page(data: Path, cache: Path, out: Path, *names: Path) -> Iterator[str]:
    yield INTRODUCTION
    found = {name: Ranked(Network(name, data, cache, out)) for name in NAMES if not names or Path(name) in names}
    combined = best_combination(next(iter(found.values())))
    rows = {**{proxy: (proxy,) for proxy in PROXIES}, "all five": KINDS, ", ".join(combined): combined}
    for name, ranked in found.items():
        yield f"## {NAMES[name]}\n"
        yield f"far: {', '.join(ranked.groups['far'])}; near: {', '.join(ranked.groups['near'])}\n"
        yield "| proxy | chosen | ρ far | ρ near | regret far | near | both |"
        yield "|---" * 7 + "|"
        for title, proxies in rows.items():
            chosen = ranked.choice(proxies, ranked.specs)
            cells = [_two(ranked.correlation(proxies, group)) for group in ranked.groups]
            cells += [_two(100 * regret) for regret in ranked.regret(chosen)]
            yield f"| {title} | `{chosen}` | {' | '.join(cells)} |"
        blind = [_two(100 * (max(values) - float(np.median(values)))) for values in ranked.values(ranked.specs)]
        yield f"| none: the median candidate | | | | {' | '.join(blind)} |"
        for group, points in ranked.real.items():
            best = max(ranked.specs, key=lambda spec: points[spec].auroc)
            yield f"\nBest in hindsight, {group}: `{best}`, AUROC {100 * points[best].auroc:.2f}."
        yield f"\nOf the {len(ranked.few)} candidates of `davis.recommend`, AUROC / FPR95 on the real sets:\n"
        yield "| | detector | far | near |\n|---|---|---|---|"
        shown = {
            "recommended": ranked.choice(tuple(PROXY.split(", ")), ranked.few),
            "plain": "mean + energy",
            "the paper's best": "davis(gamma=3) + dice + energy",
        }
        for title, spec in shown.items():
            cells = [f"{100 * by[spec].auroc:.2f} / {100 * by[spec].fpr95:.2f}" for by in ranked.real.values()]
            yield f"| {title} | `{spec}` | {' | '.join(cells)} |"
        yield ""


def _two(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


INTRODUCTION = f"""# Which proxy ranks detectors best

Written by `benchmarks/proxies.py`. The authors' DenseNet-101; {FIT:,} training images to fit on, {TUNE:,} test images
to tune on, {TEST:,} other test images against up to {REAL:,} images of each real OOD set. ρ is Spearman's correlation
between a candidate's AUROC on the proxy and its average AUROC on the real sets, over the 200 candidates of the default
grid. Regret is the AUROC (in points) that the choice loses to the best candidate in hindsight; both: to the best
for the mean of far and near. The last combination is the best of all 31 subsets of the five on the first network; on
the second one it is a test.
"""


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    print("\n".join(page(*map(Path, sys.argv[1:]))))
