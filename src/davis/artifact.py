"""Detectors on disk: ``detector.json`` and ``detector.safetensors``. No pickle; loading runs nothing."""

from __future__ import annotations

import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from davis import __version__
from davis.backbone import Backbone
from davis.calibrate import Calibration
from davis.detector import Detector
from davis.sketch import Sketch

FORMAT = 2
JSON, TENSORS = "detector.json", "detector.safetensors"
_CALIBRATION, _COUNTS, _HASHES = "calibration.scores", "fit.class_counts", "fit.hashes"
_NOISE = "backbone.noise"  # the mean features of the noise that Backbone.probe looks at
_SAME = 0.1  # of their norm: other precisions and machines stay well within it
_NEXT = ".next"  # a file that is written but not yet in place
_SIGNED = ("spec", "preprocessing", "backbone", "head_sha256")  # what the scores of the calibration depend on
_SIGNATURE = "detector_sha256"  # of these, kept beside the tensors

_FIELDS: dict[str, tuple[type, ...]] = {
    "format": (int,),
    "spec": (str,),
    "calibration": (dict, type(None)),
    "backbone": (dict,),
    "head_sha256": (str,),
    "images_seen": (int,),
    "preprocessing": (dict, type(None)),
    "tensors": (dict,),
    "tensors_sha256": (str,),
    "versions": (dict,),
}


def save(detector: Detector, folder: str | os.PathLike[str]) -> Path:
    """Write a fitted detector into a folder; an older one there is replaced whole or not at all."""
    if not detector.is_fitted:
        raise ValueError(f"{detector.spec!r} is not fitted; fit it before saving")
    if detector.backbone.image_shape is None:
        raise ValueError("the detector has not seen an image yet; call it once, so that the classifier is checked")
    path = Path(folder)
    check_place(path)
    path.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in _tensors(detector).items()}
    record = {
        "format": FORMAT,
        "spec": detector.spec,
        "calibration": None if detector.calibration is None else detector.calibration.to_dict(),
        "backbone": detector.backbone.describe(),
        "head_sha256": head_sha256(detector.backbone),
        "images_seen": detector.images_seen,
        "preprocessing": detector.preprocessing,
        "versions": {"davis": __version__, "torch": torch.__version__},
    }
    _write_both(path, record, tensors)
    return path


def check_place(path: Path) -> None:
    """Refuse to save over what davis did not write."""
    if path.is_file():
        raise ValueError(f"{path} is a file; a detector is saved into a folder")
    for file in (path / JSON, path / (JSON + _NEXT)):
        if file.exists() and not _looks_own(file):
            raise ValueError(f"{file} is no detector that davis saved; choose another folder")
    if (path / TENSORS).exists() and not any((path / name).exists() for name in (JSON, JSON + _NEXT)):
        raise ValueError(f"{path / TENSORS} stands there without its {JSON}; choose another folder")


def _looks_own(file: Path) -> bool:
    try:
        record = json.loads(file.read_bytes())
    except (ValueError, RecursionError, OSError):
        return False
    return isinstance(record, dict) and {"format", "spec", "tensors_sha256"} <= record.keys()


def recalibrate(folder: str | os.PathLike[str], calibration: Calibration) -> None:
    """Give a saved detector another calibration, from scores of its own; needs no model."""
    path = Path(folder)
    record, tensors = _verified(path)
    record["calibration"] = calibration.to_dict()
    tensors[_CALIBRATION] = calibration.scores
    _write_both(path, record, tensors)


def _write_both(path: Path, record: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    packed = safetensors.torch.save(tensors, metadata={_SIGNATURE: _signature(record)})
    described = {name: [str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in sorted(tensors.items())}
    record = record | {"tensors": described, "tensors_sha256": hashlib.sha256(packed).hexdigest()}
    text = json.dumps(record, indent=2, allow_nan=False) + "\n"
    _write(path / (TENSORS + _NEXT), packed)
    _write(path / (JSON + _NEXT), text.encode())
    # A crash between these two leaves new tensors beside the old text; load() then takes the text
    # that belongs to them from the .next file.
    os.replace(path / (TENSORS + _NEXT), path / TENSORS)
    os.replace(path / (JSON + _NEXT), path / JSON)


def load(folder: str | os.PathLike[str], model: nn.Module | Backbone) -> Detector:
    """The detector that was saved in a folder, on the classifier that it was fitted for."""
    path = Path(folder)
    packed = _read(path / TENSORS)
    record, tensors = read_record(path), _unpacked(packed, path)
    backbone = _backbone(model, record["backbone"], path)
    if head_sha256(backbone) != record["head_sha256"]:
        raise ValueError(
            f"the classifier's last layer is not the one that {path} was fitted for "
            f"({record['backbone'].get('model')}, head {record['backbone'].get('head')!r}); "
            "load that model, with the weights that it had (--weights), or fit anew"
        )
    detector = Detector(backbone, record["spec"])
    extra = (_CALIBRATION, _COUNTS, _HASHES, _NOISE)
    calibrated, counts, hashes, noise = (tensors.pop(name, None) for name in extra)
    _fill(detector, tensors, record["tensors"], path)
    _check_digest(packed, record, path)
    _check_body(backbone, noise, path)
    classes = cast(int, backbone.describe()["classes"])
    detector.calibration = _calibration(record["calibration"], calibrated, classes, path)
    detector.class_counts = _whole_numbers(counts, (classes,), path / TENSORS)
    detector.sketch = Sketch(_whole_numbers(hashes, None if hashes is None else (len(hashes),), path / TENSORS))
    detector.images_seen = record["images_seen"]
    detector.preprocessing = record["preprocessing"]
    _try(detector, path)
    return detector


def read_record(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The checked contents of ``detector.json``; needs no model."""
    path = Path(folder)
    digest = hashlib.sha256(_read(path / TENSORS)).hexdigest()
    record = _checked(_read(path / JSON), path / JSON)
    unfinished = path / (JSON + _NEXT)
    if record["tensors_sha256"] != digest and unfinished.is_file():
        newer = _checked(unfinished.read_bytes(), unfinished)
        if newer["tensors_sha256"] == digest:
            return newer
    return record


def head_sha256(backbone: Backbone) -> str:
    """A fingerprint of the classifier's last layer."""
    digest = hashlib.sha256()
    for name, tensor in sorted(backbone.classifier.module.state_dict().items()):
        values = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {values.dtype} {tuple(values.shape)}".encode())
        digest.update(values.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def saved_calibration(folder: str | os.PathLike[str]) -> Calibration | None:
    """The calibration of a saved detector; needs no model."""
    path = Path(folder)
    record, tensors = _verified(path)
    return _calibration(record["calibration"], tensors.get(_CALIBRATION), None, path)


def saved_class_counts(folder: str | os.PathLike[str]) -> Tensor:
    """How often the fit of a saved detector saw each predicted class; needs no model."""
    path = Path(folder)
    counts = _verified(path)[1].get(_COUNTS)
    if counts is None:
        raise ValueError(f"{path} does not know how often its fit saw each class: it was fitted without a pass")
    return counts


def _verified(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The record and the tensors that belong to it."""
    packed, record = _read(path / TENSORS), read_record(path)
    tensors = _unpacked(packed, path)
    _check_digest(packed, record, path)
    return record, tensors


def _signature(record: dict[str, Any]) -> str:
    signed = {name: record[name] for name in _SIGNED}
    return hashlib.sha256(json.dumps(signed, sort_keys=True).encode()).hexdigest()


def _check_digest(packed: bytes, record: dict[str, Any], path: Path) -> None:
    if hashlib.sha256(packed).hexdigest() != record["tensors_sha256"]:
        raise ValueError(
            f"{path / TENSORS} was changed after it was saved (its sha256 differs); save the detector anew"
        )
    length = int.from_bytes(packed[:8], "little")
    metadata = json.loads(packed[8 : 8 + length]).get("__metadata__", {})  # none where an earlier version saved it
    if metadata.get(_SIGNATURE, _signature(record)) != _signature(record):
        raise ValueError(
            f"{path / JSON} was changed after it was saved: its {', '.join(_SIGNED[:-1])} are not those that its "
            "calibration was made with; save the detector anew"
        )


def _check_body(backbone: Backbone, noise: Tensor | None, path: Path) -> None:
    """Refuse a model that has the last layer of the one that was fitted, and another body."""
    if noise is None:  # saved by an earlier version
        return
    now = _noise(backbone)
    if now.shape != noise.shape or not (now - noise).norm() <= _SAME * noise.norm():
        raise ValueError(
            f"the classifier has the last layer that {path} was fitted for, and gives other features; "
            "load the weights that it was fitted with, or fit anew"
        )


def _noise(backbone: Backbone) -> Tensor:
    """What the body makes of noise."""
    return backbone.probe(backbone.image_shape or ()).mean.detach().cpu().float().contiguous()


def _unpacked(packed: bytes, path: Path) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(packed)
    except SafetensorError as error:
        raise ValueError(f"{path / TENSORS} is not a readable safetensors file: {error}") from None


def _tensors(detector: Detector) -> dict[str, Tensor]:
    """All that goes into the file of tensors."""
    found = _buffers(detector)
    if detector.calibration is not None:
        found[_CALIBRATION] = detector.calibration.scores
    if detector.class_counts is not None:
        found[_COUNTS] = detector.class_counts
    if len(detector.sketch.hashes):
        found[_HASHES] = detector.sketch.hashes
    found[_NOISE] = _noise(detector.backbone)
    return found


def _whole_numbers(values: Tensor | None, shape: tuple[int, ...] | None, file: Path) -> Tensor | None:
    """The tensor, if it is a row of whole numbers from 0 on."""
    sound = values is None or (values.dtype == torch.int64 and values.shape == shape and bool((values >= 0).all()))
    if not sound:
        raise ValueError(f"{file}: what it remembers of the fit images is broken; fit the detector anew")
    return values


def _buffers(detector: Detector) -> dict[str, Tensor]:
    """The fitted buffers by ``stages.<position>.<name>``, positions counted over all branches."""
    stages = enumerate(detector.stages)
    return {f"stages.{position}.{name}": getattr(stage, name) for position, stage in stages for name in stage.fitted}


def _fill(detector: Detector, tensors: dict[str, Tensor], declared: dict[str, Any], path: Path) -> None:
    expected = _buffers(detector)
    for problem, names in (
        ("lacks", expected.keys() - tensors.keys()),
        ("has unknown", tensors.keys() - expected.keys()),
    ):
        if names:
            raise ValueError(f"{path / TENSORS} {problem} tensor {sorted(names)[0]!r} for {detector.spec!r}")
    device = next(detector.backbone.classifier.module.parameters()).device
    for name, tensor in tensors.items():
        found = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        if declared.get(name) != found:
            raise ValueError(f"{path / TENSORS}: tensor {name!r} is {found}, and {JSON} says {declared.get(name)}")
        _, position, buffer = name.split(".")
        setattr(detector.stages[int(position)], buffer, tensor.to(device))


def _try(detector: Detector, path: Path) -> None:
    """Score noise once: tensors that do not belong to this model are found here, not in use."""
    for name, tensor in _buffers(detector).items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"{path / TENSORS}: tensor {name!r} holds NaN or infinity")
    if detector.fuse is not None and bool((detector.fuse.reference.diff(dim=1) < 0).any()):
        raise ValueError(f"{path / TENSORS}: the scores that {detector.fuse.name} ranks against are not in order")
    noise = torch.randn((2, *(detector.backbone.image_shape or ())), generator=torch.Generator().manual_seed(0))
    try:
        scores = detector.score_images(noise)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ValueError(f"{path / TENSORS} does not fit {detector.spec!r}: {str(error).splitlines()[0]}") from error
    if scores.shape != (2,):
        raise ValueError(f"{path / TENSORS} does not fit {detector.spec!r}: scores of shape {tuple(scores.shape)}")


def _backbone(model: nn.Module | Backbone, described: dict[str, Any], path: Path) -> Backbone:
    if isinstance(model, nn.Module) and described.get("kind") == "class token":  # whoever fitted it asked for it
        model = Backbone(model, tokens="class")
    backbone = Backbone.wrap(model)
    shape: Any = described.get("image_shape")
    sound = isinstance(shape, list) and 0 < len(shape) < 6 and all(type(side) is int and side > 0 for side in shape)
    if not sound or math.prod(shape) > 2**28:
        raise ValueError(f"{path / JSON}: backbone.image_shape must be a list of sizes, got {shape!r}")
    backbone.probe(tuple(shape))
    now = backbone.describe()
    for key in ("tap", "head", "channels", "classes"):
        if now[key] != described.get(key):
            raise ValueError(
                f"this {now['model']} has {key} {now[key]!r}, and {path} was fitted with {described.get(key)!r}; "
                f"load it with the model that it was fitted for"
            )
    return backbone


def _calibration(
    value: dict[str, Any] | None, scores: Tensor | None, classes: int | None, path: Path
) -> Calibration | None:
    if value is None and scores is None:
        return None
    try:
        if value is None or scores is None:
            raise ValueError(f"{'the text' if value is None else 'the scores'} of it are missing")
        return Calibration.from_dict(value, scores, classes=classes)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise ValueError(f"{path / JSON}: its calibration is broken: {error}; calibrate the detector anew") from None


def _checked(text: bytes, path: Path) -> dict[str, Any]:
    try:
        record = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON that a detector has: {error}") from None
    if not isinstance(record, dict) or not isinstance(record.get("format"), int):
        raise ValueError(f"{path} is not a detector: it has no format number")
    if record["format"] != FORMAT:
        raise ValueError(
            f"{path} has format {record['format']}; this davis ({__version__}) reads {FORMAT}: "
            + ("update davis" if record["format"] > FORMAT else "fit and save the detector anew")
        )
    for problem, names in (("lacks", _FIELDS.keys() - record.keys()), ("has unknown", record.keys() - _FIELDS.keys())):
        if names:
            raise ValueError(f"{path} {problem} field {sorted(names)[0]!r}")
    if isinstance(record["images_seen"], int) and record["images_seen"] < 0:
        raise ValueError(f"{path}: images_seen is {record['images_seen']}")
    for name, kinds in _FIELDS.items():
        if not isinstance(record[name], kinds) or isinstance(record[name], bool):
            raise ValueError(f"{path}: field {name!r} is a {type(record[name]).__name__}, not a {kinds[0].__name__}")
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"no detector there: {path} does not exist") from None


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
