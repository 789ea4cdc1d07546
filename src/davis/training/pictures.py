"""Pictures as whole tensors on a device, and the cut and flip that training sees them through."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from davis.catalog import PREPROCESSING, data_directory, open_dataset
from davis.data import Preprocessing
from davis.sets import ArraySet, load_npz
from davis.zoo import CLASSES

NORMALISATION: Preprocessing = PREPROCESSING["cifar10"]  # of the paper's code for both CIFARs; of any folder too
LEAST_SIDE = 8


class Pictures(NamedTuple):
    """8-bit pictures and their classes."""

    images: Tensor  # (count, height, width, 3) uint8
    labels: Tensor  # (count,) int64

    def to(self, device: torch.device) -> Pictures:
        return Pictures(self.images.to(device), self.labels.to(device))

    def first(self, count: int | None) -> Pictures:
        return Pictures(self.images[:count], self.labels[:count])

    def sha256(self) -> str:
        """A digest of the pictures and their classes: a training goes on with the same ones only."""
        digest = hashlib.sha256()
        for tensor in self:
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


class Data(NamedTuple):
    """What is trained on and what is tested with."""

    train: Pictures
    test: Pictures
    classes: int

    def digests(self) -> dict[str, str]:
        """Of the pictures of both halves, by their names."""
        return {"train": self.train.sha256(), "test": self.test.sha256()}

    def preprocessing(self) -> Preprocessing:
        """What makes such pictures of others: they are trained on as they are, so their side is the size."""
        height, width = self.train.images.shape[1:3]
        if height != width:
            raise ValueError(
                f"the pictures are {height} x {width} pixels; give square ones: "
                "of others no model card could say how they are prepared"
            )
        return replace(NORMALISATION, size=height, resize=height)


class UnknownDataset(ValueError):
    """A name that is neither in the catalogue nor that of a folder."""


def read(dataset: str, folder: Path | None = None) -> Data:
    """A dataset of the catalogue from the data directory, or the ``train.npz`` and ``test.npz`` of a folder."""
    if dataset in CLASSES:
        place = folder or data_directory()
        sets = [open_dataset(f"{dataset}_{split}", NORMALISATION, place) for split in ("train", "test")]
    elif Path(dataset).is_dir():
        sets = [load_npz(Path(dataset) / f"{split}.npz", NORMALISATION) for split in ("train", "test")]
    else:
        raise UnknownDataset(
            f"unknown dataset {dataset!r}: known are {', '.join(CLASSES)}, or a folder with train.npz and test.npz"
        )
    train, test = (_pictures(images, dataset) for images in sets)
    if train.images.shape[1:] != test.images.shape[1:]:
        raise ValueError(
            f"{dataset}: train pictures are {tuple(train.images.shape[1:])} and test pictures "
            f"{tuple(test.images.shape[1:])}; make them the same size"
        )
    known = CLASSES.get(dataset, int(train.labels.max()) + 1)
    if int(torch.cat([train.labels, test.labels]).max()) >= known:
        raise ValueError(f"{dataset}: labels must be whole numbers from 0 to {known - 1}, the highest of train")
    present = train.labels.unique()  # sorted
    missing = (present != torch.arange(len(present))).nonzero()
    if dataset not in CLASSES and len(missing):
        raise ValueError(
            f"{dataset}: no train picture has label {int(missing[0])}, and the highest is {known - 1}; "
            "number the classes 0, 1, 2 ... without gaps"
        )
    return Data(train, test, known)


def _pictures(images: object, dataset: str) -> Pictures:
    if not isinstance(images, ArraySet) or images.labels is None or images.images.ndim != 4:
        name = getattr(images, "name", "the set")
        raise ValueError(f"{name} must hold colour pictures (count, height, width, 3) and labels to be trained on")
    height, width = images.images.shape[1:3]
    if min(height, width) < LEAST_SIDE:
        raise ValueError(
            f"{dataset}: the pictures of {images.name} are {height} x {width} pixels; "
            f"give at least {LEAST_SIDE} x {LEAST_SIDE}, since the networks halve a side up to three times"
        )
    pixels = torch.from_numpy(np.ascontiguousarray(images.images))
    return Pictures(pixels, torch.from_numpy(images.labels.astype(np.int64)))


def padded(images: Tensor, padding: int) -> Tensor:
    """The pictures with a black frame."""
    return F.pad(images, (0, 0, padding, padding, padding, padding))


def cut(framed: Tensor, rows: Tensor, top: Tensor, left: Tensor, flip: Tensor, side: tuple[int, int]) -> Tensor:
    """(batch, height, width, 3): one window of each chosen picture, mirrored where ``flip`` is 1; one gather."""
    height, width = side
    down = torch.arange(height, device=framed.device)
    across = torch.arange(width, device=framed.device)
    y = top[:, None] + down
    x = left[:, None] + torch.where(flip[:, None] > 0, width - 1 - across, across)
    return framed[rows[:, None, None], y[:, :, None], x[:, None, :]]


def normalised(images: Tensor) -> Tensor:
    """(batch, 3, height, width) in the layout channels_last, as the benchmark prepares pictures."""
    mean, std = (_channels(images.device, values) for values in (NORMALISATION.mean, NORMALISATION.std))
    return (images.permute(0, 3, 1, 2).float() / 255 - mean) / std


_CONSTANTS: dict[tuple[torch.device, tuple[float, ...]], Tensor] = {}
"""On their device once: a copy from the host inside a CUDA graph would be an error."""


def _channels(device: torch.device, values: tuple[float, ...]) -> Tensor:
    key = (device, values)
    if key not in _CONSTANTS:
        _CONSTANTS[key] = torch.tensor(values, device=device).reshape(1, -1, 1, 1)
    return _CONSTANTS[key]
