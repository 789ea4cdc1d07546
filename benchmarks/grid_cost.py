"""What scoring the whole grid costs beside the passes that filled its cache, from the timings of one run.

davis bench paper-cifar10-densenet101 --no-pixels --data DATA --out RUN        (on a quiet machine, nothing cached)
python benchmarks/grid_cost.py RUN > benchmarks/grid_cost.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from davis.bench.results import load

SETS = ("cifar10_test", "svhn", "dtd10", "miniplaces", "lsuncats_crop", "tiny_imagenet")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    run, seconds = load(folder), json.loads((folder / "timings.json").read_text())
    images = run.facts["images"]
    print("# The grid from cached activations\n")
    print(
        f"Written by `python benchmarks/grid_cost.py`: {len(run.specs)} detectors of `{run.name}` (neighbour searches "
        f"in {images['cifar10_train']:,} training images included), seconds of one run on {run.facts['device']}.\n"
    )
    print("| set | images | pass | scoring | ratio |\n|---|---|---|---|---|")
    total = [0.0, 0.0, 0.0]
    for name in SETS:
        count = images.get(name, images.get(f"{name}_cropped"))
        row = [count, seconds[f"pass {name}"], seconds[f"score {name}"]]
        total = [a + b for a, b in zip(total, row, strict=True)]
        print(f"| {name} | {count:,} | {row[1]:.1f} | {row[2]:.1f} | {row[2] / row[1]:.3f} |")
    print(f"| together | {total[0]:,.0f} | {total[1]:.1f} | {total[2]:.1f} | {total[2] / total[1]:.3f} |")
    fit = seconds["fit"]
    print(
        f"\nFitting them all took {fit:.1f} s beside a pass of {seconds['pass cifar10_train']:.1f} s over the training "
        f"images; with the fit, scoring is {(total[2] + fit) / total[1]:.3f} of the passes above."
    )


if __name__ == "__main__":
    main()
