"""The gamma that the tuner picks from in-distribution images, beside the paper's 3 and the best in hindsight.

python benchmarks/tuning.py DATA CACHE OUT > benchmarks/tuning.md

Reads the scores that benchmarks/proxies.py left in OUT, and makes them where it has not run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from proxies import FIT, KINDS, NAMES, PROXIES, REAL, TEST, TUNE, Network, point

from davis.spec import canonical
from davis.tuning.search import Measured

GAMMAS = (0.5, 1, 1.5, 2, 3, 4)
PAPER = 3
RECIPES = ("davis(gamma={}) + energy", "davis(gamma={}) + dice(p=70) + energy", "davis(gamma={}) + knn(k=50)")


def page(data: Path, cache: Path, out: Path) -> Iterator[str]:
    yield INTRODUCTION
    for name, title in NAMES.items():
        network = Network(name, data, cache, out)
        measured, groups = network.measured(), network.groups()
        yield f"## {title}\n"
        for recipe in RECIPES:
            yield from gammas(recipe, measured, groups)


def gammas(recipe: str, measured: Measured, groups: dict[str, list[str]]) -> Iterator[str]:
    """What each gamma is worth on every proxy and on the real sets; and what each choice loses."""
    specs = {gamma: canonical(recipe.format(gamma)) for gamma in GAMMAS}
    proxies = {**{proxy: (proxy,) for proxy in PROXIES}, "all five": KINDS}
    on_proxy = {
        name: {gamma: point(measured, spec, "holdout", list(parts)) for gamma, spec in specs.items()}
        for name, parts in proxies.items()
    }
    real = {
        group: {gamma: point(measured, spec, "test", sets) for gamma, spec in specs.items()}
        for group, sets in groups.items()
    }
    yield f"`{recipe.format('G')}`: AUROC\n"
    yield f"| G | {' | '.join(str(gamma) for gamma in GAMMAS)} | chosen | loss far | loss near |"
    yield "|---" * (len(GAMMAS) + 4) + "|"
    for name, points in on_proxy.items():
        chosen = max(GAMMAS, key=lambda gamma: (points[gamma].auroc, -points[gamma].fpr95))
        losses = [f"{100 * (max(p.auroc for p in by.values()) - by[chosen].auroc):.2f}" for by in real.values()]
        cells = [f"{100 * points[gamma].auroc:.2f}" for gamma in GAMMAS]
        yield f"| {name} | {' | '.join(cells)} | {chosen:g} | {' | '.join(losses)} |"
    for group, by in real.items():
        best = max(GAMMAS, key=lambda gamma: by[gamma].auroc)
        cells = [f"{100 * by[gamma].auroc:.2f}" for gamma in GAMMAS]
        yield f"| real, {group} | {' | '.join(cells)} | best: {best:g} | | |"
    paper = [f"{100 * (max(p.auroc for p in by.values()) - by[PAPER].auroc):.2f}" for by in real.values()]
    yield f"| the paper's | {' | '.join('' for _ in GAMMAS)} | {PAPER} | {' | '.join(paper)} |\n"


INTRODUCTION = f"""# The tuner's gamma

Written by `benchmarks/tuning.py`. The authors' DenseNet-101; {FIT:,} training images to fit on, {TUNE:,} test images
to tune on, {TEST:,} other test images against up to {REAL:,} images of each real OOD set. Every row but the last ones
is what the tuner sees; loss is the AUROC (in points, average over the real sets) that its choice gives away to the best
gamma in hindsight.
"""


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    print("\n".join(page(*map(Path, sys.argv[1:]))))
