"""Writes docs/own_networks.md: the paper's CIFAR tables with the networks that were trained here.

python benchmarks/own_networks.py > docs/own_networks.md

For each network benchmarks/trained/NAME holds card.json and log.jsonl of `davis train`, and results.json of
`davis bench paper-NAME`. NAME is DATASET-ARCH; the studies appear as soon as their networks are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_sitting import jobs, paper_accuracy
from reproduction import TITLES, average, whole_table

from davis.bench.results import Results, load

PLACE = Path(__file__).resolve().parent / "trained"
ROWS = (
    "mean + energy",
    "max + energy",
    "davis(gamma=3) + energy",
    "max + dice + energy",
    "davis(gamma=3) + dice + energy",
)

HEAD = """# The paper's tables with networks trained here

Only the authors' DenseNet-101 can be had ([reproduction.md](reproduction.md)). So the networks of the paper's CIFAR
tables are trained anew by its recipe ([training.md](training.md)), and every row of the paper is run on them. Our sets
are not the paper's: `svhn` is cropped from full frames, `dtd10` is not Textures, `miniplaces` not Places365,
`lsuncats_crop` not LSUN ([data.md](data.md)). Written by `benchmarks/own_networks.py`; all figures in percent.

## Test accuracy

The last epoch's network, not the best one on the test set.

| network | CIFAR | accuracy here | the paper's | difference | minutes on the card | seed |
|---|---|---|---|---|---|---|"""


def main() -> None:
    """Write the page."""
    everything = jobs(PLACE)
    done = [job for job in everything if (job.folder / "card.json").is_file()]
    print(HEAD)
    for job in done:
        card: dict[str, Any] = json.loads((job.folder / "card.json").read_text(encoding="utf-8"))
        accuracy, paper = 100 * card["accuracy"], paper_accuracy(job)
        beside = "| |" if paper is None else f"{paper:.2f} | {accuracy - paper:+.2f} |"
        dataset, minutes = TITLES[job.recipe.dataset], card["seconds"] / 60
        print(f"| {job.recipe.arch} | {dataset} | {accuracy:.2f} | {beside} {minutes:.1f} | {job.recipe.seed} |")
    missing = [job.recipe.name for job in everything if job not in done]
    if missing:
        print(f"\nNot trained yet: {', '.join(missing)}.")
    runs = {job.recipe.name: load(job.folder) for job in done if (job.folder / "results.json").is_file()}
    print("\n## What pooling does\n\nFPR95 / AUROC, averaged over the sets of a group.\n")
    print("\n".join(pooling(runs)))
    for name, run in runs.items():
        print(
            f"\n## {name}: every row on every set\n\nFPR95 / AUROC, the paper's in brackets where it prints the cell."
        )
        print(f"{run.facts['pixel_images']} images a set for ODIN and AdaSCALE.\n")
        print("\n".join(whole_table(run)))


def pooling(runs: dict[str, Results]) -> Iterator[str]:
    """A row for each network and detector, near and far."""
    yield "| network | detector | near | far |"
    yield "|---|---|---|---|"
    for name, run in runs.items():
        for spec in ROWS:
            yield f"| {name} | `{spec}` | {average(run, spec, 'near')} | {average(run, spec, 'far')} |"


if __name__ == "__main__":
    main()
