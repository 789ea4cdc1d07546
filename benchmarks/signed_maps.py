"""Pools that go where a channel's mean points, on networks whose last map has negative values.

python benchmarks/signed_maps.py run WORK DATA OUT      WORK/NAME/weights.safetensors: what `davis train` leaves
python benchmarks/signed_maps.py page OUT > benchmarks/signed_maps.md
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from reproduction import TITLES, average
from sitting.machine import told

from davis.bench import describe
from davis.bench.results import Results, load
from davis.bench.run import run

POOLS = ("mean", "max", "max(signed=true)", "davis(gamma=3)", "davis(gamma=3, signed=true)")
REST = ("energy", "dice + energy", "react(p=95) + energy", "scale + energy", "knn")
ACTIVATIONS = ("silu", "gelu", "tanh")
NAMES = tuple(f"{dataset}-resnet18_{act}" for act in reversed(ACTIVATIONS) for dataset in ("cifar10", "cifar100"))

HEAD = """# Pools for maps with negative values

`max` and `davis` look upward only. Where a map goes far below zero that throws away, or turns round, what a channel
with a negative mean says. `max(signed=true)` takes such a channel's least value, `davis(signed=true)` subtracts gamma
times sigma from its mean; on maps that are never negative both are what they were.

ResNet-18 trained here by the paper's recipe, one seed each ([own_networks.md](../docs/own_networks.md)); FPR95 / AUROC
in percent, averaged over `svhn`, `dtd10`, `miniplaces` and `lsuncats_crop` (far) or `tiny_imagenet` and the other CIFAR
(near). The lowest FPR95 of a group is bold. *accuracy* is that of the last layer on what is pooled; the classifier's
own predictions stay those of `mean`. The option was thought of after the first rows of Tanh on these very sets, so its
figures there are no test on unseen data; gamma is the paper's, not chosen here.
Written by `benchmarks/signed_maps.py`.

- **Tanh.** `max` and `davis` fail (far FPR95 84 to 97, but for KNN); signed they keep the last layer's accuracy, and
  with energy or ReAct tell far images apart better than the mean (37 against 49). Near images, SCALE and DICE gain
  little or lose, and the mean is best with KNN. No row comes near those of the other activations.
- **SiLU and GELU.** With energy and ReAct the signed pools are mostly a little better than the plain ones, far and
  near, and cost less accuracy; with DICE they are about as good, with SCALE and with KNN on far sets worse.
- `davis.recommend` tries them behind energy where channels have negative means. From 2,000 test images it chose
  `davis(signed=true) + energy` for Tanh on CIFAR-10 (FPR95 on other images, far and near: 37.4 and 52.8; without them
  `mean + energy`, 45.0 and 51.4), `davis(gamma=3, signed=true) + energy` for SiLU (22.1 and 41.1; without them a
  fusion, 20.6 and 43.5), `max(signed=true) + energy` for SiLU on CIFAR-100 (44.7 and 74.2; `max + energy`, 46.0 and
  75.6). Near is `tiny_imagenet` there, 1,000 images a set."""


def main() -> None:
    """Run what is not there yet, or print the page."""
    verb, *places = sys.argv[1:]
    if verb == "run":
        work, data, out = (Path(place).resolve() for place in places)
        for name in NAMES:
            if (work / name / "weights.safetensors").is_file() and not (out / name / "results.json").is_file():
                study(name, work / name / "weights.safetensors", data, out)
    else:
        print("\n".join(page(Path(places[0]))))


def study(name: str, weights: Path, data: Path, out: Path) -> None:
    """All rows on one network."""
    description, _ = describe.read(f"paper-{name}")
    description["name"] = f"signed-{name}"
    description["methods"] = [f"{pool} + {rest}" for rest in REST for pool in POOLS]
    benchmark = describe.build(description, out, data=data, weights=str(weights), batch=250)
    run(benchmark, out / name, cache=out / "cache", watch=told)
    shutil.rmtree(out / "cache")


def page(out: Path) -> Iterator[str]:
    """A table for each network."""
    yield HEAD
    for dataset in ("cifar10", "cifar100"):
        for act in ACTIVATIONS:
            if (out / f"{dataset}-resnet18_{act}" / "results.json").is_file():
                yield f"\n## {act} on {TITLES[dataset]}\n"
                yield from table(load(out / f"{dataset}-resnet18_{act}"))
            else:
                yield f"\n{act} on {TITLES[dataset]} is not trained yet."


def table(found: Results) -> Iterator[str]:
    """A row for each detector, those that differ in the pool side by side."""
    yield "| detector | accuracy | far | near |"
    yield "|---|---|---|---|"
    for rest in REST:
        specs = {pool: f"{pool} + {rest}" for pool in POOLS}
        for pool, spec in specs.items():
            cells = []
            for group in ("far", "near"):
                best = min(specs, key=lambda other: float(average(found, specs[other], group).split(" / ")[0]))
                text = average(found, spec, group)
                cells.append(f"**{text}**" if pool == best else text)
            accuracy = found.facts["accuracy_by_spec"].get(spec)
            yield f"| `{spec}` | {'' if accuracy is None else f'{100 * accuracy:.2f}'} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
