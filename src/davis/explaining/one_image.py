"""explain: one image through one detector, or through every one of those that are fused."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, final

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from davis.branch import Branch
from davis.data import Preprocessing, decode
from davis.detector import Detector
from davis.explaining.attribution import by_channel, by_place, nearest, score_of, score_of_map
from davis.explaining.explanation import Channel, Explanation, FusedExplanation
from davis.pooling import summarise
from davis.stages import Fuse, Mean, NotFittedError
from davis.stages.fusions import log_p_values
from davis.types import Features, Logits, Map, at_least_float32, double

Array = NDArray[Any]


@final
@dataclass(frozen=True)
class _Seen:
    """One image as the classifier saw it, and how much is asked about it."""

    activation_map: Map
    logits: Logits
    picture: Array
    channels: int
    neighbours: int


def explain(
    detector: Detector,
    image: Tensor | Image.Image | str | os.PathLike[str],
    *,
    channels: int = 10,
    neighbours: int = 5,
) -> Explanation | FusedExplanation:
    """Why the detector scores an image as it does.

    The image is a tensor as the classifier takes it, or a picture or file, which the detector's own preprocessing makes
    into one. Both attributions are integrated gradients (Sundararajan et al., 2017): ``moved`` on the path from the
    mean to the pooled features, channel by channel, adds up to the difference of the two scores; ``places`` on the path
    from a silent map to this one, through the detector's own pooling, to the score above that of silence.

    Of fused detectors each is explained, and which of them decides is said: ``found.branches``, ``found.decisive``.
    """
    if not isinstance(detector, Detector):
        raise TypeError(f"explain takes a davis.Detector; a {type(detector).__name__} was given")
    for setting, value in (("channels", channels), ("neighbours", neighbours)):
        if not isinstance(value, Integral) or value < 0:
            raise ValueError(f"{setting} must be a whole number, 0 or more; got {value!r}")
    _check(detector)
    pixels = _prepared(detector, image)
    with torch.inference_mode(False), torch.no_grad():  # in inference mode there are no gradients to take
        activation_map, logits = detector.backbone.look(pixels.clone() if pixels.is_inference() else pixels)
        activation_map = _folded(activation_map, pixels)
        if activation_map.ndim != 4:
            tokens = "" if detector.backbone.kind == "map" else ", a list of tokens that fill no grid"
            raise ValueError(
                f"explain draws maps of two spatial axes, and this model's is {tuple(activation_map.shape[1:])}"
                f"{tokens}; its channels have no place in a picture"
            )
        picture = _picture(detector, pixels[0])
        seen = _Seen(at_least_float32(activation_map), logits, picture, channels, neighbours)
        with torch.autocast(activation_map.device.type, enabled=False):  # as detectors score
            found = [_explained(detector, branch, seen) for branch in detector.composition]
            whole = found[0] if detector.fuse is None else _fused(detector, detector.fuse, found)
    return _judged(detector, whole)


def _folded(activation_map: Map, pixels: Tensor) -> Map:
    """A list of tokens as the grid of patches that it is, row by row; itself where they fill no such grid."""
    if activation_map.ndim != 3 or pixels.ndim != 4:
        return activation_map
    (height, width), count = pixels.shape[2:], activation_map.shape[2]
    rows = round((count * height / width) ** 0.5)
    if rows == 0 or count % rows or rows * width != count // rows * height or height % rows:
        return activation_map  # of patches there is a whole number of pixels; with other tokens among them seldom
    return activation_map.reshape(*activation_map.shape[:2], rows, count // rows)


def _judged(detector: Detector, found: Explanation | FusedExplanation) -> Explanation | FusedExplanation:
    """With the verdict of a detector that is calibrated."""
    if detector.calibration is None:
        return found
    held, place = detector.calibration, (torch.tensor([found.score], dtype=torch.float64), torch.tensor([found.label]))
    return replace(
        found,
        p_value=held.p_values(*place).item(),
        is_ood=bool(held.is_ood(*place)),
        threshold=detector.threshold,
        held_out=held.sizes[0 if held.groups is None else held.groups[found.label]],
    )


def _explained(detector: Detector, branch: Branch, seen: _Seen) -> Explanation:
    """One detector, or one of those that are fused."""
    backbone, activation_map, logits = detector.backbone, seen.activation_map, seen.logits
    branch.to(activation_map.device)
    activations = summarise(activation_map, logits, branch.reads)
    pooled, mean = branch.scoring_pool(activations), Mean()(activations)
    moved = by_channel(backbone, branch, mean, pooled)
    places = by_place(backbone, branch, activation_map, logits)
    heat = F.interpolate(places[None, None].float(), size=seen.picture.shape[:2], mode="bilinear")[0, 0]
    score, plain = (float(score_of(backbone, branch, features)) for features in (pooled, mean))
    for name, values in (("score", torch.tensor([score, plain])), ("moved", moved), ("places", places)):
        if not values.isfinite().all():
            raise ValueError(
                f"{branch.text()!r} gave NaN or infinity ({name}); its arithmetic overflows on this image: "
                "choose a milder setting or another method"
            )
    probability, label = double(logits[0]).softmax(0).max(0)
    return Explanation(
        spec=branch.text(),
        score=score,
        plain=plain,
        silent=float(score_of_map(backbone, branch, torch.zeros_like(activation_map), logits)),
        label=int(label),
        probability=float(probability),
        channels=_strongest(seen, moved, mean, pooled, signed=getattr(branch.scoring_pool, "signed", False)),
        neighbours=nearest(backbone, branch, pooled, seen.neighbours),
        moved=moved.cpu().numpy(),
        places=places.cpu().numpy(),
        heat=double(heat).cpu().numpy(),
        picture=seen.picture,
    )


def _strongest(seen: _Seen, moved: Tensor, mean: Features, pooled: Features, *, signed: bool) -> list[Channel]:
    """The channels that moved the score most; under average pooling none did."""
    order = moved.abs().argsort(descending=True, stable=True)[: seen.channels]
    order = order[moved[order] != 0]
    rows, columns = seen.activation_map.shape[2:]
    height, width = seen.picture.shape[:2]
    # A signed pooling goes down where the mean is negative: what it took of such a channel is its least value.
    up = torch.where(mean[0] < 0, -1, 1)[order] if signed else torch.ones_like(order)
    peaks = (seen.activation_map[0].flatten(1)[order] * up[:, None]).argmax(1)
    return [
        Channel(
            index=index,
            moved=float(moved[index]),
            mean=float(mean[0, index]),
            pooled=float(pooled[0, index]),
            x=int((where % columns + 0.5) * width / columns),
            y=int((where // columns + 0.5) * height / rows),
        )
        for index, where in zip(order.tolist(), peaks.tolist(), strict=True)
    ]


def _fused(detector: Detector, fuse: Fuse, found: list[Explanation]) -> FusedExplanation:
    scores = torch.tensor([[each.score for each in found]], dtype=torch.float64, device=fuse.reference.device)
    log_p = log_p_values(scores, fuse.reference, fuse.tail)[0]
    p_values = log_p.exp().tolist()
    order = (log_p * fuse.shares(scores)).argsort(stable=True)  # a weighted p-value speaks with its weight
    return FusedExplanation(
        spec=detector.spec,
        score=float(detector.composition.fused(scores)),
        label=found[0].label,
        probability=found[0].probability,
        branches=[replace(found[place], p_value=p_values[place]) for place in order.tolist()],
        picture=found[0].picture,
    )


def _check(detector: Detector) -> None:
    if not detector.is_fitted:
        raise NotFittedError(f"{detector.spec!r} is not fitted; call fit before explain")
    if detector.needs_pixels:
        raise ValueError(
            f"{detector.spec!r} moves the image before it scores it, so no map belongs to its score; "
            "explain a detector that takes images as they are"
        )


def _prepared(detector: Detector, image: Tensor | Image.Image | str | os.PathLike[str]) -> Tensor:
    """(1, channel, height, width) as the classifier takes it."""
    if isinstance(image, Tensor):
        pixels = image if image.ndim == 4 else image[None]
        if pixels.ndim != 4 or len(pixels) != 1:
            raise ValueError(f"explain takes one image (channel, height, width), got {tuple(image.shape)}")
        return pixels
    if not isinstance(image, Image.Image | str | os.PathLike):
        raise TypeError(
            f"explain takes a file, a PIL image, or a tensor as the classifier takes it, not a {type(image).__name__}"
        )
    if detector.preprocessing is None:
        raise ValueError(
            "the detector does not know how pictures are prepared; set detector.preprocessing to a "
            "davis.data.Preprocessing, or give a tensor"
        )
    preprocessing = Preprocessing.from_dict(detector.preprocessing)
    return (preprocessing(image) if isinstance(image, Image.Image) else decode(Path(image), preprocessing))[None]


def _picture(detector: Detector, pixels: Tensor) -> Array:
    """What the classifier saw as a picture: the preprocessing undone where it is known, else stretched to the range."""
    values = pixels.detach().float().cpu()
    if detector.preprocessing is not None:
        known = Preprocessing.from_dict(detector.preprocessing)
        mean, std = (torch.tensor(each).reshape(-1, 1, 1) for each in (known.mean, known.std))
        values = values * std + mean
    else:
        values = (values - values.min()) / (values.max() - values.min()).clamp_min(1e-12)
    grey = values if len(values) == 3 else values.mean(0, keepdim=True).expand(3, -1, -1)
    picture: Array = (grey.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return picture
