"""Writes benchmarks/imagenet_methods.md from two finished runs.

davis bench imagenet-crops-mobilenet_v2 --data DATA --out RUNS/mobilenet_v2 --pixel-images 100
davis bench imagenet-crops-efficientnet_lite0 --data DATA --out RUNS/efficientnet_lite0 --pixel-images 100
python benchmarks/imagenet_methods.py RUNS > benchmarks/imagenet_methods.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from davis.bench.results import Results, load
from davis.bench.tables import Line, tabulate

NETWORKS = {"mobilenet_v2": "MobileNet-v2", "efficientnet_lite0": "EfficientNet-Lite0"}


def main(folder: Path) -> None:
    """Write the page."""
    runs = {title: load(folder / name) for name, title in NETWORKS.items()}
    first = next(iter(runs.values()))
    facts, held = first.facts, first.facts["calibration"]
    sets = ", ".join(f"`{name}`" for name in first.groups)
    counts = facts["fit_images"]["images"], held["images"], facts["images"][first.id]
    accuracies = ", ".join(f"{title} {100 * run.accuracy:.1f}%" for title, run in runs.items() if run.accuracy)
    print(f"""# Every method on the ImageNet crops

Written by `benchmarks/imagenet_methods.py`.
FPR95 / AUROC in percent, averaged over {sets}; then the share of ID and of OOD
images that is accepted by a threshold set beforehand to accept {100 * held["tpr"]:g}% of ID images.
Of the validation crops {counts[0]} are fitted on, {counts[1]} set thresholds and {counts[2]} are tested. WebP crops,
which cost accuracy; stand-ins, not the published sets (docs/imagenet.md).
Accuracy on the ID test crops: {accuracies}. ODIN and AdaSCALE, which move images, ran on
{facts["pixel_images"]} images of each set, spread evenly over it: their FPR95 is good to some points only.
""")
    heads = [f"{title} | accepted ID, OOD" for title in runs]
    print(f"| detector | {' | '.join(heads)} |\n|---|{'---|' * 2 * len(heads)}")
    found = {title: averages(run) for title, run in runs.items()}
    for spec in dict.fromkeys(spec for run in runs.values() for spec in run.specs):
        name = spec.replace("|", "\\|")
        print(f"| `{name}` | {' | '.join(cells(lines.get(spec)) for lines in found.values())} |")
    for title, run in runs.items():
        for spec, reason in run.facts["left_out"].items():
            print(f"\n{title}: `{spec}` was left out: {reason}")


def averages(run: Results) -> dict[str, Line]:
    return {line.detector: line for line in tabulate(run) if line.dataset == "farood"}


def cells(line: Line | None) -> str:
    if line is None:
        return "| "
    accepted = "" if line.accepted is None else f"{line.accepted.id:.1f}, {line.accepted.ood:.1f}"
    return f"{line.values['FPR@95']:.1f} / {line.values['AUROC']:.1f} | {accepted}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
