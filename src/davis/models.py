"""Classifiers by name: torchvision, timm, transformers and our own zoo, or a Python object of the user's."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from davis.catalog import PREPROCESSING
from davis.data import IMAGENET_MEAN, IMAGENET_STD, INTERPOLATIONS, Preprocessing
from davis.torchvision_ops import declare_missing_operators
from davis.zoo import (
    CLASSES,
    LITES,
    DenseNet,
    EfficientNetLite,
    build,
    channels_last,
    from_authors,
    from_wheel,
    load,
    load_trained,
    preprocessing_of_lite,
    read_factory,
    weights_of_lite,
)
from davis.zoo.state_dicts import check_fit, first_line, read_state_dict
from davis.zoo.weights import CARD, CHECKPOINT, WEIGHTS, read_card

FORMS = "a torchvision or timm name, hf:ID or hf:FOLDER, module:factory, or a folder that davis train wrote"
_EXTRAS = {"torchvision": "timm", "timm": "timm", "transformers": "hf"}


_TRAINED_ON: WeakKeyDictionary[nn.Module, Preprocessing] = WeakKeyDictionary()
"""How the pictures were prepared that a model was trained on here, where the card beside its weights says so."""


class _Place(NamedTuple):
    """Where a model comes from, and its name there."""

    zoo: str  # davis, cifar, torchvision, timm, hf, python or trained
    name: str


def load_model(name: str, *, weights: str = "default", classes: int | None = None) -> nn.Module:
    """The classifier that a name stands for, in eval mode.

    ``weights`` is ``default`` (the zoo's pretrained ones), ``none`` (random), a file of tensors, or one of
    torchvision's versions, such as ``IMAGENET1K_V1``. ``classes`` is the number of outputs where it is not the zoo's.
    """
    place = _resolve(name)
    if is_version(weights) and place.zoo != "torchvision":
        raise ValueError(f"{weights!r} is a version of torchvision's weights, and {name!r} is not torchvision's")
    pretrained = weights == "default" or is_version(weights)
    file = None if pretrained or weights == "none" else Path(weights)
    if file is not None and not file.is_file():
        raise FileNotFoundError(f"no weights there: {file} is no file; allowed are default, none or a file of tensors")
    if pretrained and classes is not None and place.zoo != "python":
        raise ValueError(
            f"the pretrained {name!r} has its own classes; {classes} of them need weights from a file, or none"
        )
    zoos: dict[str, Callable[[str, bool, int | None], nn.Module]] = {
        "davis": _lite,
        "cifar": _cifar,
        "torchvision": partial(_torchvision, version=weights if is_version(weights) else "DEFAULT"),
        "timm": _timm,
        "hf": _hugging_face,
        "python": _python,
        "trained": _trained,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about the zoo's own defaults; nothing a user can act on
        model = zoos[place.zoo](place.name, pretrained, classes)
    if file is not None:
        _fill(model, file, name)
    folder = (
        Path(place.name) if place.zoo == "trained" else None if file is None or file.name != WEIGHTS else file.parent
    )
    if folder is not None and (folder / CARD).is_file():
        told = read_card(folder / CARD, ["preprocessing"])["preprocessing"]
        if not isinstance(told, dict):
            raise ValueError(f"{folder / CARD} is damaged (its preprocessing is none); remove it and train anew")
        _TRAINED_ON[model] = Preprocessing.from_dict(told)
    return model.eval()


def is_version(weights: str) -> bool:
    """Whether the text names one of the sets of weights that torchvision has for a model."""
    return weights.startswith("IMAGENET1K_")


def preprocessing_of(name: str, model: nn.Module) -> Preprocessing:
    """How the model's zoo prepares images for it; where nothing is known, ImageNet's values."""
    if model in _TRAINED_ON:
        return _TRAINED_ON[model]
    place = _resolve(name)
    if place.zoo == "cifar":
        return PREPROCESSING["cifar10"]  # of both
    if place.zoo == "davis":
        return preprocessing_of_lite(place.name)
    if place.zoo == "torchvision":
        return _torchvision_preprocessing(place.name)
    if place.zoo == "timm":
        return _timm_preprocessing(name, model)
    if place.zoo == "hf":
        return _hugging_face_preprocessing(place.name)
    return Preprocessing()


def knows_preprocessing(name: str, model: nn.Module) -> bool:
    """Whether `preprocessing_of` has it from the model's zoo or card, and not from ImageNet for want of better."""
    return model in _TRAINED_ON or _resolve(name).zoo != "python"


def adjusted(
    preprocessing: Preprocessing,
    *,
    size: int | None = None,
    resize: int | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> Preprocessing:
    """The preprocessing with some values replaced; a new size alone keeps the share that is cut off."""
    size = preprocessing.size if size is None else size
    if resize is None:
        resize = round(size * preprocessing.edge / preprocessing.size)
    mean = preprocessing.mean if mean is None else mean
    std = preprocessing.std if std is None else std
    return replace(preprocessing, size=size, resize=resize, mean=mean, std=std)


def place_on(model: nn.Module, device: str | None) -> nn.Module:
    """The model on a device; without one, on an accelerator where there is one."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return model.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} cannot be used here ({first_line(error)}); try cpu") from None


def _resolve(name: str) -> _Place:
    zoo, colon, rest = name.partition(":")
    if (Path(name) / CARD).is_file() or (Path(name) / CHECKPOINT).is_file():
        return _Place("trained", name)  # what is unfinished says so when it is opened
    if colon and zoo in ("torchvision", "timm"):
        known = _names(zoo)
        if not _is_known(zoo, rest, known):
            raise ValueError(f"unknown {zoo} model {rest!r}; {_suggest(rest, known)}")
        return _Place(zoo, rest)
    if zoo == "davis.zoo" and read_factory(rest) is not None:
        return _Place("cifar", rest)
    if colon:
        return _Place("hf", rest) if zoo == "hf" else _Place("python", name)
    if name in LITES:  # timm has networks of these names too: timm:efficientnet_lite0
        return _Place("davis", name)
    if read_factory(name.replace("-", "_")) is not None:
        raise ValueError(f"unknown model {name!r}; did you mean 'davis.zoo:{name.replace('-', '_')}'?")
    known = list(LITES)
    for zoo in ("torchvision", "timm"):
        with contextlib.suppress(ModuleNotFoundError):
            names = _names(zoo)
            if _is_known(zoo, name, names):
                return _Place(zoo, name)
            known += names
    if len(known) == len(LITES):
        _import("torchvision")  # raises: neither zoo is there
    raise ValueError(f"unknown model {name!r}; {_suggest(name, known)}")


def _is_known(zoo: str, name: str, names: list[str]) -> bool:
    """Whether a zoo has the model; timm's tags (resnet18.a1_in1k) and hub names (hf-hub:...) are timm's to check."""
    if zoo == "timm" and name.startswith(("hf-hub:", "local-dir:")):
        return True
    return (name.partition(".")[0] if zoo == "timm" else name) in names


def _suggest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}?" if close else f"a model is {FORMS}"


def _import(package: str) -> ModuleType:
    declare_missing_operators()
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:
            raise
        extra = _EXTRAS[error.name]
        raise ModuleNotFoundError(
            f"{error.name} is not installed: pip install 'davis-ood[{extra}]'",
            name=error.name,
        ) from None


def _names(zoo: str) -> list[str]:
    if zoo == "torchvision":
        models = _import("torchvision.models")
        return list(models.list_models(module=models))
    return list(_import("timm").list_models())


def _fetched(name: str, make: Callable[[], nn.Module], pretrained: bool) -> nn.Module:
    """The model, or one line that says what to do where its weights cannot be had."""
    if not pretrained:
        return make()
    try:
        return make()
    except Exception as error:  # each zoo has its own, and not all of them are OSErrors
        raise OSError(
            f"cannot get the pretrained weights of {name!r} ({first_line(error)}); use --weights FILE or --weights none"
        ) from error


def _lite(name: str, pretrained: bool, classes: int | None) -> nn.Module:
    model = EfficientNetLite(name, classes=1000 if classes is None else classes)
    if pretrained:
        model.load_state_dict(weights_of_lite(name))
    return channels_last(model)


def _cifar(name: str, pretrained: bool, classes: int | None) -> nn.Module:
    """One of the paper's networks; pretrained are those that come with the package."""
    found = read_factory(name)
    assert found is not None  # else it would have been taken for a Python object
    if pretrained:
        return load(found.arch, found.dataset, head=found.head)
    return build(found.arch, classes=CLASSES[found.dataset] if classes is None else classes, head=found.head)


def _torchvision(name: str, pretrained: bool, classes: int | None, *, version: str) -> nn.Module:
    models = _import("torchvision.models")
    settings: dict[str, Any] = {} if classes is None else {"num_classes": classes}

    def make() -> nn.Module:
        with contextlib.redirect_stdout(io.StringIO()):  # "Downloading ..." would stand in front of our JSON
            model: nn.Module = models.get_model(name, weights=version if pretrained else None, **settings)
        return model

    return _fetched(name, make, pretrained)


def _timm(name: str, pretrained: bool, classes: int | None) -> nn.Module:
    timm = _import("timm")
    settings: dict[str, Any] = {} if classes is None else {"num_classes": classes}
    return _fetched(name, lambda: timm.create_model(name, pretrained=pretrained, **settings), pretrained)


def _hugging_face(name: str, pretrained: bool, classes: int | None) -> nn.Module:
    transformers = _import("transformers")
    auto = transformers.AutoModelForImageClassification
    if pretrained:
        return _fetched(f"hf:{name}", lambda: auto.from_pretrained(name), pretrained)
    settings: dict[str, Any] = {} if classes is None else {"num_labels": classes}
    model: nn.Module = auto.from_config(transformers.AutoConfig.from_pretrained(name, **settings))
    return model


def _python(name: str, pretrained: bool, classes: int | None) -> nn.Module:
    """The object at module:name; what is callable and no model yet is called."""
    if classes is not None:
        raise ValueError(f"{name!r} makes its own model: let it choose the number of classes, not --num-classes")
    module, _, path = name.partition(":")
    if not module or not path:
        raise ValueError(f"cannot read the model {name!r}; a model is {FORMS}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current directory, as with `python -m`
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything
        raise ImportError(f"cannot import {module!r} for the model {name!r} ({first_line(error)})") from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            own = f" ({error})" if module == "davis.zoo" else ""
            raise ValueError(f"module {module!r} has no {path!r}, for the model {name!r}{own}") from None
    if callable(found) and not isinstance(found, nn.Module):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{name!r} did not make a model ({first_line(error)}); it is called without arguments"
            ) from error
    if not isinstance(found, nn.Module):
        raise TypeError(
            f"{name!r} gives a {type(found).__name__}; a torch.nn.Module, or a callable that makes one, is needed"
        )
    return found


def _trained(folder: str, pretrained: bool, classes: int | None) -> nn.Module:
    if not pretrained or classes is not None:
        raise ValueError(f"{folder} is a training, which has its own weights and classes; leave those options out")
    return load_trained(folder)


def _fill(model: nn.Module, file: Path, name: str) -> None:
    """Load a file of tensors into the model; nothing in it is run."""
    tensors = read_state_dict(file, "save model.state_dict()")
    if isinstance(model, DenseNet) and "encoder.conv1.weight" in tensors:
        tensors = from_authors(tensors)
    if isinstance(model, EfficientNetLite) and "_conv_stem.weight" in tensors:
        tensors = from_wheel(tensors)
    advice = (
        "name the model that it was saved of; if it is the number of classes that differs, give it with --num-classes"
    )
    check_fit(tensors, model, file, name, advice)
    model.load_state_dict(tensors)


def _torchvision_preprocessing(name: str) -> Preprocessing:
    values = _import("torchvision.models").get_model_weights(name).DEFAULT.transforms()
    return Preprocessing(
        size=values.crop_size[0],
        resize=values.resize_size[0],
        mean=tuple(values.mean),
        std=tuple(values.std),
        interpolation=values.interpolation.value,
    )


def _timm_preprocessing(name: str, model: nn.Module) -> Preprocessing:
    values = _import("timm.data").resolve_model_data_config(model)
    channels, height, width = values["input_size"]
    if height != width or values["crop_mode"] == "border" or channels not in (1, 3):
        raise ValueError(
            f"{name!r} wants {values['input_size']} images cut by {values['crop_mode']!r}; davis cuts squares"
        )
    return Preprocessing(
        size=height,
        resize=math.floor(height / values["crop_pct"]) if values["crop_pct"] < 1 else height,
        mean=tuple(values["mean"]),
        std=tuple(values["std"]),
        interpolation=values["interpolation"] if values["interpolation"] in INTERPOLATIONS else "bilinear",
        aspect="stretch" if values["crop_mode"] == "squash" else "keep",
    )


def _hugging_face_preprocessing(name: str) -> Preprocessing:
    """The values of ``preprocessor_config.json``, in the spellings that transformers has had for them."""
    file = _import("transformers.utils").cached_file(
        name, "preprocessor_config.json", _raise_exceptions_for_missing_entries=False
    )
    if file is None:
        return Preprocessing()
    values = json.loads(Path(file).read_text(encoding="utf-8"))
    side = _side(values.get("size")) or 224
    if "crop_pct" in values:  # ConvNeXT's rule: large images are stretched, not cut
        size, resize, stretch = (side, int(side / values["crop_pct"]), False) if side < 384 else (side, side, True)
    else:
        crop = _side(values.get("crop_size"))
        size = crop if crop is not None and values.get("do_center_crop", False) else side
        resize, stretch = side, not (isinstance(values.get("size"), Mapping) and "shortest_edge" in values["size"])
    normalised = values.get("do_normalize", True)
    names = {int(mode): word for word, mode in INTERPOLATIONS.items()}
    return Preprocessing(
        size=size,
        resize=resize,
        mean=tuple(values.get("image_mean", IMAGENET_MEAN)) if normalised else (0.0, 0.0, 0.0),
        std=tuple(values.get("image_std", IMAGENET_STD)) if normalised else (1.0, 1.0, 1.0),
        interpolation=names.get(values.get("resample"), "bilinear"),
        aspect="stretch" if stretch else "keep",
    )


def _side(value: object) -> int | None:
    """One side of a size that is a number, {"height", "width"} or {"shortest_edge"}."""
    if isinstance(value, Mapping):
        value = value.get("shortest_edge", value.get("height"))
    return value if isinstance(value, int) else None
