"""Pools that go where a channel's mean points, on networks whose last map has negative values.

python benchmarks/signed_maps.py run WORK DATA OUT      WORK/NAME/weights.safetensors: what `davis train` leaves
python benchmarks/signed_maps.py recommend WORK DATA OUT     what `davis.recommend` chooses with these pools and without
python benchmarks/signed_maps.py page OUT > benchmarks/signed_maps.md
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from reproduction import TITLES, average
from sitting.machine import told
from torch import Tensor

import davis
from davis import metrics
from davis.bench import describe
from davis.bench.results import Results, load
from davis.bench.run import run
from davis.catalog import PREPROCESSING, open_dataset
from davis.models import load_model
from davis.tuning import advice

POOLS = ("mean", "max", "max(signed=true)", "davis(gamma=3)", "davis(gamma=3, signed=true)")
REST = ("energy", "dice + energy", "react(p=95) + energy", "scale + energy", "knn")
ACTIVATIONS = ("silu", "gelu", "tanh")
FAR = ("svhn_cropped", "dtd10", "miniplaces", "lsuncats_crop")
IMAGES = 2000  # of the test set to choose on, and as many others to judge by; half as many of each OOD set
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
- `davis.recommend` tries them behind energy where channels have negative means: the table below."""


def main() -> None:
    """Run what is not there yet, or print the page."""
    verb, *places = sys.argv[1:]
    if verb == "run":
        work, data, out = (Path(place).resolve() for place in places)
        for name in NAMES:
            if (work / name / "weights.safetensors").is_file() and not (out / name / "results.json").is_file():
                study(name, work / name / "weights.safetensors", data, out)
    elif verb == "recommend":
        work, data, out = (Path(place).resolve() for place in places)
        for name in NAMES:
            if (work / name / "weights.safetensors").is_file() and not (out / name / "recommended.json").is_file():
                found = recommended(name, work / name / "weights.safetensors", data)
                (out / name / "recommended.json").write_text(json.dumps(found, indent=1))
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


def recommended(name: str, weights: Path, data: Path) -> dict[str, dict[str, object]]:
    """The choices with the signed candidates and without, judged on images that had no part in them."""
    model = load_model(f"davis.zoo:{name.replace('-', '_')}", weights=str(weights))
    test = f"{name.partition('-')[0]}_test"

    def batches(source: str, start: int, count: int) -> list[Tensor]:
        images = open_dataset(source, PREPROCESSING["cifar10"], data)
        return [next(images.batches(at, 250))[0] for at in range(start, start + count, 250)]

    chosen_on, held = batches(test, 0, IMAGES), batches(test, IMAGES, IMAGES)
    unknown = {source: batches(source, 0, IMAGES // 2) for source in (*FAR, "tiny_imagenet")}
    found: dict[str, dict[str, object]] = {}
    signed = advice.SIGNED
    for kind, candidates in (("signed", signed), ("plain", ("energy",))):
        advice.SIGNED = candidates
        choice = davis.recommend(model, chosen_on, preprocessing=PREPROCESSING["cifar10"]).spec
        detector = davis.Detector(model, choice).fit(chosen_on)
        known = scores(detector, held)
        rates = {
            source: 100 * metrics.fpr_at_tpr(known, scores(detector, images)) for source, images in unknown.items()
        }
        far = float(np.mean([rates[source] for source in FAR]))
        found[kind] = {"spec": choice, "far": far, "near": rates["tiny_imagenet"]}
        print(name, kind, found[kind], flush=True)
    advice.SIGNED = signed
    return found


def scores(detector: davis.Detector, images: list[Tensor]) -> np.ndarray:
    """Of all batches."""
    return np.concatenate([detector.score_images(batch).numpy() for batch in images])


def page(out: Path) -> Iterator[str]:
    """A table for each network."""
    yield HEAD
    yield from choices(out)
    for dataset in ("cifar10", "cifar100"):
        for act in ACTIVATIONS:
            if (out / f"{dataset}-resnet18_{act}" / "results.json").is_file():
                yield f"\n## {act} on {TITLES[dataset]}\n"
                yield from table(load(out / f"{dataset}-resnet18_{act}"))
            else:
                yield f"\n{act} on {TITLES[dataset]} is not trained yet."


def choices(out: Path) -> Iterator[str]:
    """What is recommended for each network."""
    yield "\n## What is recommended\n"
    yield f"`davis.recommend` on {IMAGES} test images, with signed candidates and without; FPR95 on {IMAGES} other test"
    yield f"images, far and against `tiny_imagenet` (near), {IMAGES // 2} images of each set.\n"
    yield "| network | with | far | near | without | far | near |"
    yield "|---|---|---|---|---|---|---|"
    for name in NAMES:
        if (out / name / "recommended.json").is_file():
            found = json.loads((out / name / "recommended.json").read_text())
            cells = (
                f"`{each['spec']}`".replace("|", "\\|") + f" | {each['far']:.1f} | {each['near']:.1f}"
                for each in (found["signed"], found["plain"])
            )
            yield f"| {name} | {' | '.join(cells)} |"


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
