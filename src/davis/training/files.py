"""What a training leaves in its folder: checkpoint, log, weights, model card; each written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from davis.training.recipe import Recipe
from davis.zoo.weights import CARD, WEIGHTS

CHECKPOINT, LOG, FIGURE, LOCK = "checkpoint.safetensors", "log.jsonl", "curves.svg", "lock"
_FORMAT = "1"

History = list[dict[str, Any]]  # a record for each epoch


def write_atomically(file: Path, content: bytes) -> None:
    """The file holds the old bytes or the new ones, whatever happens meanwhile."""
    unfinished = file.with_name(file.name + ".next")
    with unfinished.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(unfinished, file)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """No other process trains in the folder meanwhile; the lock ends with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        fcntl: Any = import_module("fcntl")
    except ModuleNotFoundError:  # not on Windows
        yield
        return
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"another process trains in {folder}; wait for it, or choose another folder") from None
        yield


def save_checkpoint(
    folder: Path, recipe: Recipe, tensors: Mapping[str, Tensor], history: History, *, data: str
) -> None:
    """Weights, momenta and the record of each epoch so far; what is random follows from the seed and the epoch."""
    metadata = {"format": _FORMAT, "recipe": json.dumps(recipe.to_dict()), "history": json.dumps(history), "data": data}
    unfinished = folder / f"{CHECKPOINT}.next"
    safetensors.torch.save_file({name: _plain(tensor) for name, tensor in tensors.items()}, unfinished, metadata)
    with unfinished.open("rb") as stream:
        os.fsync(stream.fileno())
    os.replace(unfinished, folder / CHECKPOINT)


def load_checkpoint(folder: Path, recipe: Recipe, *, data: str) -> tuple[dict[str, Tensor], History] | None:
    """What was saved last, or None; a folder of another training, or of other pictures, is refused."""
    file = folder / CHECKPOINT
    if not file.is_file():
        return None
    try:
        with safetensors.safe_open(file, "pt") as stored:
            metadata = stored.metadata() or {}
            if metadata.get("format") != _FORMAT or "history" not in metadata:
                raise ValueError(f"{file} is of another format than {_FORMAT}; remove it to begin anew")
            _check_same(folder, recipe, json.loads(metadata.get("recipe", "{}")))
            if metadata.get("data") != data:
                raise ValueError(f"{folder} holds a training on other pictures; choose another folder")
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
    except safetensors.SafetensorError as error:
        raise ValueError(f"{file} is damaged ({error}); remove it to begin anew") from error
    return tensors, json.loads(metadata["history"])


def write_log(folder: Path, history: History) -> None:
    """One JSON object per epoch and line; written whole, so that a resumed training repeats no line."""
    write_atomically(folder / LOG, "".join(json.dumps(record) + "\n" for record in history).encode())


def read_log(folder: Path) -> History:
    """The records so far; none where nothing was trained yet."""
    file = folder / LOG
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def save_weights(folder: Path, state: Mapping[str, Tensor], about: dict[str, str]) -> Path:
    """The weights in float16, the statistics of batch norms in float32: a small variance would be lost in less."""
    small = {}
    for name, tensor in state.items():
        statistic = name.endswith(("running_mean", "running_var"))
        kind = torch.float16 if tensor.is_floating_point() and not statistic else tensor.dtype
        small[name] = _plain(tensor).to(kind)
        if not bool(small[name].isfinite().all()):
            small[name] = _plain(tensor)  # out of float16's range
    unfinished = folder / f"{WEIGHTS}.next"
    # One key alone: safetensors writes several in an order that differs from run to run, and the bytes with it.
    safetensors.torch.save_file(small, unfinished, {"davis": json.dumps(about)})
    os.replace(unfinished, folder / WEIGHTS)
    return folder / WEIGHTS


def fill(model: nn.Module, weights: Path) -> None:
    """Load a file of weights into the network that it belongs to."""
    model.load_state_dict(safetensors.torch.load_file(weights))


def save_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Written last: a folder with a card holds a finished training."""
    write_atomically(folder / CARD, (json.dumps(card, indent=2) + "\n").encode())


def load_card(folder: Path, recipe: Recipe) -> dict[str, Any] | None:
    """The card of a finished training of this recipe, or None; a folder of another training is refused."""
    if not (folder / CARD).is_file():
        return None
    card: dict[str, Any] = json.loads((folder / CARD).read_text(encoding="utf-8"))
    _check_same(folder, recipe, card["recipe"])
    return card


def _check_same(folder: Path, recipe: Recipe, stored: Mapping[str, Any]) -> None:
    own = recipe.to_dict()
    for key in own.keys() | stored.keys():
        if own.get(key) != stored.get(key):
            raise ValueError(
                f"{folder} holds a training with {key}={stored.get(key)!r}, and {own.get(key)!r} is asked for; "
                "choose another folder"
            )


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()
