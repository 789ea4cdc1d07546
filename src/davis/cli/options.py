"""What several verbs take, and the model that they ask for."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from davis.cli.printing import note


class Kind(str, Enum):
    """What a threshold promises; see davis.calibrate."""

    marginal = "marginal"
    conditional = "conditional"


class TokenKind(str, Enum):
    """Transformers that are read only when asked for; see davis.class_token."""

    class_ = "class"


def named_path(text: str) -> Path:
    """An argument as a path; an empty one, such as a shell variable that is not set, would be the current folder."""
    if not text:
        raise typer.BadParameter("the name is empty; write . for the current folder")
    return Path(text)


if TYPE_CHECKING:
    from torch import nn

    from davis.backbone import Backbone
    from davis.data import Preprocessing
    from davis.detector import Detector

Model: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="torchvision or timm name, hf:ID, hf:FOLDER, module:factory, or a folder that davis train wrote"
    ),
]
Weights: TypeAlias = Annotated[str, typer.Option(help="default (the zoo's pretrained ones), none or a file of tensors")]
NumClasses: TypeAlias = Annotated[int | None, typer.Option(help="Outputs of the model, where not the zoo's own number")]
Size: TypeAlias = Annotated[int | None, typer.Option(help="Side of the square images; default: the zoo's own, or 224")]
Mean: TypeAlias = Annotated[str | None, typer.Option(help="Of the channels: 0.485,0.456,0.406; one for grey images")]
Std: TypeAlias = Annotated[str | None, typer.Option(help="Of the channels, likewise")]
Tap: TypeAlias = Annotated[str | None, typer.Option(help="Module that returns the last map; default: found")]
Head: TypeAlias = Annotated[str | None, typer.Option(help="Last linear layer; default: found")]
Tokens: TypeAlias = Annotated[
    TokenKind | None, typer.Option(help="class: the patches that enter the last block of a class-token transformer")
]
Batch: TypeAlias = Annotated[int, typer.Option(min=1, help="Images at a time")]
Device: TypeAlias = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps; default: cuda if there, else cpu")]
TrainDevice: TypeAlias = Annotated[
    str | None, typer.Option("--device", help="cpu, cuda or cuda:1; default: cuda if there, else cpu")
]
Workers: TypeAlias = Annotated[int, typer.Option(min=0, help="Threads that decode images")]
Strict: TypeAlias = Annotated[bool, typer.Option("--strict", help="Stop at the first image that cannot be read")]
Tpr: TypeAlias = Annotated[float, typer.Option(help="Share of in-distribution images to accept")]
Promise: TypeAlias = Annotated[
    Kind, typer.Option("--promise", help="To hold on average over draws of held-out images, or for the one in hand")
]
Delta: TypeAlias = Annotated[float, typer.Option(help="Doubt that the promise for the threshold in hand may leave")]
ByClass: TypeAlias = Annotated[bool, typer.Option("--by-class", help="A threshold for each predicted class")]
Paths: TypeAlias = Annotated[
    list[Path],
    typer.Argument(help="A saved detector, then images or folders of them", parser=named_path, metavar="IMAGES"),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON")]


def open_backbone(
    name: str,
    weights: str,
    classes: int | None,
    device: str | None,
    tap: str | None = None,
    head: str | None = None,
    tokens: TokenKind | None = None,
) -> Backbone:
    from davis.backbone import Backbone

    model = _open_model(name, weights, classes, device)
    return Backbone(model, tap=tap, head=head, tokens=None if tokens is None else "class")


def open_detector(
    folder: Path, name: str, weights: str = "default", classes: int | None = None, device: str | None = None
) -> Detector:
    """A saved detector on the model that it was fitted for."""
    from davis.artifact import load, read_record
    from davis.backbone import Backbone

    found = read_record(folder)["backbone"]
    model = _open_model(name, weights, classes, device)
    adapter = recorded_adapter(found)
    known = dict(model.named_modules())
    if any(place not in known for option, place in adapter.items() if option != "tokens"):
        raise ValueError(
            f"{folder} was fitted for a {found['model']}, and {name!r} is a {type(model).__name__} without its layers; "
            "name that model with --model"
        )
    return load(folder, Backbone(model, **adapter))


def _open_model(name: str, weights: str, classes: int | None, device: str | None) -> nn.Module:
    from davis.models import load_model, place_on

    if device is not None:
        _try_device(device)  # before a model is loaded for it
    with contextlib.redirect_stdout(sys.stderr):  # a user's module may print, and stdout is for results
        return place_on(load_model(name, weights=weights, classes=classes), device)


def _try_device(device: str) -> None:
    """Bring a number there and back: what is not there, or holds no numbers, fails in its own way."""
    import torch

    try:
        place = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device {device!r} cannot be used here: write cpu, cuda, cuda:1 or mps") from None
    try:
        torch.ones(1, device=place).cpu()
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"device {device!r} cannot be used here ({reason}); try cpu") from None


def prepare(name: str, backbone: Backbone, **changes: Any) -> Preprocessing:
    """How images are prepared for a model, and the model found and checked on noise of their shape."""
    from davis.models import adjusted, preprocessing_of

    preprocessing = adjusted(preprocessing_of(name, backbone.model), **changes)
    backbone.probe(preprocessing.shape)
    return preprocessing


def recorded_adapter(found: dict[str, Any]) -> dict[str, Any]:
    """What was given to fit and need not be given again: the tap and head where they say it all, or the tokens."""
    from davis.discovery import IDENTITY

    if found.get("kind") == "class token":
        return {"tokens": TokenKind.class_.value}
    head = found.get("head") or ""
    named = bool(head) and " + " not in head and head != IDENTITY  # other heads are no module, and found again
    plain = found.get("after") is None and found.get("neck") is None and named
    return {"tap": found.get("tap"), "head": head} if plain else {}


def with_default(paths: list[Path], model: str | None) -> tuple[Path, str, list[Path], list[str] | None]:
    """The detector's folder, its model, the images, and class names where they are known.

    With a model the first path is the detector. Without one all are images, for the detector that is shipped.
    """
    if model is not None:
        if len(paths) < 2:
            raise ValueError(f"with --model a saved detector and images are needed, and only {paths[0]} was given")
        if paths[0].is_file():
            raise ValueError(
                f"with --model the first argument must be the folder of a saved detector, and {paths[0]} is a file; "
                "name the folder before the images, or leave --model out for the demo's detector"
            )
        return paths[0], model, paths[1:], None
    if (paths[0] / "detector.json").is_file():
        raise ValueError(f"{paths[0]} is a saved detector; name the model that it was fitted for with --model")
    from davis.demo.shipped import CALIBRATION, MODEL, SPECS, class_names, folder_of

    note(f"judged by {MODEL} and {SPECS['max']}; p-values against {CALIBRATION}")
    return folder_of("max"), MODEL, paths, list(class_names())


def check_outputs(
    option: str,
    files: Sequence[Path],
    *,
    inputs: Iterable[Path],
    ours: Callable[[Path], bool],
    new_folder: bool = False,
) -> None:
    """Refuse, before the work, to write where nothing can be written or over what davis did not write itself.

    ``ours`` says of a file that is there whether the verb wrote it; with ``new_folder`` a missing folder will be made.
    """
    read = {path.resolve() for path in inputs}
    for file in files:
        if file.resolve() in read:
            raise ValueError(f"{option} would write over {file}, which is read; choose another place")
        if file.exists() and not file.is_file():
            raise ValueError(f"{option} would write over {file}, which is no plain file; choose another place")
        if file.exists() and file.stat().st_size and not ours(file):  # an empty file is no loss
            raise ValueError(f"{option} would write over {file}, which davis did not write; choose another place")
    for folder in dict.fromkeys(file.parent for file in files):
        _try_writing(option, folder, new_folder)


def _try_writing(option: str, folder: Path, new: bool) -> None:
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if there != folder and not new:
        raise FileNotFoundError(f"{option}: no such folder: {folder}; make it first")
    if not there.is_dir():
        raise ValueError(f"{option}: {there} is a file, and a folder is needed there; choose another place")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise OSError(f"{option}: nothing can be written into {there} ({error.strerror}); choose another") from None


class Skipped:
    """The images that could not be read, each said once."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.files: set[Path] = set()

    def add(self, file: Path, error: Exception) -> None:
        if self.strict:
            raise error
        if file not in self.files:
            note(f"skipped: {error}")
        self.files.add(file)


def numbers_of(option: str, text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--{option} {text!r} must be numbers with commas between, such as 0.5,0.5,0.5") from None


def folder_of_images(path: Path) -> Path:
    if not path.is_dir():
        raise FileNotFoundError(f"no such folder of images: {path}")
    return path


def labels_of(folder: Path, files: list[Path], backbone: Backbone) -> dict[Path, int]:
    """The label of each file where there is one folder per class of the model; else nothing."""
    from davis.data import class_folders

    names = class_folders(folder, files)
    order = {name: index for index, name in enumerate(sorted(set(names.values())))}
    classes = backbone.describe()["classes"]
    if names and len(order) != classes:
        note(f"{folder} has {len(order)} folders and the model {classes} classes: fitting with predicted classes")
        return {}
    return {file: order[name] for file, name in names.items()}
