"""Writes benchmarks/imagenet_methods.md from two finished runs.

davis bench imagenet-crops-mobilenet_v2 --no-pixels --data DATA --out RUNS/mobilenet_v2
davis bench imagenet-crops-efficientnet_lite0 --no-pixels --data DATA --out RUNS/efficientnet_lite0
python benchmarks/imagenet_methods.py RUNS > benchmarks/imagenet_methods.md
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from davis.bench.results import Results, load

NETWORKS = {"mobilenet_v2": "MobileNet-v2", "efficientnet_lite0": "EfficientNet-Lite0"}


def main(folder: Path) -> None:
    """Write the page."""
    runs = {title: load(folder / name) for name, title in NETWORKS.items()}
    first = next(iter(runs.values()))
    print("# Every method on the ImageNet crops\n")
    print("FPR95 / AUROC in percent, averaged over `dtd`, `sun5` and `plantdoc`. 750 validation crops to fit on, 750")
    print("others as ID. WebP crops, which cost accuracy; stand-ins, not the published sets (docs/imagenet.md).")
    accuracies = ", ".join(f"{title} {100 * run.accuracy:.1f}%" for title, run in runs.items() if run.accuracy)
    print(f"Accuracy on the 750: {accuracies}.\n")
    print(f"| detector | {' | '.join(runs)} |\n|---|{'---|' * len(runs)}")
    for spec in first.specs:
        print(f"| `{spec}` | {' | '.join(average(run, spec) for run in runs.values())} |")


def average(run: Results, spec: str) -> str:
    rows = [row for row in run.rows if row.spec == spec]
    return f"{100 * np.mean([row.fpr95 for row in rows]):.1f} / {100 * np.mean([row.auroc for row in rows]):.1f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
