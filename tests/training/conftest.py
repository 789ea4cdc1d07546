"""A small set of pictures whose class a small network can learn: the brightest quarter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from davis.training.pictures import Data, Pictures

TINY = "resnet18(width=2)"


def quarters(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(seed)
    images = drawn.integers(0, 120, (count, 16, 16, 3), dtype=np.uint8)
    labels = drawn.integers(0, 3, count)
    for image, label in zip(images, labels, strict=True):
        image[:, :, label] += 100  # the colour survives a cut and a flip
    return images, labels


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with train.npz and test.npz."""
    folder = tmp_path / "colours"
    folder.mkdir()
    for name, count, seed in (("train", 200, 0), ("test", 90, 1)):
        images, labels = quarters(count, seed)
        np.savez(folder / f"{name}.npz", images=images, labels=labels)
    return folder


@pytest.fixture
def data() -> Data:
    def pictures(count: int, seed: int) -> Pictures:
        images, labels = quarters(count, seed)
        return Pictures(torch.from_numpy(images), torch.from_numpy(labels))

    return Data(pictures(200, 0), pictures(90, 1), 3)
