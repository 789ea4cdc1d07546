"""Why a score came out as it did: which channels moved it, where in the image, and what it was compared with."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from davis.branch import Branch
from davis.data import Preprocessing, decode
from davis.detector import Detector
from davis.pooling import summarise
from davis.stages import Mean, NotFittedError
from davis.types import Features, Map, at_least_float32

Array = NDArray[Any]

_STEPS = 32  # of each path
_VALUES = 2**24  # of maps held at a time
_UP, _DOWN = (217, 95, 2), (27, 110, 180)  # raises the score, lowers it: apart for the colour-blind too


@dataclass(frozen=True)
class Channel:
    """One channel of the last map, and what it did."""

    index: int
    moved: float  # what it adds to the score when the detector's pooling takes the mean's place
    mean: float
    pooled: float  # what the detector's pooling made of it
    x: int  # where its maximum sits in the image, in pixels
    y: int


@dataclass(frozen=True)
class Neighbour:
    """One of the nearest in-distribution images that a bank holds."""

    row: int  # in the bank
    distance: float  # between unit vectors, or raw ones where the score compares those
    label: int  # the class that the classifier reads from its features


@dataclass(frozen=True)
class Explanation:
    """Everything that `explain` found about one image, as plain values and arrays."""

    spec: str
    score: float
    plain: float  # the score of the same detector with average pooling
    label: int  # the class that the classifier names
    probability: float
    channels: list[Channel]  # those that moved the score most, the strongest first
    neighbours: list[Neighbour]  # the nearest first; empty where the detector keeps no bank
    moved: Array  # (channel,) adds up to score - plain
    places: Array  # (rows, columns) what each position of the map adds to the score
    heat: Array  # (height, width) the same over the image
    picture: Array  # (height, width, 3) uint8, what the classifier saw

    def to_dict(self) -> dict[str, Any]:
        """The plain values, for JSON; the arrays are left out."""
        fields = ("spec", "score", "plain", "label", "probability")
        found: dict[str, Any] = {name: getattr(self, name) for name in fields}
        found["channels"] = [vars(channel) for channel in self.channels]
        found["neighbours"] = [vars(neighbour) for neighbour in self.neighbours]
        return found

    def mask(self, share: float = 0.2) -> Array:
        """(height, width) bool: the marked region, the share of the image that adds most to the score."""
        if not 0 < share < 1:
            raise ValueError(f"the share of the image to mark must lie between 0 and 1, got {share}")
        order = np.argsort(-self.heat, axis=None, kind="stable")
        marked = np.zeros(self.heat.size, dtype=bool)
        marked[order[: round(share * self.heat.size)]] = True
        return marked.reshape(self.heat.shape)

    def draw(self, *, channels: int = 5) -> Image.Image:
        """The picture under its heat map, circles where the strongest channels have their maxima."""
        strength = np.abs(self.heat).max() or 1.0
        weight = np.clip(np.abs(self.heat) / strength, 0, 1)[..., None] * 0.85
        colour = np.where(self.heat[..., None] >= 0, np.array(_UP), np.array(_DOWN))
        grey = self.picture.mean(2, keepdims=True).repeat(3, 2) * 0.75 + 255 * 0.1
        image = Image.fromarray((grey * (1 - weight) + colour * weight).round().astype(np.uint8))
        pen = ImageDraw.Draw(image)
        radius = max(self.heat.shape) // 40 + 2
        for channel in self.channels[:channels]:
            box = (channel.x - radius, channel.y - radius, channel.x + radius, channel.y + radius)
            pen.ellipse(box, outline="white", width=2)
        return image

    def save(self, folder: str | os.PathLike[str], name: str = "explanation") -> list[Path]:
        """Write NAME.png (the picture and its heat map), NAME.npz (the arrays) and NAME.json (the rest)."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        files = [place / f"{name}.{suffix}" for suffix in ("png", "npz", "json")]
        pair = Image.new("RGB", (2 * self.picture.shape[1] + 8, self.picture.shape[0]), "white")
        pair.paste(Image.fromarray(self.picture), (0, 0))
        pair.paste(self.draw(), (self.picture.shape[1] + 8, 0))
        pair.save(files[0])
        np.savez_compressed(
            files[1], heat=self.heat, places=self.places, moved=self.moved, mask=self.mask(), picture=self.picture
        )
        files[2].write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        return files


def explain(
    detector: Detector,
    image: Tensor | Image.Image | str | os.PathLike[str],
    *,
    channels: int = 10,
    neighbours: int = 5,
) -> Explanation:
    """Why the detector scores an image as it does.

    The image is a tensor as the classifier takes it, or a picture or file, which the detector's own preprocessing makes
    into one. Both attributions are integrated gradients (Sundararajan et al., 2017): ``moved`` on the path from the
    mean to the pooled features, channel by channel, adds up to the difference of the two scores; ``places`` on the path
    from a silent map to this one, through the detector's own pooling, to the score above that of silence.
    """
    branch = _branch(detector)
    pixels = _prepared(detector, image)
    picture = _picture(detector, pixels[0])
    activation_map, logits = detector.backbone.look(pixels)
    if activation_map.ndim != 4:
        raise ValueError(
            f"explain draws maps of two spatial axes, and this model's is {tuple(activation_map.shape[1:])}; "
            "its channels have no place in a picture"
        )
    branch.to(activation_map.device)
    activation_map = at_least_float32(activation_map)
    reads = branch.reads | {"max"}
    activations = summarise(activation_map, logits, reads)
    pooled, mean = branch.scoring_pool(activations), Mean()(activations)
    moved = _moved(detector, branch, mean, pooled)
    places = _places(detector, branch, activation_map, logits)
    size = pixels.shape[2:]
    with torch.no_grad():
        score, plain = (float(_score(detector, branch, features)) for features in (pooled, mean))
        heat = F.interpolate(places[None, None].float(), size=tuple(size), mode="bilinear")[0, 0]
    probability, label = logits[0].double().softmax(0).max(0)
    strongest = moved.abs().argsort(descending=True, stable=True)[:channels]
    rows, columns = activation_map.shape[2:]
    return Explanation(
        spec=detector.spec,
        score=score,
        plain=plain,
        label=int(label),
        probability=float(probability),
        channels=[
            Channel(
                index=int(index),
                moved=float(moved[index]),
                mean=float(mean[0, index]),
                pooled=float(pooled[0, index]),
                x=int((int(where) % columns + 0.5) * size[1] / columns),
                y=int((int(where) // columns + 0.5) * size[0] / rows),
            )
            for index, where in zip(
                strongest.tolist(), activation_map[0].flatten(1).argmax(1)[strongest].tolist(), strict=True
            )
        ],
        neighbours=_neighbours(detector, branch, pooled, neighbours),
        moved=moved.cpu().numpy(),
        places=places.cpu().numpy(),
        heat=heat.double().cpu().numpy(),
        picture=picture,
    )


def _branch(detector: Detector) -> Branch:
    branches = [branch for branch in detector.branches if isinstance(branch, Branch)]
    if len(branches) != 1:
        raise ValueError(f"{detector.spec!r} fuses {len(branches)} detectors; explain one of them at a time")
    (branch,) = branches
    if not detector.is_fitted:
        raise NotFittedError(f"{detector.spec!r} is not fitted; call fit before explain")
    if branch.needs_pixels:
        raise ValueError(
            f"{detector.spec!r} moves the image before it scores it, so no map belongs to its score; "
            "explain a detector without odin or adascale"
        )
    return branch


def _prepared(detector: Detector, image: Tensor | Image.Image | str | os.PathLike[str]) -> Tensor:
    """(1, channel, height, width) as the classifier takes it."""
    if isinstance(image, Tensor):
        pixels = image if image.ndim == 4 else image[None]
        if pixels.ndim != 4 or len(pixels) != 1:
            raise ValueError(f"explain takes one image (channel, height, width), got {tuple(image.shape)}")
        return pixels
    if detector.preprocessing is None:
        raise ValueError(
            "the detector does not know how pictures are prepared; set detector.preprocessing, or give a tensor"
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


def _score(detector: Detector, branch: Branch, pooled: Features) -> Tensor:
    """(batch,) what the detector makes of pooled features."""
    features = branch.shape(detector.backbone.neck(pooled))
    logits = branch.logits(features, detector.backbone.classifier)
    scores: Tensor = branch.score(features, logits, detector.backbone.classifier)
    return scores


def _moved(detector: Detector, branch: Branch, mean: Features, pooled: Features) -> Tensor:
    """(channel,) integrated gradients from the mean to the pooled features."""
    steps = (torch.arange(_STEPS, device=mean.device, dtype=mean.dtype) + 0.5) / _STEPS
    with torch.enable_grad():
        path = (mean + steps[:, None] * (pooled - mean)).detach().requires_grad_()
        scores = _score(detector, branch, path)
        if not scores.requires_grad:
            raise ValueError(f"{detector.spec!r} has no gradient in its features; explain cannot follow it")
        (gradients,) = torch.autograd.grad(scores.sum(), path)
    return (gradients.double().mean(0) * (pooled - mean)[0].double()).detach()


def _places(detector: Detector, branch: Branch, activation_map: Map, logits: Tensor) -> Tensor:
    """(rows, columns) integrated gradients from a silent map, all zeros, to this one, summed over the channels."""
    total = torch.zeros_like(activation_map[0], dtype=torch.float64)
    middles = (torch.arange(_STEPS, device=activation_map.device, dtype=activation_map.dtype) + 0.5) / _STEPS
    for part in middles.split(max(1, _VALUES // activation_map.numel())):
        with torch.enable_grad():
            path = (part[:, None, None, None] * activation_map).detach().requires_grad_()
            activations = summarise(path, logits.expand(len(part), -1), branch.reads)
            scores = _score(detector, branch, branch.scoring_pool(activations))
            (gradients,) = torch.autograd.grad(scores.sum(), path)
        total += gradients.double().sum(0)
    return (total / _STEPS * activation_map[0].double()).sum(0)


def _neighbours(detector: Detector, branch: Branch, pooled: Features, count: int) -> list[Neighbour]:
    """The rows of the score's bank that are nearest to the features that reach it."""
    score = branch.score
    bank = getattr(score, "bank", None)
    if bank is None or count < 1:
        return []
    with torch.no_grad():
        features = branch.shape(detector.backbone.neck(pooled))
        rows = bank.to(features.dtype) + (score.centre.to(features.dtype) if hasattr(score, "centre") else 0)
        length = torch.linalg.vector_norm(features, dim=1, keepdim=True)
        if getattr(score, "normalize", True):
            unit = F.normalize(rows, dim=1)
            distances = torch.linalg.vector_norm(unit - features / length, dim=1)
            rows = unit * length  # a bank of unit vectors forgot how long they were; the image's own length stands in
        else:
            distances = torch.linalg.vector_norm(rows - features, dim=1)
        nearest = distances.topk(min(count, len(rows)), largest=False)
        labels = branch.logits(rows[nearest.indices], detector.backbone.classifier).argmax(1)
    found = zip(nearest.indices.tolist(), nearest.values.tolist(), labels.tolist(), strict=True)
    return [Neighbour(row=row, distance=distance, label=label) for row, distance, label in found]
