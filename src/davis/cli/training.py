"""The verb train. Everything heavy is imported inside the command: ``davis --help`` must not wait for torch."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from davis.cli.benchmarks import DataDir
from davis.cli.options import Device, Json
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
    device: Device = None,
    graph: Annotated[bool, typer.Option(help="On a GPU, take each step as one CUDA graph")] = True,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Fuse kernels by torch.compile: a minute at the start, faster steps")
    ] = False,
    save_every: Annotated[int, typer.Option(min=1, help="Epochs between checkpoints")] = 1,
    jobs: Annotated[Path | None, typer.Option(help="TOML file with [[train]] tables: several trainings")] = None,
    side_by_side: Annotated[int | None, typer.Option(min=1, help="Of --jobs: how many at a time")] = None,
    mps: Annotated[
        bool,
        typer.Option(help="Of --jobs: run at the same time on a GPU, by CUDA's multi-process service if it is there"),
    ] = True,
    as_json: Json = False,
) -> int:
    """Train a network of the zoo by the paper's recipe; cut off, it goes on from its last checkpoint."""
    from davis.training import Recipe
    from davis.training import train as run
    from davis.training.jobs import read_jobs, run_jobs, with_act

    settings: dict[str, Any] = {"head": head, "epochs": epochs, "seed": seed, "images": images, "batch": batch}
    settings |= {"rate": rate, "momentum": momentum, "decay": decay, "padding": padding}
    given = {name: value for name, value in settings.items() if value is not None}
    if jobs is not None:
        if arch or dataset or act or given:
            raise ValueError("--jobs names the networks, datasets and settings in its file; give them there alone")
        listed, count = read_jobs(jobs, out or Path("trained"))
        options = ["--save-every", str(save_every)]
        options += [] if graph else ["--no-graph"]
        options += ["--compile"] if compiled else []
        with _watching_several() as watch:
            rows = run_jobs(
                listed,
                side_by_side=side_by_side or count,
                data=data,
                device=device,
                options=options,
                share=mps,
                say=note,
                watch=watch,
            )
        print(json.dumps(rows)) if as_json else table(rows)
        return 1 if any(row["state"] == "failed" for row in rows) else 0
    if arch is None or dataset is None:
        raise ValueError("give a network and a dataset, such as `davis train resnet18 cifar10`, or --jobs FILE")
    recipe = Recipe(arch=with_act(arch, act), dataset=dataset, **given)
    folder = out or Path("trained") / recipe.name
    with _watching(recipe) as watch:
        card = run(
            recipe,
            folder,
            data=data,
            device=device,
            graph=graph,
            compiled=compiled,
            save_every=save_every,
            watch=watch,
            say=note,
        )
    if as_json:
        print(json.dumps(card | {"folder": str(folder)}))
    else:
        shown = ("name", "accuracy", "parameters", "seconds", "device", "sha256", "command")
        table([{"": key, " ": card[key]} for key in shown], header=False)
    note(f"wrote {folder}")
    return 0


@contextmanager
def _watching(recipe: Recipe) -> Iterator[Callable[[Progress], None]]:
    """A bar over all steps with loss, accuracy and time left."""
    with _bars() as bars:
        task = bars.add_task(recipe.name, total=None, figures="", left="")

        def watch(progress: Progress) -> None:
            figures = _figures(progress.epoch, progress.epochs, progress.record)
            left = "" if progress.seconds_left is None else f"{progress.seconds_left:.0f} s left"
            done = progress.epoch * progress.steps + progress.step
            bars.update(task, completed=done, total=progress.epochs * progress.steps, figures=figures, left=left)

        yield watch


@contextmanager
def _watching_several() -> Iterator[Callable[[Sequence[Job]], None]]:
    """A bar over the epochs of each training that runs, as its log tells of them."""
    from davis.training.files import read_log

    with _bars() as bars:
        tasks: dict[str, Any] = {}

        def watch(running: Sequence[Job]) -> None:
            names = [job.recipe.name for job in running]
            for gone in tasks.keys() - set(names):
                bars.remove_task(tasks.pop(gone))
            for job in running:
                if job.recipe.name not in tasks:
                    tasks[job.recipe.name] = bars.add_task(
                        job.recipe.name, total=job.recipe.epochs, figures="", left=""
                    )
                try:
                    history = read_log(job.folder)
                except ValueError:  # its row says so in the end
                    continue
                last = history[-1] if history else {}
                left = (job.recipe.epochs - len(history)) * last["seconds"] if last else None
                bars.update(
                    tasks[job.recipe.name],
                    completed=len(history),
                    figures=_figures(len(history), job.recipe.epochs, last),
                    left="" if left is None else f"{left:.0f} s left",
                )

        yield watch


def _figures(epoch: int, epochs: int, record: Mapping[str, Any]) -> str:
    counted = f"epoch {epoch}/{epochs}"
    return counted + (f"  loss {record['loss']:.4f}  test {100 * record['test_accuracy']:.2f}%" if record else "")


@contextmanager
def _bars() -> Iterator[Any]:
    """Bars on stderr, where that is a terminal; they are gone when the work is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    hidden = not sys.stderr.isatty()
    with Progress(
        *columns, console=Console(stderr=True), redirect_stdout=False, transient=True, disable=hidden
    ) as bars:
        yield bars
