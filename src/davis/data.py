"""Images on disk -> batches of tensors: the only code that decodes pictures."""

from __future__ import annotations

import io
import os
import random
import stat
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
SUFFIXES = (".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What a picture may be, whatever its name says; Pillow alone would start Ghostscript for PostScript."""

INTERPOLATIONS = {mode.name.lower(): mode for mode in Image.Resampling}
ASPECTS = ("keep", "stretch")

Item = TypeVar("Item")
OnError: TypeAlias = Callable[[Path, "ImageError"], None]

MOST_PIXELS = 8192  # of a side; no classifier takes as many, and pictures of more would fill the memory

_AHEAD = 2  # batches that threads decode before they are asked for
_KINDS = 5  # of files that are left out, named in one line


class ImageError(ValueError):
    """A picture that cannot be decoded."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a picture becomes the tensor that a classifier was trained on, as data.

    The shorter side is brought to ``resize`` (with ``aspect="stretch"`` both are), the middle square of ``size`` is
    cut out, and values in [0, 1] become ``(value - mean) / std``. One mean makes grey images, three make RGB.

    >>> Preprocessing(size=32, mean=(0.5,), std=(0.25,)).shape
    (1, 32, 32)
    """

    size: int = 224
    resize: int | None = None  # None: the same as size
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    interpolation: str = "bilinear"
    aspect: str = "keep"

    def __post_init__(self) -> None:
        object.__setattr__(self, "resize", self.size if self.resize is None else self.resize)
        for name in ("size", "resize"):
            side = getattr(self, name)
            if not isinstance(side, int) or isinstance(side, bool) or side < 1:
                raise ValueError(f"preprocessing: {name} must be a whole number of pixels from 1, got {side!r}")
            if side > MOST_PIXELS:
                raise ValueError(f"preprocessing: {name} must be at most {MOST_PIXELS} pixels, got {side}")
        if self.edge < self.size:
            raise ValueError(f"preprocessing: resize={self.edge} leaves too little to cut out size={self.size}")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _channel_values(name, getattr(self, name)))
        if len(self.mean) != len(self.std):
            raise ValueError(f"preprocessing: {len(self.mean)} means and {len(self.std)} stds; give as many of each")
        if min(self.std) <= 0:
            raise ValueError(f"preprocessing: std must be greater than 0, got {list(self.std)}")
        for name, known in (("interpolation", tuple(INTERPOLATIONS)), ("aspect", ASPECTS)):
            if getattr(self, name) not in known:
                raise ValueError(f"preprocessing: unknown {name} {getattr(self, name)!r}; known: {', '.join(known)}")

    @property
    def edge(self) -> int:
        """What the shorter side becomes before the cut."""
        return self.size if self.resize is None else self.resize

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channel, height, width) of the tensors."""
        return len(self.mean), self.size, self.size

    def to_dict(self) -> dict[str, object]:
        """Plain values, for an artifact."""
        values = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """What `to_dict` gave, checked."""
        known = {field.name for field in fields(cls)}
        for problem, names in (("lacks", known - values.keys()), ("has unknown", values.keys() - known)):
            if names:
                raise ValueError(
                    f"preprocessing {problem} {sorted(names)[0]!r}; its fields are {', '.join(sorted(known))}"
                )
        return cls(**values)

    def __call__(self, picture: Image.Image) -> Tensor:
        """(channel, size, size) float32."""
        if min(picture.size) < 1:
            raise ValueError(f"the picture is {picture.width} x {picture.height} pixels; there is nothing in it")
        picture = _middle(_eight_bit(picture, grey=len(self.mean) == 1))
        picture = picture.resize(self._resized(*picture.size), INTERPOLATIONS[self.interpolation])
        left, top = (round((side - self.size) / 2) for side in picture.size)
        picture = picture.crop((left, top, left + self.size, top + self.size))
        pixels = torch.from_numpy(numpy.array(picture)).reshape(self.size, self.size, -1).permute(2, 0, 1)
        mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in (self.mean, self.std))
        return (pixels.float() / 255 - mean) / std

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        if self.aspect == "stretch":
            return self.edge, self.edge
        short = min(width, height)
        return self.edge * width // short, self.edge * height // short


def _middle(picture: Image.Image, ratio: int = 20) -> Image.Image:
    """A very long picture cut to its middle: the rest would be resized at great cost and then cut off."""
    width, height = picture.size
    longest = ratio * min(width, height)
    if max(width, height) <= longest:
        return picture
    left, top = max((width - longest) // 2, 0), max((height - longest) // 2, 0)
    return picture.crop((left, top, left + min(width, longest), top + min(height, longest)))


def _channel_values(name: str, values: object) -> tuple[float, ...]:
    numbers = tuple(values) if isinstance(values, list | tuple) else ()
    if len(numbers) not in (1, 3) or not all(isinstance(n, int | float) and abs(n) < float("inf") for n in numbers):
        raise ValueError(f"preprocessing: {name} must be one number (grey) or three (RGB), got {values!r}")
    return tuple(float(number) for number in numbers)


_PHOTOMETRIC = 262  # TIFF's tag that says whether zero is black or white


def _eight_bit(picture: Image.Image, *, grey: bool) -> Image.Image:
    """The picture upright, in RGB or grey with 8 bits; transparent parts white, as viewers show them."""
    sixteen_bit = picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in ("PNG", "PPM"))
    if picture.mode in ("I", "F") and not sixteen_bit:
        raise ValueError(f"pixels of mode {picture.mode!r} have no known range; convert them to 8 or 16 bits")
    clear = picture.info.get("transparency")
    white_is_zero = picture.format == "TIFF" and dict(getattr(picture, "tag_v2", {})).get(_PHOTOMETRIC) == 0
    picture = ImageOps.exif_transpose(picture)
    if sixteen_bit:  # Pillow's own conversion clips at 255, and knows neither of these two
        values = numpy.asarray(picture).astype(numpy.float64)
        values = numpy.where(values == clear, 65535, 65535 - values if white_is_zero else values)
        picture = Image.fromarray((values / 257).round().clip(0, 255).astype(numpy.uint8))
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("L" if grey else "RGB")


def opened(content: bytes) -> Image.Image:
    """The picture that a file's bytes hold.

    Pillow is never given a path: it maps some TIFF files into memory then, and scrambles those that are to be turned.
    """
    return Image.open(io.BytesIO(content), formats=FORMATS)


def decode(file: Path, preprocessing: Preprocessing) -> Tensor:
    """The picture in a file as the tensor that the classifier takes."""
    try:
        with opened(file.read_bytes()) as picture:
            return preprocessing(picture)
    except Exception as error:  # decoders of broken files raise nearly anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = "not an image, or of an unknown kind"
        raise ImageError(f"cannot read {file}: {reason.removesuffix(f': {str(file)!r}')}") from error


class Images:
    """Pictures as batches, in the order of the files; may be read any number of times.

    Yields images, or (images, labels) where labels were given. A picture that cannot be decoded goes to
    ``on_error`` and is left out; without ``on_error`` it is raised. Threads decode ahead where ``workers`` is not 0.
    """

    def __init__(
        self,
        files: Sequence[Path],
        preprocessing: Preprocessing,
        *,
        batch: int = 64,
        labels: Sequence[int] | None = None,
        workers: int = 0,
        on_error: OnError | None = None,
    ) -> None:
        if batch < 1 or workers < 0:
            raise ValueError(f"batch must be at least 1 and workers at least 0, got batch={batch}, workers={workers}")
        if labels is not None and len(labels) != len(files):
            raise ValueError(f"{len(files)} files came with {len(labels)} labels; give one for each")
        self.files = list(files)
        self.preprocessing = preprocessing
        self.batch = batch
        self.labels = None if labels is None else list(labels)
        self.workers = workers
        self.on_error = on_error

    def __len__(self) -> int:
        """The number of batches, counting those in which nothing can be decoded."""
        return -(-len(self.files) // self.batch)

    def __iter__(self) -> Iterator[Tensor | tuple[Tensor, Tensor]]:
        for positions, images in self.numbered():
            if self.labels is None:
                yield images
            else:
                yield images, torch.tensor([self.labels[position] for position in positions])

    def numbered(self) -> Iterator[tuple[list[int], Tensor]]:
        """Each batch behind the positions of its pictures among the files."""
        for positions, decoded in self._decoded():
            kept: list[int] = []
            images: list[Tensor] = []
            for position, image in zip(positions, decoded, strict=True):
                if isinstance(image, Tensor):
                    kept.append(position)
                    images.append(image)
                elif self.on_error is None:
                    raise image
                else:
                    self.on_error(self.files[position], image)
            if images:
                yield kept, torch.stack(images)

    def _decoded(self) -> Iterator[tuple[range, Iterable[Tensor | ImageError]]]:
        count = len(self.files)
        chunks = [range(start, min(start + self.batch, count)) for start in range(0, count, self.batch)]
        if self.workers == 0:
            yield from ((chunk, map(self._attempt, chunk)) for chunk in chunks)
            return
        pool = ThreadPoolExecutor(self.workers)
        try:
            waiting: deque[tuple[range, Iterable[Tensor | ImageError]]] = deque()
            for chunk in chunks:
                waiting.append((chunk, pool.map(self._attempt, chunk)))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft()
            yield from waiting
        finally:
            pool.shutdown(cancel_futures=True)

    def _attempt(self, position: int) -> Tensor | ImageError:
        try:
            return decode(self.files[position], self.preprocessing)
        except ImageError as error:
            return error


def image_files(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files among the paths as they are, and the pictures inside the folders, sorted; hidden ones are left out.

    A warning says what else is left out: files of other kinds, folders that cannot be read.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = look_into(path)
            if not inside.pictures:
                asides = "".join(f"; {aside}" for aside in inside.left_out)
                raise ValueError(f"no images in {path}; looked for {', '.join(SUFFIXES)}{asides}")
            for aside in inside.left_out:
                warnings.warn(f"{path}: {aside}", stacklevel=2)
            found.update(dict.fromkeys(inside.pictures))
        elif path.is_file():
            found[path] = None
        elif path.exists():
            raise ValueError(f"{path} is neither a file nor a folder")
        else:
            raise FileNotFoundError(f"no such file or folder: {path}")
    return list(found)


class Inside(NamedTuple):
    """What a folder holds, and the folders in it."""

    pictures: list[Path]  # sorted
    left_out: list[str]  # in words, what else is there


def look_into(folder: Path) -> Inside:
    """The pictures in a folder and below it, and what is left out beside hidden files."""
    pictures: list[Path] = []
    others: Counter[str] = Counter()
    unread: list[OSError] = []
    entered: set[str] = set()
    for parent, folders, names in os.walk(folder, followlinks=True, onerror=unread.append):
        if os.path.realpath(parent) in entered:  # a link to a folder above would never end
            folders.clear()
            continue
        entered.add(os.path.realpath(parent))
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            file = Path(parent, name)
            if name.startswith("."):
                continue
            if not _may_be_read(file):
                others["pipe or device"] += 1
            elif name.lower().endswith(SUFFIXES):
                pictures.append(file)
            else:
                others[file.suffix.lower() or "no suffix"] += 1
    left_out = [f"cannot read the folder {error.filename} ({error.strerror}), it is left out" for error in unread]
    if others:
        kinds = ", ".join(kind for kind, _ in others.most_common(_KINDS)) + (", ..." if len(others) > _KINDS else "")
        left_out.append(f"{others.total()} files of other kinds left out ({kinds})")
    return Inside(sorted(pictures), left_out)


def _may_be_read(file: Path) -> bool:
    """Whether reading comes to an end: a pipe would be waited for. A link to nothing is for who reads it to name."""
    try:
        return stat.S_ISREG(file.stat().st_mode)
    except OSError:
        return True


def class_names(folder: Path) -> tuple[str, ...]:
    """The folders in a folder, sorted, as in one folder per class; those without a picture keep their places."""
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")))


def class_folders(folder: Path, files: Iterable[Path]) -> dict[Path, str]:
    """The name of the subfolder of each file, as in one folder per class; empty where some file is in none."""
    names = {file: file.relative_to(folder).parts[0] for file in files}
    return {} if any(folder / name == file for file, name in names.items()) else names


def shuffled(items: Sequence[Item], seed: int) -> list[Item]:
    """The same items in an order that depends on the seed alone."""
    return random.Random(seed).sample(items, len(items))


def split(files: Sequence[Item], share: float, seed: int) -> tuple[list[Item], list[Item]]:
    """The files in two, drawn at random: the rest, and a share of them.

    >>> rest, held = split(["a", "b", "c", "d"], share=0.25, seed=0)
    >>> len(rest), len(held)
    (3, 1)
    """
    if not 0 < share < 1:
        raise ValueError(f"the share to hold out must lie between 0 and 1, got {share}")
    held = round(share * len(files))
    if held in (0, len(files)):
        raise ValueError(f"a share of {share} of {len(files)} images leaves one side empty; give more images")
    order = shuffled(files, seed)
    return order[held:], order[:held]
