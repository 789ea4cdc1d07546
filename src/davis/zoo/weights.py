"""Trained weights: those that come with the package, and those in the folder of a training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, get_args

from torch import nn

from davis.zoo.naming import CLASSES, HeadKind, build, canonical, slug
from davis.zoo.state_dicts import check_fit, read_state_dict

WEIGHTS, CARD, CHECKPOINT = "weights.safetensors", "card.json", "checkpoint.safetensors"
_ANEW, _REINSTALL = "remove it and train anew", "install davis again"


def shipped() -> dict[str, dict[str, Any]]:
    """The model cards of the weights that come with the package, by ``DATASET-ARCH``."""
    return {file.stem: read_card(file, advice=_REINSTALL) for file in sorted(_folder().glob("*.json"))}


def load(name: str, dataset: str, *, head: HeadKind = "linear") -> nn.Module:
    """A trained network that comes with the package, in eval mode; no network is asked."""
    if dataset not in CLASSES:
        raise ValueError(f"unknown dataset {dataset!r}; known: {', '.join(CLASSES)}")
    if head not in get_args(HeadKind):
        raise ValueError(f"unknown head {head!r}; known: {', '.join(get_args(HeadKind))}")
    stem = f"{dataset}-{slug(name)}" + ("" if head == "linear" else f"_{head}")
    file = _folder() / f"{stem}.json"
    if not file.is_file():
        plain = head == "linear"
        raise FileNotFoundError(
            f"no weights of {name!r}{'' if plain else f' with head {head}'} trained on {dataset!r} come with davis; "
            f"there are: {', '.join(each.stem for each in sorted(_folder().glob('*.json'))) or 'none yet'}; "
            f"train them with `davis train {quoted(name)} {dataset}{'' if plain else f' --head {head}'}` and give its "
            "folder: it is a model name, and davis.zoo.load_trained opens it"
        )
    card = read_card(file, advice=_REINSTALL)
    if (card["arch"], card["classes"], card["head"]) != (canonical(name), CLASSES[dataset], head):
        raise ValueError(f"{file} is the card of another network; {_REINSTALL}")
    return _open(file, card, file.with_suffix(".safetensors"), _REINSTALL)


def load_trained(folder: str | Path) -> nn.Module:
    """The network that ``davis train`` left in a folder, in eval mode."""
    folder = Path(folder)
    if not (folder / CARD).is_file():
        raise FileNotFoundError(f"{folder} holds no finished training: {CARD} is missing; run davis train to its end")
    return _open(folder / CARD, read_card(folder / CARD), folder / WEIGHTS)


def read_card(
    file: Path, needs: Iterable[str] = ("arch", "classes", "head", "sha256"), *, advice: str = _ANEW
) -> dict[str, Any]:
    """The model card in a file, with all that is needed of it."""
    try:
        card = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({error}); {advice}") from None
    if not isinstance(card, dict):
        raise ValueError(f"{file} is no model card; {advice}")
    missing = [key for key in needs if key not in card]
    if missing:
        raise ValueError(f"{file} is no model card, it has no {missing[0]!r}; {advice}")
    return card


def check_weights(card_file: Path, card: Mapping[str, Any], weights: Path, *, advice: str = "") -> None:
    """Refuse a card whose weights are gone, or are others."""
    advice = advice or f"put the right one back, or remove {card_file} and train anew"
    if not weights.is_file():
        raise FileNotFoundError(f"{weights} is missing, which {card_file.name} describes; {advice}")
    if sha256_of(weights) != card["sha256"]:
        raise ValueError(f"{weights} is not the file that {card_file.name} describes: its sha256 differs; {advice}")


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


def _open(card_file: Path, card: Mapping[str, Any], weights: Path, advice: str = "") -> nn.Module:
    check_weights(card_file, card, weights, advice=advice)
    try:
        model = build(str(card["arch"]), classes=int(card["classes"]), head=card["head"])
    except (ValueError, TypeError) as error:
        raise ValueError(f"{card_file} is damaged ({error}); {advice or _ANEW}") from None
    theirs = f"the card {card_file.name} is not theirs: {advice or f'put the right one back, or {_ANEW}'}"
    tensors = read_state_dict(weights, theirs)
    check_fit(tensors, model, weights, card["arch"], theirs)
    model.load_state_dict(tensors)
    return model.eval()


def _folder() -> Path:
    return Path(str(resources.files("davis.zoo"))) / "trained"
