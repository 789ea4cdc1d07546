"""What a training leaves in its folder: checkpoint, log, weights, model card; each written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from davis import atomic
from davis.locks import is_empty_lock
from davis.training.recipe import Recipe
from davis.zoo.weights import CARD, CHECKPOINT, WEIGHTS, check_weights, read_card

LOG, FIGURE = "log.jsonl", "curves.svg"
_FORMAT = "1"
_LARGEST = 1e300
_RECORD = ("epoch", "rate", "loss", "train_accuracy", "test_accuracy", "seconds")
_ON_CARD = (
    "name",
    "arch",
    "classes",
    "head",
    "parameters",
    "accuracy",
    "recipe",
    "device",
    "seconds",
    "sha256",
    "command",
)

History = list[dict[str, Any]]  # a record for each epoch


def check_own(folder: Path) -> None:
    """Refuse a folder with other things in it: a training writes over nobody else's files.

    Logs may stand there, since whoever starts a training may send its output there; so may what a kill leaves behind.
    """
    try:
        str(folder).encode()
    except UnicodeEncodeError:  # safetensors would refuse it after all the work
        raise ValueError(f"the name of the folder {str(folder)!r} is not UTF-8; choose another folder") from None
    if not folder.is_dir():
        return
    entries = {entry.name: entry for entry in folder.iterdir()}
    for name in (CHECKPOINT, CARD, LOG, WEIGHTS):
        if name in entries and not entries[name].is_file():
            raise ValueError(f"{entries[name]} is no file, where a training would write one; choose another folder")
    if CHECKPOINT in entries or CARD in entries:
        return  # whose they are is found when they are read
    if read_log(folder):
        return
    unfinished = {LOG, f"{LOG}.next", f"{CHECKPOINT}.next"}
    for name, entry in entries.items():
        if not (is_empty_lock(entry) or name in unfinished or entry.suffix == ".log"):
            raise ValueError(f"{folder} is not empty and holds no training; choose another folder")


def save_checkpoint(
    folder: Path,
    recipe: Recipe,
    tensors: Mapping[str, Tensor],
    history: History,
    *,
    data: str,
    test: str | None = None,
) -> None:
    """Weights, momenta and the record of each epoch so far; what is random follows from the seed and the epoch.

    ``data`` and ``test`` are digests of the pictures that are trained on and tested with.
    """
    metadata = {"format": _FORMAT, "recipe": json.dumps(recipe.to_dict()), "history": json.dumps(history), "data": data}
    if test is not None:
        metadata["test"] = test
    plain = {name: _plain(tensor) for name, tensor in tensors.items()}
    atomic.write(folder / CHECKPOINT, safetensors.torch.save(plain, metadata))


def load_checkpoint(
    folder: Path, recipe: Recipe, *, data: str, test: str | None = None
) -> tuple[dict[str, Tensor], History] | None:
    """What was saved last, or None; a folder of another training, or of other pictures, is refused.

    Checkpoints of before say nothing of the test pictures.
    """
    file = folder / CHECKPOINT
    if not file.is_file():
        return None
    try:
        with safetensors.safe_open(file, "pt") as stored:
            metadata = stored.metadata() or {}
            if metadata.get("format") != _FORMAT or not {"recipe", "history", "data"} <= metadata.keys():
                raise ValueError(
                    f"{file} is of another format than {_FORMAT}; choose another folder, or remove it to begin anew"
                )
            recipe_there, history = json.loads(metadata["recipe"]), json.loads(metadata["history"])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (no mapping)
    except (safetensors.SafetensorError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({error}); remove it to begin anew") from error
    if not isinstance(history, list) or not all(_is_record(record) for record in history):
        raise ValueError(f"{file} is damaged (its history is none); remove it to begin anew")
    _check_same(file, recipe, recipe_there)
    if len(history) > recipe.epochs or [record["epoch"] for record in history] != [*range(1, len(history) + 1)]:
        raise ValueError(
            f"{file} is damaged (its history has other epochs than 1 to {recipe.epochs} at most); "
            "remove it to begin anew"
        )
    stored_digests = {"train": metadata["data"], "test": metadata.get("test")}
    check_pictures(folder, stored_digests, {"train": data, "test": test})
    return tensors, history


def check_pictures(folder: Path, stored: Mapping[str, Any], own: Mapping[str, str | None]) -> None:
    """Refuse a training whose digests of pictures are others; what is not known on either side is not compared."""
    for half, told in (("train", "on other pictures"), ("test", "that is tested with other pictures")):
        there, here = stored.get(half), own.get(half)
        if there is not None and here is not None and there != here:
            raise ValueError(f"{folder} holds a training {told}; choose another folder")


def write_log(folder: Path, history: History) -> None:
    """One JSON object per epoch and line; written whole, so that a resumed training repeats no line."""
    atomic.write(folder / LOG, "".join(json.dumps(record) + "\n" for record in history).encode())


def read_log(folder: Path) -> History:
    """The records so far; none where nothing was trained yet."""
    file = folder / LOG
    if not file.is_file():
        return []
    history: History = []
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not _is_record(record):
            raise ValueError(
                f"line {number} of {file} is damaged, or no training's; remove it, or choose another folder"
            )
        history.append(record)
    return history


def _is_record(record: object) -> bool:
    if not isinstance(record, dict):
        return False
    return all(_is_number(record.get(key)) for key in _RECORD)


def _is_number(value: object) -> bool:
    """Neither true, nor NaN, nor one of 400 digits."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def save_weights(folder: Path, state: Mapping[str, Tensor], about: dict[str, str]) -> Path:
    """The weights in float16, the statistics of batch norms in float32: a small variance would be lost in less."""
    small = {}
    for name, tensor in state.items():
        statistic = name.endswith(("running_mean", "running_var"))
        kind = torch.float16 if tensor.is_floating_point() and not statistic else tensor.dtype
        small[name] = _plain(tensor).to(kind)
        if not bool(small[name].isfinite().all()):
            small[name] = _plain(tensor)  # out of float16's range
    # One key alone: safetensors writes several in an order that differs from run to run, and the bytes with it.
    atomic.write(folder / WEIGHTS, safetensors.torch.save(small, {"davis": json.dumps(about)}))
    return folder / WEIGHTS


def fill(model: nn.Module, weights: Path) -> None:
    """Load a file of weights into the network that it belongs to."""
    model.load_state_dict(safetensors.torch.load_file(weights))


def save_card(folder: Path, card: Mapping[str, Any]) -> None:
    """Written last: a folder with a card holds a finished training."""
    atomic.write(folder / CARD, (json.dumps(card, indent=2) + "\n").encode())


def load_card(folder: Path, recipe: Recipe) -> dict[str, Any] | None:
    """The card of a finished training of this recipe, or None; a folder of another training is refused.

    So is a card without its weights: nothing is finished there.
    """
    file = folder / CARD
    if not file.is_file():
        return None
    card = read_card(file, _ON_CARD)
    _check_same(file, recipe, card["recipe"])
    sound = _is_number(card["accuracy"]) and 0 <= card["accuracy"] <= 1 and _is_number(card["seconds"])
    if not sound or not isinstance(card.get("data", {}), dict):
        raise ValueError(f"{file} is damaged (its accuracy, seconds or data are none); remove it and train anew")
    if (card["arch"], card["head"]) != (recipe.arch, recipe.head):
        raise ValueError(f"{file} is damaged (its network is not that of its recipe); remove it and train anew")
    check_weights(file, card, folder / WEIGHTS)
    return card


def _check_same(file: Path, recipe: Recipe, stored: object) -> None:
    try:
        there = Recipe(**stored).to_dict()  # type: ignore[arg-type]  # what does not fit is refused there
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file} is damaged (its recipe: {error}); remove it and train anew") from None
    for key, asked in recipe.to_dict().items():
        if asked != there[key]:
            raise ValueError(
                f"{file.parent} holds a training with {key}={there[key]!r}, and {asked!r} is asked for; "
                "choose another folder, or remove that one"
            )


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()
