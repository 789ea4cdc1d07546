"""Sets that lie in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from davis.data import Preprocessing
from davis.sets.formats import read_npz
from davis.sets.reading import Batches, digest_of
from davis.types import Images


class ArraySet:
    """Pictures in memory: (count, height, width, 3) or (count, height, width), 8 bits."""

    def __init__(
        self, name: str, images: NDArray[np.uint8], labels: NDArray[np.int64] | None, preprocessing: Preprocessing
    ) -> None:
        wrong_shape = images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3)
        if images.dtype != np.uint8 or wrong_shape or len(images) == 0:
            raise ValueError(
                f"{name}: images must be (count, height, width[, 3]) of uint8, got {images.shape} of {images.dtype}"
            )
        if labels is not None and (labels.shape != images.shape[:1] or labels.dtype.kind not in "iu"):
            raise ValueError(
                f"{name}: {len(images)} images came with labels of shape {labels.shape} and type {labels.dtype}; "
                "give one whole number for each"
            )
        if labels is not None and int(labels.min()) < 0:
            raise ValueError(
                f"{name}: the label {int(labels.min())} is no class; number them from 0, and leave pictures without "
                "a class out"
            )
        self.name = name
        self.images = images
        self.labels = labels
        self.preprocessing = preprocessing

    def __len__(self) -> int:
        return len(self.images)

    def fingerprint(self) -> str:
        """A digest of the pixels, the labels and the preprocessing; the same for every kind of file they came from."""
        digest = digest_of(self.preprocessing)
        digest.update(str(self.images.shape).encode())
        digest.update(np.ascontiguousarray(self.images).reshape(-1).data)
        if self.labels is not None:
            digest.update(np.ascontiguousarray(self.labels.astype(np.int64)).data)
        return digest.hexdigest()

    def batches(self, start: int, size: int) -> Batches:
        """Images from a position on, their labels, and how many pictures were read."""
        for first in range(start, len(self), size):
            rows = slice(first, min(first + size, len(self)))
            labels = None if self.labels is None else torch.from_numpy(self.labels[rows].astype(np.int64))
            yield self._prepared(self.images[rows]), labels, rows.stop - rows.start

    def _prepared(self, pictures: NDArray[np.uint8]) -> Images:
        values = self.preprocessing
        if pictures.shape[1:] == (values.size, values.size, 3) and values.edge == values.size and len(values.mean) == 3:
            # Nothing to resize, cut or turn grey: the whole batch at once.
            mean, std = (torch.tensor(part).reshape(1, -1, 1, 1) for part in (values.mean, values.std))
            pixels = torch.from_numpy(np.array(pictures, order="C")).permute(0, 3, 1, 2)  # a copy: it may be read-only
            return (pixels.float() / 255 - mean) / std
        return torch.stack([values(Image.fromarray(picture)) for picture in pictures])


def load_npz(file: Path, preprocessing: Preprocessing, *, name: str | None = None) -> ArraySet:
    """The set in an .npz file with ``images`` and, where it has them, ``labels``."""
    images, labels = read_npz(file)
    return ArraySet(name or file.stem, images, labels, preprocessing)
