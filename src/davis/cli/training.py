"""The verb train. Everything heavy is imported inside the command: ``davis --help`` must not wait for torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from davis.cli.bars import Bars, Line, accuracy_of, left_of, live_bars, loss_of
from davis.cli.benchmarks import DataDir
from davis.cli.options import Json, TrainDevice
from davis.cli.printing import note, table

if TYPE_CHECKING:
    from davis.training import Progress, Recipe
    from davis.training.jobs import Job


def train(
    arch: Annotated[
        str | None, typer.Argument(help="densenet101, resnet18, 'resnet18(act=silu)', wrn28_10 ...")
    ] = None,
    dataset: Annotated[
        str | None, typer.Argument(help="cifar10, cifar100, or a folder with train.npz and test.npz")
    ] = None,
    act: Annotated[str | None, typer.Option(help="Activation: relu, relu6, silu, gelu, tanh; default: its own")] = None,
    head: Annotated[str | None, typer.Option(help="Last layer: linear, or godin for the score of that name")] = None,
    epochs: Annotated[int | None, typer.Option(help="Default: 100; the rate falls at 50, 75 and 90% of them")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the weights, the order, the cuts and the flips; default: 0")
    ] = None,
    images: Annotated[int | None, typer.Option(help="Train on the first so many only, for a trial")] = None,
    batch: Annotated[int | None, typer.Option(help="Images in a step; default: 64")] = None,
    rate: Annotated[float | None, typer.Option(help="Learning rate at the beginning; default: 0.1")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of SGD; default: 0.9")] = None,
    decay: Annotated[float | None, typer.Option(help="Weight decay; default: 0.0001")] = None,
    padding: Annotated[
        int | None, typer.Option(help="Pixels around a picture before the random cut; default: 4")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the training; default: trained/NAME; of --jobs: of all of them")
    ] = None,
    data: DataDir = None,
    device: TrainDevice = None,
    graph: Annotated[bool, typer.Option(help="On a GPU, take each step as one CUDA graph")] = True,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Fuse kernels by torch.compile: a minute at the start, faster steps")
    ] = False,
    save_every: Annotated[int, typer.Option(min=1, help="Epochs between checkpoints")] = 1,
    jobs: Annotated[Path | None, typer.Option(help="TOML file with [[train]] tables: several trainings")] = None,
    side_by_side: Annotated[int | None, typer.Option(min=1, help="Of --jobs: how many at a time")] = None,
    mps: Annotated[
        bool | None,
        typer.Option(
            "--mps/--no-mps",
            help="Of --jobs: run at the same time on a GPU, by CUDA's multi-process service if there; default: yes",
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Train a network of the zoo by the paper's recipe; cut off, it goes on from its last checkpoint."""
    settings: dict[str, Any] = {"head": head, "epochs": epochs, "seed": seed, "images": images, "batch": batch}
    settings |= {"rate": rate, "momentum": momentum, "decay": decay, "padding": padding}
    given = {name: value for name, value in settings.items() if value is not None}
    if jobs is not None:
        if arch or dataset or act or given:
            raise ValueError("--jobs names the networks, datasets and settings in its file; give them there alone")
        options = ["--save-every", str(save_every)]
        options += [] if graph else ["--no-graph"]
        options += ["--compile"] if compiled else []
        rows = _train_several(
            jobs, out, side_by_side, data=data, device=device, options=options, share=mps is not False
        )
        print(json.dumps(rows)) if as_json else _show_several(rows)
        return 1 if any(row["state"] == "failed" for row in rows) else 0
    if side_by_side is not None or mps is not None:
        option = "--side-by-side" if side_by_side is not None else "--mps" if mps else "--no-mps"
        raise ValueError(f"{option} is for several trainings; list them in a file for --jobs, or leave it out")
    if arch is None or dataset is None:
        raise ValueError("give a network and a dataset, such as `davis train resnet18 cifar10`, or --jobs FILE")
    recipe = _recipe(arch, dataset, act, given, data)
    folder = out or Path("trained") / recipe.name
    card, trained = _train_one(recipe, folder, save_every, data=data, device=device, graph=graph, compiled=compiled)
    if as_json:
        print(json.dumps(card | {"folder": str(folder)}))
    else:
        shown = ("name", "accuracy", "parameters", "seconds", "device", "sha256", "command")
        told = card | {"seconds": f"{card['seconds']:.1f}"}
        table([{"": key, " ": told[key]} for key in shown], header=False, folded=" ")
    note(f"wrote {folder}" if trained else f"{folder} was trained already; nothing is written")
    return 0


def _recipe(arch: str, dataset: str, act: str | None, given: dict[str, Any], data: Path | None) -> Recipe:
    from davis.training import Recipe
    from davis.training.jobs import with_act
    from davis.zoo import CLASSES

    recipe = Recipe(arch=with_act(arch, act), dataset=dataset, **given)
    if data is not None and recipe.dataset not in CLASSES and Path(recipe.dataset).is_dir():
        raise ValueError(
            f"--data is the place of {' and '.join(CLASSES)}, and {recipe.dataset} is a folder with its own pictures; "
            "leave --data out"
        )
    return recipe


def _train_one(recipe: Recipe, folder: Path, save_every: int, **how: Any) -> tuple[dict[str, Any], bool]:
    """The card, and whether there was anything to do for it."""
    from davis.training import train as run

    watch = _Watch(recipe.name, save_every)
    try:
        with live_bars() as watch.bars:
            card = run(recipe, folder, save_every=save_every, watch=watch, say=note, **how)
    except KeyboardInterrupt:
        note(watch.stopped())
        raise
    return card, watch.first is not None


class _Watch:
    """Shows how far a training is: by a bar, or by a line for each epoch where stderr is no terminal."""

    def __init__(self, name: str, save_every: int) -> None:
        self.name = name
        self.save_every = save_every
        self.bars = Bars()
        self.first: Progress | None = None  # what a training that is done already never tells
        self.last: Progress | None = None
        self._lines = not sys.stderr.isatty()

    def __call__(self, progress: Progress) -> None:
        before, self.last = self.last, progress
        if before is None:
            self.first = progress
            self.bars.lines = (Line(self.name, progress.epochs),)
        [line] = self.bars.lines
        line.epoch, line.record, line.left = progress.epoch, progress.record, progress.seconds_left
        line.part = (progress.epoch + progress.step / progress.steps) / progress.epochs
        if before is None and progress.epoch:
            note(f"{self.name}: goes on after epoch {progress.epoch} of {progress.epochs}")
        elif before is not None and self._lines and progress.epoch > before.epoch:
            note(_told(progress))

    def stopped(self) -> str:
        """What to say of an interrupt."""
        if self.first is None or self.last is None:
            return "stopped before it began; the same command goes on from where it was"
        saved = max(self.first.epoch, self.last.epoch // self.save_every * self.save_every)
        if self.last.epoch == self.last.epochs:
            saved = self.last.epoch  # always saved, whatever --save-every says
        after = f"stopped after epoch {self.last.epoch} of {self.last.epochs}"
        if saved == self.last.epoch > 0:
            return f"{after}; the same command goes on from there"
        if saved:
            return f"{after}; the same command goes on after epoch {saved}, the last that was saved"
        return f"{after}; none was saved, and the same command begins anew"


def _told(progress: Progress) -> str:
    parts = [f"epoch {progress.epoch}/{progress.epochs}", loss_of(progress.record), accuracy_of(progress.record)]
    return "  ".join(part for part in [*parts, left_of(progress.seconds_left)] if part)


def _train_several(
    file: Path,
    out: Path | None,
    side_by_side: int | None,
    *,
    data: Path | None,
    device: str | None,
    options: Sequence[str],
    share: bool,
) -> list[dict[str, Any]]:
    from davis.training.jobs import read_jobs, run_jobs

    listed, count = read_jobs(file, out or Path("trained"))
    try:
        with live_bars() as bars:
            return run_jobs(
                listed,
                side_by_side=side_by_side or count,
                data=data,
                device=device,
                options=options,
                share=share,
                say=note,
                watch=_WatchSeveral(bars),
            )
    except KeyboardInterrupt:
        note("stopped; the same command goes on after the last saved epoch of each")
        raise


class _WatchSeveral:
    """A bar over the epochs of each training that runs, as its log tells of them."""

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self._lines: dict[str, Line] = {}

    def __call__(self, running: Sequence[Job]) -> None:
        known = self._lines
        self._lines = {
            job.recipe.name: known.get(job.recipe.name, Line(job.recipe.name, job.recipe.epochs)) for job in running
        }
        for job in running:
            _read_on(self._lines[job.recipe.name], job.folder)
        self.bars.lines = tuple(self._lines.values())


def _read_on(line: Line, folder: Path) -> None:
    from davis.training.files import read_log

    try:
        history = read_log(folder)
    except (ValueError, OSError):  # its row says so in the end
        return
    line.epoch, line.part = len(history), len(history) / line.epochs
    line.record = history[-1] if history else {}
    line.left = (line.epochs - len(history)) * history[-1]["seconds"] if history else None


def _show_several(rows: Sequence[dict[str, Any]]) -> None:
    """A table that fits a terminal; what went wrong, of any length, in lines of its own."""
    table([_short(row) for row in rows], folded="name")
    for row in rows:
        if row["error"]:
            note(f"{row['name']}: {row['error']}")


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the folder, which follows from the name; --json has it."""
    loss, accuracy = row["loss"], row["test accuracy"]
    return {
        "name": row["name"],
        "state": row["state"],
        "epoch": row["epoch"],
        "loss": None if loss is None else f"{loss:.4f}",
        "test": None if accuracy is None else f"{100 * accuracy:.2f}%",
        "seconds": f"{row['seconds']:.0f}",
    }
