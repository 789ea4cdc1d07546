"""What keeping activations in float16 changes: every detector of a benchmark, from a float32 cache and from its halves.

davis bench paper-cifar10-densenet101 --no-pixels --data DATA --cache CACHE --out RUN
python benchmarks/half_cache.py CACHE DATA > benchmarks/half_cache.md

Rounding a float32 cache to float16 gives the very numbers that a pass with ``--half`` keeps (the logits stay float32).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from davis import metrics
from davis.bench import describe
from davis.bench.cache import Cached
from davis.detector import Detector
from davis.joint_fit import fit_from_activations
from davis.scoring import Scored, score_all
from davis.types import Activations

NAME = "paper-cifar10-densenet101"
SETS = ("svhn_cropped", "dtd10", "lsuncats_crop", "cifar100_test")


def halved(activations: Activations) -> Activations:
    kept = {"logits": activations.logits, "positions": activations.positions}
    rest = {key: value for key, value in activations._asdict().items() if key not in kept and value is not None}
    return Activations(**kept, **{key: value.half().float() for key, value in rest.items()})


def stream(cache: Path, name: str, half: bool) -> Iterator[tuple[Activations, torch.Tensor | None]]:
    (folder,) = cache.glob(f"{name}-*")
    for activations, labels in Cached(folder).stream():
        yield (halved(activations) if half else activations), labels


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    cache, data = Path(sys.argv[1]), Path(sys.argv[2])
    description, folder = describe.read(NAME)
    built = describe.build(description, folder, data=data)
    built.backbone.probe((3, 32, 32))
    specs = describe.without_pixels(list(built.specs))
    scores: dict[bool, dict[str, Scored]] = {}
    for half in (False, True):
        detectors = [Detector(built.backbone, spec) for spec in specs]
        fit_from_activations(detectors, stream(cache, "cifar10_train", half))
        scores[half] = {name: score_all(detectors, stream(cache, name, half)) for name in ("cifar10_test", *SETS)}
    moved = []
    for spec in specs:
        for name in SETS:
            pair = [metrics.evaluate(found["cifar10_test"][spec], found[name][spec]) for found in scores.values()]
            moved.append((spec, name, 100 * abs(pair[0].fpr - pair[1].fpr), 100 * abs(pair[0].auroc - pair[1].auroc)))
    fpr, auroc = (np.array([row[place] for row in moved]) for place in (2, 3))
    print("# Activations in float16\n")
    print(f"Written by `python benchmarks/half_cache.py`: {len(specs)} detectors of `{NAME}` on {', '.join(SETS)}, "
          "from a float32 cache and from its float16 rounding, fitted and scored on each.\n")  # fmt: skip
    print("| difference, points | median | 95% below | largest | where |\n|---|---|---|---|---|")
    for label, values in (("FPR@95", fpr), ("AUROC", auroc)):
        spec, name, *_ = moved[int(values.argmax())]
        print(f"| {label} | {np.median(values):.4f} | {np.quantile(values, 0.95):.4f} | {values.max():.4f} | "
              f"`{spec}`, {name} |")  # fmt: skip


if __name__ == "__main__":
    main()
