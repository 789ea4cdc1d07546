"""Trained weights: those that come with the package, and those in the folder of a training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from torch import nn

from davis.zoo.naming import CLASSES, HeadKind, build, slug
from davis.zoo.state_dicts import check_fit, read_state_dict

WEIGHTS, CARD, CHECKPOINT = "weights.safetensors", "card.json", "checkpoint.safetensors"


def shipped() -> dict[str, dict[str, Any]]:
    """The model cards of the weights that come with the package, by ``DATASET-ARCH``."""
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(_folder().glob("*.json"))}


def load(name: str, dataset: str, *, head: HeadKind = "linear") -> nn.Module:
    """A trained network that comes with the package, in eval mode; no network is asked."""
    option = "" if head == "linear" else f" --head {head}"
    stem = f"{dataset}-{slug(name)}" + ("" if head == "linear" else f"_{head}")
    if dataset not in CLASSES:
        raise ValueError(f"unknown dataset {dataset!r}; known: {', '.join(CLASSES)}")
    known = shipped()
    if stem not in known:
        raise FileNotFoundError(
            f"no weights of {name!r} trained on {dataset!r} come with davis; "
            f"there are: {', '.join(known) or 'none yet'}; "
            f"train them with `davis train {quoted(name)} {dataset}{option}` and give its folder: it is a model name, "
            "and davis.zoo.load_trained opens it"
        )
    return _open(_folder() / f"{stem}.json", _folder() / f"{stem}.safetensors")


def load_trained(folder: str | Path) -> nn.Module:
    """The network that ``davis train`` left in a folder, in eval mode."""
    folder = Path(folder)
    if not (folder / CARD).is_file():
        raise FileNotFoundError(f"{folder} holds no finished training: {CARD} is missing; run davis train to its end")
    return _open(folder / CARD, folder / WEIGHTS)


def read_card(file: Path, needs: Iterable[str] = ("arch", "classes", "head", "sha256")) -> dict[str, Any]:
    """The model card in a file, with all that is needed of it."""
    try:
        card = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({error}); remove it and train anew") from None
    if not isinstance(card, dict):
        raise ValueError(f"{file} is no model card; remove it and train anew")
    missing = [key for key in needs if key not in card]
    if missing:
        raise ValueError(f"{file} is no model card, it has no {missing[0]!r}; remove it and train anew")
    return card


def check_weights(card_file: Path, card: Mapping[str, Any], weights: Path) -> None:
    """Refuse a card whose weights are gone, or are others."""
    if not weights.is_file():
        raise FileNotFoundError(
            f"{weights} is missing, which {card_file.name} describes; put it back, or remove {card_file} and train anew"
        )
    if sha256_of(weights) != card["sha256"]:
        raise ValueError(
            f"{weights} is not the file that {card_file.name} describes: its sha256 differs; "
            f"put the right one back, or remove {card_file} and train anew"
        )


def quoted(name: str) -> str:
    """The name, quoted where a shell would stumble over its brackets."""
    return f"'{name}'" if "(" in name else name


def sha256_of(file: Path) -> str:
    """Of the bytes of a file."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _open(card_file: Path, weights: Path) -> nn.Module:
    card = read_card(card_file)
    check_weights(card_file, card, weights)
    advice = f"the card {card_file.name} is not theirs: put the right one back, or remove it and train anew"
    try:
        model = build(str(card["arch"]), classes=int(card["classes"]), head=card["head"])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{card_file} is damaged ({error}); remove it and train anew") from None
    tensors = read_state_dict(weights, advice)
    check_fit(tensors, model, weights, card["arch"], advice)
    model.load_state_dict(tensors)
    return model.eval()


def _folder() -> Path:
    return Path(str(resources.files("davis.zoo"))) / "trained"
