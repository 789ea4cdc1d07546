"""What a sitting has to do: the sixteen trainings, what each costs, and which can still end in time."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from davis import atomic
from davis.training.files import read_log
from davis.training.jobs import Job, with_act
from davis.training.recipe import Recipe
from davis.zoo.weights import CHECKPOINT

ROOT = Path(__file__).resolve().parent.parent.parent
AT_HOME = ROOT / "benchmarks" / "trained"
SHIPPED = ROOT / "src" / "davis" / "zoo" / "trained"

# The order of the work, and the test accuracies that the paper prints: what is to ship first, the largest last.
ORDER = [
    ("resnet18", None, (93.89, 75.20)),
    ("densenet101", None, (93.61, 74.47)),
    ("mobilenet_v2", None, (92.52, 72.69)),
    ("resnet18", "silu", None),
    ("resnet18", "gelu", None),
    ("resnet18", "tanh", None),
    ("resnet34", None, (93.96, 75.70)),
    ("wrn28_10", None, (95.13, 77.96)),
]
SETS: tuple[str, ...] = ("cifar10_train", "cifar10_test", "cifar100_train", "cifar100_test")
SETS += ("svhn", "dtd10", "miniplaces", "lsuncats_crop", "tiny_imagenet")


class Cost(NamedTuple):
    """Minutes of an H200 that 100 epochs take, compiled."""

    alone: float  # with the card to itself
    full: float  # of a card that is busy all the time: what the others wait for it
    resumes: bool = False  # in another sitting: its checkpoint is small enough to come home


# Measured: ResNet-18 and DenseNet-101 alone (benchmarks/training_speed.md; 3.0 with GELU), and both and MobileNet-v2 on
# a full card, a quarter of their time among four. WRN-28-10 alone was given to us. The others are guessed.
COSTS = {
    "resnet18": Cost(3.0, 1.7),
    "resnet34": Cost(5.4, 3.5),
    "wrn28_10": Cost(9.9, 9.9),
    "densenet101": Cost(11.7, 9.0, resumes=True),
    "mobilenet_v2": Cost(5.0, 3.6, resumes=True),
}
SLACK = 1.5  # minutes: to compile, to test, to write


def jobs(work: Path, epochs: int = 100, images: int | None = None) -> list[Job]:
    """The sixteen trainings, in order."""
    archs = [with_act(arch, act) for arch, act, _ in ORDER]
    recipes = [
        Recipe(arch=arch, dataset=dataset, epochs=epochs, images=images)
        for arch in archs
        for dataset in ("cifar10", "cifar100")
    ]
    return [Job(recipe, work / recipe.name) for recipe in recipes]


def asked(options: argparse.Namespace) -> list[Job]:
    """The trainings that a sitting is for: all, or those that are asked for by name."""
    every = {job.recipe.name: job for job in jobs(options.home / "work", options.epochs, options.images)}
    if unknown := set(options.only) - every.keys():
        raise SystemExit(f"--only takes names such as cifar10-resnet18_silu, got {', '.join(sorted(unknown))}")
    return [every[name] for name in options.only or every]


def chosen(options: argparse.Namespace) -> list[Job]:
    """Those that are asked for by name, else all that are not at home yet."""
    return [job for job in asked(options) if options.only or not is_at_home(job.recipe.name)]


def begun(options: argparse.Namespace) -> list[Job]:
    """Those of which there is anything, at home or not: weights may follow their tables."""
    return [job for job in asked(options) if job.folder.is_dir()]


def is_at_home(name: str) -> bool:
    """Whether its tables are in the repository, or its weights, from which `finish` makes them."""
    return (AT_HOME / name / "results.json").is_file() or (SHIPPED / f"{name}.safetensors").is_file()


def paper_accuracy(job: Job) -> float | None:
    """What the paper prints for this network."""
    places = {"cifar10": 0, "cifar100": 1}
    known = [both for arch, act, both in ORDER if both and with_act(arch, act) == job.recipe.arch]
    return known[0][places[job.recipe.dataset]] if known and job.recipe.dataset in places else None


class Task(NamedTuple):
    """One thing to do for a training."""

    kind: str  # train or bench
    name: str

    def needs(self) -> set[str]:
        """The image sets that must have come."""
        dataset = self.name.partition("-")[0]
        return set(SETS) if self.kind == "bench" else {f"{dataset}_train", f"{dataset}_test"} & set(SETS)


def tasks(todo: Mapping[str, Job]) -> list[Task]:
    """What is left to do: benchmarks first, so that what is finished can go home, of large networks before small."""
    trained = {name: (job.folder / "card.json").is_file() for name, job in todo.items()}
    benched = {name: (job.folder / "bench" / "results.json").is_file() for name, job in todo.items()}
    benches = [Task("bench", name) for name in todo if trained[name] and not benched[name]]
    benches.sort(key=lambda task: cost_of(todo[task.name]).resumes)  # the weights of the others come home for certain
    return benches + [Task("train", name) for name in todo if not trained[name]]


def cost_of(job: Job) -> Cost:
    """Of the whole training."""
    return COSTS[job.recipe.arch.partition("(")[0]]


def work_left(job: Job, task: Task) -> Cost:
    """What a training still takes of the card; of a benchmark nothing is known, and it is short."""
    if task.kind == "bench":
        return Cost(0, 0, resumes=True)
    try:
        done = len(read_log(job.folder)) if (job.folder / CHECKPOINT).is_file() else 0
    except ValueError:  # the training itself says what is wrong with it
        done = 0
    cost, share = cost_of(job), 1 - done / job.recipe.epochs
    return Cost(cost.alone * share, cost.full * share, cost.resumes)


def ends_alone(one: Cost, minutes: float) -> bool:
    """Whether it ends in time with the card to itself."""
    return one.alone + SLACK <= minutes


def all_can_end(side_by_side: list[Cost], minutes: float) -> bool:
    """Whether these end in time where all share the card alike.

    One that can go on elsewhere is waited for only if it could end by itself.
    """

    def ends(one: Cost) -> bool:
        together = max(one.alone, sum(min(one.full, other.full) for other in side_by_side))
        return together + SLACK <= minutes or (one.resumes and not ends_alone(one, minutes))

    return all(ends(one) for one in side_by_side)


def keep_stay(work: Path, minutes: float) -> None:
    """The last call says how long the machine is kept; the driver, which an earlier one began, reads it."""
    atomic.write(work / "stay", str(minutes).encode())


def minutes_left(work: Path) -> float:
    """Of the stay."""
    return float((work / "stay").read_text()) - (time.time() - began(work)) / 60


def began(work: Path) -> float:
    """When the first driver of this machine began, by the clock."""
    file = work / "began"
    if not file.is_file():
        atomic.write(file, str(time.time()).encode())
    return float(file.read_text())
