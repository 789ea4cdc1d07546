"""Sets behind a dataset object: of torchvision, of Hugging Face, or your own."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image
from torch import Tensor

from davis.data import ImageError, OnError, Preprocessing
from davis.sets.reading import Batches, broken, counted, digest_of, numbered, once, prepared

IMAGE_KEYS = ("image", "img")
LABEL_KEYS = ("label", "labels", "fine_label")


@runtime_checkable
class Indexed(Protocol):
    """What has a length and items by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int, /) -> Any: ...


class ObjectSet:
    """The items of a dataset object: (picture, label), a dictionary of them, or a picture alone.

    A picture is a PIL image, an array (height, width[, 3]) or a tensor (3, height, width), of 8 bits or from 0 to 1;
    not normalised and not augmented, since ``preprocessing`` does what is to be done.
    """

    def __init__(
        self, source: Indexed, preprocessing: Preprocessing, *, name: str | None = None, on_error: OnError | None = None
    ) -> None:
        if len(source) == 0:
            raise ValueError(f"the dataset {type(source).__name__} is empty")
        self.name = name or type(source).__name__.lower()
        self.source = source
        self.preprocessing = preprocessing
        self._report = once(on_error)

    def __len__(self) -> int:
        return len(self.source)

    def fingerprint(self) -> str:
        """A digest of Hugging Face's own fingerprint, else of every picture and label; and of the preprocessing."""
        digest = digest_of(self.preprocessing)
        known = getattr(self.source, "_fingerprint", None)
        if isinstance(known, str):
            digest.update(f"{len(self)} {known}".encode())
            return digest.hexdigest()
        for position in range(len(self)):
            try:
                picture, label = self._item(position)
            except ImageError:
                digest.update(b"\nbroken\n")
            else:
                digest.update(f"\n{picture.mode} {picture.size} {label}\n".encode())
                digest.update(picture.tobytes())
        return digest.hexdigest()

    def batches(self, start: int, size: int) -> Batches:
        """Images from a position on, their labels, and how many pictures were read; broken ones are left out."""
        labels: list[int | None] = []  # filled as the items come
        decoded = numbered(self._decoded(start, labels), size, lambda item: self._place(start + item), self._report)
        return counted(decoded, labels, len(self) - start, size, self.preprocessing.shape)

    def _decoded(self, start: int, labels: list[int | None]) -> Iterator[Tensor | ImageError]:
        for position in range(start, len(self)):
            try:
                picture, label = self._item(position)
            except ImageError as error:
                labels.append(None)
                yield error
            else:
                labels.append(label)
                yield prepared(self._place(position), partial(_same, picture), self.preprocessing)

    def _place(self, position: int) -> Path:
        return Path(f"{self.name}[{position}]")

    def _item(self, position: int) -> tuple[Image.Image, int | None]:
        try:
            picture, label = _parts(self.source[position])
            if isinstance(picture, Image.Image):
                picture.load()
        except Unreadable:
            raise
        except Exception as error:  # decoders of broken files raise nearly anything
            raise broken(self._place(position), error) from error
        return _as_picture(picture), _as_label(label)


class Unreadable(TypeError):
    """Items that are no pictures with labels: the dataset is the wrong one, not a picture broken."""


def _same(picture: Image.Image) -> Image.Image:
    return picture


def _parts(item: object) -> tuple[object, object]:
    if isinstance(item, Mapping):
        image, label = (next((key for key in known if key in item), None) for known in (IMAGE_KEYS, LABEL_KEYS))
        if image is None:
            raise Unreadable(f"the dataset's items have {', '.join(map(str, item))}; one must be 'image' or 'img'")
        return item[image], None if label is None else item[label]
    if isinstance(item, tuple | list):
        return item[0], item[1] if len(item) > 1 else None
    return item, None


def _as_label(value: object) -> int | None:
    if value is None:
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # numbers of any library; the rest is refused
    except (TypeError, ValueError):
        raise Unreadable(f"a dataset's labels must be whole numbers or None, got {value!r:.60}") from None


def _as_picture(value: object) -> Image.Image:
    if isinstance(value, Image.Image):
        return value
    if not isinstance(value, np.ndarray | Tensor):
        raise Unreadable(f"a dataset's pictures must be PIL images, arrays or tensors, got {type(value).__name__}")
    pixels = value
    if isinstance(pixels, Tensor):
        pixels = pixels.detach().cpu().numpy()
        if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
            pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4)):
        raise Unreadable(f"a picture of the dataset has shape {tuple(value.shape)}; give it with 1 or 3 channels")
    if np.issubdtype(pixels.dtype, np.floating):
        if not (pixels.min() >= 0 and pixels.max() <= 1):
            raise Unreadable("a picture of the dataset has values outside 0 to 1; give it before normalisation")
        pixels = np.rint(pixels * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise Unreadable(f"a picture of the dataset is of {pixels.dtype}; give 8 bits, or values from 0 to 1")
    return Image.fromarray(np.ascontiguousarray(pixels))
