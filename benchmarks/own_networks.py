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

from reproduction import TITLES, average, whole_table
from sitting.plan import jobs, paper_accuracy

from davis.bench.results import Results, load

PLACE = Path(__file__).resolve().parent / "trained"
ROWS = (
    "mean + energy",
    "max + energy",
    "davis(gamma=3) + energy",
    "max + dice + energy",
    "davis(gamma=3) + dice + energy",
)

# FPR95 of DICE, DAVIS(m)+DICE and DAVIS(mu,sigma)+DICE: the averages that the paper's table of activation functions
# prints, over its six far sets.
PAPER_ACTIVATIONS = {
    ("cifar10", "relu"): (30.92, 10.46, 13.49),
    ("cifar10", "silu"): (19.39, 10.70, 11.71),
    ("cifar10", "gelu"): (16.49, 10.57, 11.88),
    ("cifar10", "tanh"): (19.53, 10.96, 12.51),
    ("cifar100", "relu"): (56.90, 33.38, 36.19),
    ("cifar100", "silu"): (55.41, 36.24, 39.98),
    ("cifar100", "gelu"): (58.32, 34.06, 36.10),
    ("cifar100", "tanh"): (59.74, 34.15, 36.41),
}

HEAD = """# The paper's tables with networks trained here

Only the authors' DenseNet-101 can be had ([reproduction.md](reproduction.md)). So the networks of the paper's CIFAR
tables are trained anew by its recipe ([training.md](training.md)), and every row of the paper is run on them. Our sets
are not the paper's: `svhn` is cropped from full frames, `dtd10` is not Textures, `miniplaces` not Places365,
`lsuncats_crop` not LSUN ([data.md](data.md)). Written by `benchmarks/own_networks.py`; all figures in percent.
ResNet-18 / CIFAR-10 was benchmarked on a CPU, the others on an H200; MobileNet-v2 / CIFAR-10 on a CPU too, where 306
figures differ by 0.42 points of FPR95 and 0.011 of AUROC at most (median of FPR95: 0.04; `same_tables.py`).

## Test accuracy

The last epoch's network, not the best one on the test set. MobileNet-v2 comes with davis; weights of the others are
too large, and `davis train ARCH DATASET` makes them.

| network | CIFAR | accuracy here | the paper's | difference | minutes, most beside others | seed | |
|---|---|---|---|---|---|---|---|"""


def main() -> None:
    """Write the page."""
    everything = jobs(PLACE)
    done = [job for job in everything if (job.folder / "card.json").is_file()]
    print(HEAD)
    for job in done:
        card: dict[str, Any] = json.loads((job.folder / "card.json").read_text(encoding="utf-8"))
        accuracy, paper = 100 * card["accuracy"], paper_accuracy(job)
        beside = "| |" if paper is None else f"{paper:.2f} | {accuracy - paper:+.2f} |"
        curves = f"[curves](../benchmarks/trained/{job.recipe.name}/curves.svg)"
        dataset, minutes = TITLES[job.recipe.dataset], card["seconds"] / 60
        start = f"| {job.recipe.arch} | {dataset} | {accuracy:.2f} | {beside}"
        print(f"{start} {minutes:.1f} | {job.recipe.seed} | {curves} |")
    missing = [job.recipe.name for job in everything if job not in done]
    if missing:
        print(f"\nNot trained yet: {', '.join(missing)}.")
    runs = {job.recipe.name: load(job.folder) for job in done if (job.folder / "results.json").is_file()}
    print("\n## What pooling does\n\nFPR95 / AUROC, averaged over the sets of a group.\n")
    print("\n".join(pooling(runs)))
    print("\n## Other activations than ReLU\n")
    print("\n".join(activations(runs)))
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


def activations(runs: dict[str, Results]) -> Iterator[str]:
    """Does DAVIS help where activations are not sparse? A row for each ResNet-18."""
    yield "The paper finds that baselines such as DICE fail with SiLU, GELU and Tanh, and that DAVIS makes up for it."
    yield "FPR95 with DICE, averaged over far sets, ours not being the paper's; the paper's own averages in brackets."
    yield "\n| CIFAR | activation | `mean + dice` | `max + dice` | `davis(gamma=3) + dice` |\n|---|---|---|---|---|"
    better: dict[str, list[str]] = {"far": [], "near": []}
    worse: dict[str, list[str]] = {"far": [], "near": []}
    missing = []
    for (dataset, act), printed in PAPER_ACTIVATIONS.items():
        run = runs.get(f"{dataset}-resnet18" + ("" if act == "relu" else f"_{act}"))
        name = f"{act} on {TITLES[dataset]}"
        if run is None:
            missing.append(name)
            continue
        specs = ("mean + dice + energy", "max + dice + energy", "davis(gamma=3) + dice + energy")
        ours = {group: [average(run, spec, group).split(" / ")[0] for spec in specs] for group in ("far", "near")}
        cells = (f"{own} ({paper:.2f})" for own, paper in zip(ours["far"], printed, strict=True))
        yield f"| {TITLES[dataset]} | {act} | {' | '.join(cells)} |"
        for group, (plain, *pooled) in ours.items():
            (better if max(map(float, pooled)) < float(plain) else worse)[group].append(name)
    for group in ("far", "near"):
        yield f"\nOn {group} sets both poolings lower it for {', '.join(better[group]) or 'none'};"
        yield f"not for {', '.join(worse[group]) or 'none'}."
    if missing:
        yield f"\nNot trained yet: {', '.join(missing)}."
    if "cifar10-resnet18_tanh" in runs:
        yield from why_not_tanh(runs["cifar10-resnet18_tanh"])


def why_not_tanh(run: Results) -> Iterator[str]:
    """What the maximum does to a map that is as often negative as positive."""
    by_mean, by_max = (f"{run.facts['accuracy_by_spec'][f'{pool} + energy']:.1%}" for pool in ("mean", "max"))
    yield f"""
SiLU and GELU go below zero often but not far (to -0.28 and -0.17); Tanh goes as far down as up. A maximum does not hear
a channel that speaks by being negative: the last layer of the Tanh network names {by_max} of the test images rightly
from maxima and {by_mean} from means. The paper's Tanh network behaves like its ReLU one. Its code is not published; one
that keeps ReLU in its last block might behave so. `max(signed=true)` and `davis(gamma=3, signed=true)` go down where a
channel's mean is negative: [measured](../benchmarks/signed_maps.md)."""


if __name__ == "__main__":
    main()
