"""Proxies: stand-ins for OOD images, made from in-distribution ones alone.

Each acts on pixels in [0, 1] and gives pixels in [0, 1] (noise on request beyond): what a camera could have
delivered. Images arrive as the classifier takes them, so they are taken back to pixels first and normalised again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from davis.data import Preprocessing
from davis.types import Images

Pixels: TypeAlias = Tensor  # (batch, channel, height, width) in [0, 1]

_SLACK = 0.02  # how far beyond [0, 1] pixels may lie before the normalisation is held to be another one


class Proxy(Protocol):
    """Makes stand-ins for OOD images out of in-distribution ones."""

    name: ClassVar[str]

    def __call__(self, pixels: Pixels, generator: torch.Generator) -> Pixels:
        """As many pictures as were given, none of which the classifier was made for."""
        ...


@dataclass(frozen=True)
class Noise:
    """Gaussian noise on every value, the proxy of the DAVIS paper: it writes N(0, 0.2), read as a deviation of 0.2.

    ``clip`` brings the values back to [0, 1].
    """

    name: ClassVar[str] = "noise"
    std: float = 0.2
    clip: bool = True

    def __call__(self, pixels: Pixels, generator: torch.Generator) -> Pixels:
        noise = torch.randn(pixels.shape, generator=generator, dtype=torch.float32).to(pixels)
        noisy = pixels + self.std * noise
        return noisy.clamp(0, 1) if self.clip else noisy


@dataclass(frozen=True)
class Patches:
    """Every picture is cut into grid x grid tiles, put together again in another order."""

    name: ClassVar[str] = "patches"
    grid: int = 4

    def __call__(self, pixels: Pixels, generator: torch.Generator) -> Pixels:
        batch, channels = pixels.shape[:2]
        side = self.grid
        height, width = pixels.shape[2] // side, pixels.shape[3] // side
        if min(height, width) < 1:
            raise ValueError(f"images of {pixels.shape[2]} x {pixels.shape[3]} do not make {side} x {side} tiles")
        orders = torch.stack([_another_order(side * side, generator) for _ in range(batch)]).to(pixels.device)
        cut = pixels[:, :, : side * height, : side * width].reshape(batch, channels, side, height, side, width)
        tiles = cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        moved = tiles[torch.arange(batch, device=pixels.device)[:, None], orders]
        whole = moved.unflatten(1, (side, side)).permute(0, 3, 1, 4, 2, 5)
        shuffled = pixels.clone()  # a rest that makes no whole tile stays where it is
        shuffled[:, :, : side * height, : side * width] = whole.flatten(4, 5).flatten(2, 3)
        return shuffled


@dataclass(frozen=True)
class Mix:
    """Two pictures of the batch, averaged with a weight; batches should hold more than one class."""

    name: ClassVar[str] = "mix"
    weight: float = 0.5

    def __call__(self, pixels: Pixels, generator: torch.Generator) -> Pixels:
        if len(pixels) < 2:
            return pixels[:0]  # nothing to mix with
        distance = int(torch.randint(1, len(pixels), (), generator=generator))
        return self.weight * pixels + (1 - self.weight) * pixels.roll(distance, 0)


@dataclass(frozen=True)
class Blur:
    """A Gaussian blur whose deviation is a share of the shorter side: 1.6 of 32 pixels, 11 of 224."""

    name: ClassVar[str] = "blur"
    share: float = 0.05

    def __call__(self, pixels: Pixels, generator: torch.Generator) -> Pixels:
        sigma = self.share * min(pixels.shape[2:])
        reach = min(math.ceil(3 * sigma), min(pixels.shape[2:]) - 1)
        steps = torch.arange(-reach, reach + 1, dtype=pixels.dtype, device=pixels.device)
        kernel = (-(steps**2) / (2 * sigma**2)).exp()
        kernel = (kernel / kernel.sum()).repeat(pixels.shape[1], 1, 1, 1)
        padded = F.pad(pixels, (reach, reach, reach, reach), mode="reflect")
        rows = F.conv2d(padded, kernel, groups=pixels.shape[1])
        return F.conv2d(rows, kernel.transpose(2, 3), groups=pixels.shape[1]).clamp(0, 1)


@dataclass(frozen=True)
class Colour:
    """Channels in another order, and in half of the pictures inverted; grey pictures are all inverted."""

    name: ClassVar[str] = "colour"

    def __call__(self, pixels: Pixels, generator: torch.Generator) -> Pixels:
        batch, channels = pixels.shape[:2]
        if channels == 1:
            return 1 - pixels
        orders = torch.stack([_another_order(channels, generator) for _ in range(batch)]).to(pixels.device)
        moved = pixels[torch.arange(batch, device=pixels.device)[:, None], orders]
        inverted = torch.rand(batch, generator=generator).to(pixels.device) < 0.5
        return torch.where(inverted[:, None, None, None], 1 - moved, moved)


PROXIES: dict[str, Callable[..., Proxy]] = {kind.name: kind for kind in (Noise, Patches, Mix, Blur, Colour)}

_RANGES: dict[str, tuple[float, float]] = {"std": (0, 10), "grid": (1, 64), "weight": (0, 0.9), "share": (0, 0.5)}


def parse_proxies(given: str | Iterable[str]) -> dict[str, Proxy]:
    """The proxies that a text such as 'noise(std=0.1), blur' names, each under its canonical text.

    >>> parse_proxies("noise(std=0.1), blur")
    {'noise(std=0.1)': Noise(std=0.1, clip=True), 'blur': Blur(share=0.05)}
    """
    texts = [given] if isinstance(given, str) else list(given)
    parts = [part.strip() for text in texts for part in re.split(r",(?![^(]*\))", text)]
    found = {_text(proxy): proxy for proxy in map(_one, parts)}
    if not found:
        raise ValueError(f"no proxy was given; known: {', '.join(PROXIES)}")
    return found


def make(
    images: Images, proxies: Iterable[Proxy], preprocessing: Preprocessing, generators: Sequence[torch.Generator]
) -> list[Images]:
    """What each proxy makes of a batch of images, in the units of the classifier."""
    mean, std = (
        torch.tensor(values).reshape(-1, 1, 1).to(images) for values in (preprocessing.mean, preprocessing.std)
    )
    if images.ndim != 4 or images.shape[1] != len(mean):
        raise ValueError(
            f"proxies are made of images (batch, {len(mean)}, height, width), as their preprocessing says; "
            f"got {tuple(images.shape)}; give preprocessing=, as the batches were made (of grey ones it has one mean)"
        )
    pixels = images * std + mean
    low, high = float(pixels.min()), float(pixels.max())
    if low < -_SLACK or high > 1 + _SLACK:
        raise ValueError(
            f"taken back to pixels, the images run from {low:.3g} to {high:.3g} instead of 0 to 1: they were not "
            f"normalised by mean {list(preprocessing.mean)} and std {list(preprocessing.std)}; pass "
            "preprocessing=davis.data.Preprocessing(mean=..., std=...) with their own"
        )
    pixels = pixels.clamp(0, 1)
    return [(proxy(pixels, own) - mean) / std for proxy, own in zip(proxies, generators, strict=True)]


def _another_order(count: int, generator: torch.Generator) -> Tensor:
    """A random order other than the one at hand."""
    while True:
        order = torch.randperm(count, generator=generator)
        if not torch.equal(order, torch.arange(count)):
            return order


def _one(text: str) -> Proxy:
    match = re.fullmatch(r"(\w+)\s*(?:\(([^()]*)\))?", text)
    if match is None or match[1] not in PROXIES:
        raise ValueError(f"unknown proxy {text[:100]!r}; known: {', '.join(PROXIES)}, settings as in noise(std=0.2)")
    settings: dict[str, object] = {}
    kind = PROXIES[match[1]]
    known = {field.name: field.type for field in fields(kind)}  # type: ignore[arg-type]
    for part in (match[2] or "").split(",") if match[2] else ():
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in known:
            raise ValueError(f"unknown setting {key!r} of {match[1]}; known: {', '.join(known) or 'none'}")
        settings[key] = _value(key, value, str(known[key]), text)
    return kind(**settings)


def _value(key: str, text: str, kind: str, whole: str) -> object:
    if kind == "bool":
        if text not in ("true", "false"):
            raise ValueError(f"{key} must be true or false in {whole!r}")
        return text == "true"
    low, high = _RANGES[key]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low < value <= high or (kind == "int" and not value.is_integer()):
        word = "a whole number" if kind == "int" else "a number"
        raise ValueError(f"{key} must be {word} above {low:g}, {high:g} at most, in {whole!r}")
    return int(value) if kind == "int" else value


def _text(proxy: Proxy) -> str:
    """The canonical text: settings at their default left out."""
    default = PROXIES[proxy.name]()
    shown = []
    for field in fields(proxy):  # type: ignore[arg-type]
        value = getattr(proxy, field.name)
        if value != getattr(default, field.name):
            shown.append(f"{field.name}={str(value).lower() if isinstance(value, bool) else f'{value:g}'}")
    return f"{proxy.name}({', '.join(shown)})" if shown else proxy.name
