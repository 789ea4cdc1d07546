"""The epochs of a training: steps, test, log, checkpoint; cut off anywhere, it goes on from the last epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from davis import __version__
from davis.locks import alone_in
from davis.training import figure, files
from davis.training.pictures import Data, Pictures, UnknownDataset, normalised, read
from davis.training.recipe import Recipe
from davis.training.step import Step, capture
from davis.zoo import build
from davis.zoo.weights import CARD, CHECKPOINT, sha256_of

_TOLD_EVERY = 10  # steps


class Progress(NamedTuple):
    """Where a training stands."""

    epoch: int  # finished ones
    epochs: int
    step: int  # finished ones of the epoch under way
    steps: int
    record: dict[str, Any]  # of the last finished epoch; empty before it
    seconds_left: float | None


Watch = Callable[[Progress], None]
Said = Callable[[str], None]


def _silent(text: str) -> None: ...


def train(
    recipe: Recipe,
    folder: Path,
    *,
    data: Path | Data | None = None,
    device: str | None = None,
    graph: bool = True,
    compiled: bool = False,
    save_every: int = 1,
    watch: Watch | None = None,
    say: Said = _silent,
) -> dict[str, Any]:
    """The model card of the trained network, whose files are in the folder.

    A training that was cut off goes on after its last saved epoch, on a CPU to the same bits; a finished one is not
    done again. ``graph=False`` takes the steps one kernel at a time on a GPU; ``compiled`` lets torch.compile fuse
    what stands between the convolutions. ``say`` is told what could not be checked of a finished training.
    """
    if save_every < 1:
        raise ValueError(f"checkpoints are at least 1 epoch apart, got save_every={save_every}")
    if (card := finished(recipe, folder, data=data, say=say)) is not None:
        return card
    chosen = _device(device)
    whole = data if isinstance(data, Data) else read(recipe.dataset, data)
    whole.preprocessing()  # refuses what the card could not describe, before the work
    with alone_in(folder, "trains in"):
        return _train(recipe, folder, whole, chosen, graph=graph, compiled=compiled, save_every=save_every, watch=watch)


def finished(
    recipe: Recipe, folder: Path, *, data: Path | Data | None = None, say: Said = _silent
) -> dict[str, Any] | None:
    """The card of a training that is done, or None; refused where it is another's, or one of other pictures.

    Pictures that are gone contradict nothing: the card is handed back, and ``say`` is told.
    """
    files.check_own(folder)
    card = files.load_card(folder, recipe)
    if card is None:
        return None
    if not card.get("data"):
        say(f"{folder}: trained already; its card has no digest of the pictures, so they are not compared")
        return card
    try:
        whole = data if isinstance(data, Data) else read(recipe.dataset, data)
    except (FileNotFoundError, UnknownDataset) as error:
        say(f"{folder}: trained already; its pictures are not there to be compared ({error})")
        return card
    files.check_pictures(folder, card["data"], whole.digests())
    if card.get("preprocessing") != whole.preprocessing().to_dict():  # as in cards of before, for all sides but 32
        raise ValueError(
            f"{folder / CARD} does not say how these pictures are prepared; "
            "remove it and give the same command again: nothing is trained anew where the checkpoint is"
        )
    return card


def _train(
    recipe: Recipe,
    folder: Path,
    whole: Data,
    chosen: torch.device,
    *,
    graph: bool,
    compiled: bool,
    save_every: int,
    watch: Watch | None,
) -> dict[str, Any]:
    digests = whole.digests()
    stored = files.load_checkpoint(folder, recipe, data=digests["train"], test=digests["test"])
    with torch.random.fork_rng(devices=[]):
        if recipe.images is not None and recipe.images > len(whole.train.labels):
            raise ValueError(f"{recipe.dataset} has {len(whole.train.labels)} images to train on, not {recipe.images}")
        pictures, test = whole.train.first(recipe.images).to(chosen), whole.test.to(chosen)
        torch.manual_seed(recipe.seed)
        model = build(recipe.arch, classes=whole.classes, head=recipe.head).to(chosen)
        model.train()
        step = Step(model, pictures, recipe, compiled=compiled)
        history: files.History = []
        if stored is not None:
            try:
                step.restore(stored[0])
            except ValueError as error:
                raise ValueError(f"{folder / CHECKPOINT}: {error}") from None
            history = stored[1]
            files.write_log(folder, history)  # which a kill may have left a line behind the checkpoint
    with _fastest_kernels():
        take = capture(step) if graph and chosen.type == "cuda" and len(history) < recipe.epochs else step
        _epochs(step, take, test, recipe, folder, history, save_every, watch, digests)
    return _finish(step, whole, test, recipe, folder, history, digests)


def _epochs(
    step: Step,
    take: Callable[[], None],
    test: Pictures,
    recipe: Recipe,
    folder: Path,
    history: files.History,
    save_every: int,
    watch: Watch | None,
    digests: dict[str, str],
) -> None:
    """Train from where the history ends."""
    began, resumed_at = time.perf_counter(), len(history)

    def tell(steps_done: int) -> None:
        if watch is not None:
            done = len(history) - resumed_at
            spent = time.perf_counter() - began
            left = spent / done * (recipe.epochs - len(history)) if done else None
            last = history[-1] if history else {}
            watch(Progress(len(history), recipe.epochs, steps_done, step.steps, last, left))

    tell(0)
    for epoch in range(resumed_at, recipe.epochs):
        started = time.perf_counter()
        step.begin(epoch)
        for number in range(step.steps):
            take()
            if number % _TOLD_EVERY == _TOLD_EVERY - 1:
                step.pace()
                tell(number + 1)
        history.append(_record(step, test, recipe, epoch, started))
        if (epoch + 1) % save_every == 0 or epoch + 1 == recipe.epochs:
            files.save_checkpoint(folder, recipe, step.tensors(), history, data=digests["train"], test=digests["test"])
        files.write_log(folder, history)
        tell(0)


def _record(step: Step, test: Pictures, recipe: Recipe, epoch: int, started: float) -> dict[str, Any]:
    loss, accuracy = step.outcome()
    if not math.isfinite(loss):
        raise ValueError(
            f"the loss of {recipe.name} is {loss} after epoch {epoch + 1}; lower the rate (now {recipe.rate})"
        )
    return {
        "epoch": epoch + 1,
        "rate": recipe.rate_at(epoch),
        "loss": loss,
        "train_accuracy": accuracy,
        "test_accuracy": evaluate(step.model, test, half=test.images.is_cuda),
        "seconds": round(time.perf_counter() - started, 3),
    }


@torch.no_grad()
def evaluate(model: nn.Module, test: Pictures, *, half: bool = False, batch: int = 500) -> float:
    """The share of test pictures that a model names rightly; with ``half`` in bfloat16, as in training on a GPU."""
    size = batch if test.images.device.type == "cpu" else 2500
    training = model.training
    model.eval()
    right = torch.zeros((), dtype=torch.int64, device=test.images.device)
    with torch.autocast(test.images.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
        for start in range(0, len(test.labels), size):
            logits = model(normalised(test.images[start : start + size]))
            right += logits.argmax(1).eq(test.labels[start : start + size]).sum()
    model.train(training)
    return int(right) / len(test.labels)


def _finish(
    step: Step,
    whole: Data,
    test: Pictures,
    recipe: Recipe,
    folder: Path,
    history: files.History,
    digests: dict[str, str],
) -> dict[str, Any]:
    """Write weights, figure and card; the accuracy on the card is that of the written file, in float32."""
    about = {"arch": recipe.arch, "dataset": recipe.dataset, "head": recipe.head}
    weights = files.save_weights(folder, step.model.state_dict(), about)
    used = step.steps * recipe.batch
    card: dict[str, Any] = {
        "name": recipe.name,
        "arch": recipe.arch,
        "dataset": recipe.dataset,
        "classes": whole.classes,
        "head": recipe.head,
        "parameters": sum(parameter.numel() for parameter in step.model.parameters()),
        "accuracy": None,
        "accuracy_in_training": history[-1]["test_accuracy"],
        "test_images": len(test.labels),
        "train_images": len(step.labels),
        "images_left_out_of_each_epoch": len(step.labels) - used,  # drawn anew in each
        "data": digests,
        "recipe": recipe.to_dict(),
        "preprocessing": whole.preprocessing().to_dict(),
        "precision": "bfloat16 autocast" if test.images.is_cuda else "float32",
        "device": torch.cuda.get_device_name(test.images.device) if test.images.is_cuda else "cpu",
        "threads": None if test.images.is_cuda else torch.get_num_threads(),
        "seconds": round(sum(record["seconds"] for record in history), 1),
        "versions": {"davis": __version__, "torch": torch.__version__},
        "sha256": sha256_of(weights),
        "command": recipe.command(),
    }
    files.fill(step.model, weights)
    card["accuracy"] = evaluate(step.model, test)
    files.save_card(folder, card)
    with suppress(OSError):  # nothing depends on the figure
        figure.draw(history, recipe.name, folder / files.FIGURE)
    return card


@contextmanager
def _fastest_kernels() -> Iterator[None]:
    """Inside, cuDNN tries its convolutions out; shapes stay the same, so that it does so once."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _device(name: str | None) -> torch.device:
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}; training runs on cpu or cuda (cuda:1 is the second)") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} cannot be used here: torch finds no CUDA; try cpu")
    if device.type not in ("cuda", "cpu"):
        raise ValueError(f"training runs on cpu or cuda, not on {name!r}")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        if (device.index or 0) >= count:
            raise ValueError(f"device {name!r} cannot be used here: torch finds {count}, the last is cuda:{count - 1}")
        torch.cuda.set_device(device.index or 0)
        return torch.device("cuda", torch.cuda.current_device())
    return device
