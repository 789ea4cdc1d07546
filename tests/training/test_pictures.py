"""Pictures: read from files, cut and mirrored by one gather, normalised as the benchmark does it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from davis.catalog import PREPROCESSING
from davis.sets import ArraySet
from davis.training.pictures import cut, normalised, padded, read


def test_cut_and_flip_are_slices() -> None:
    drawn = np.random.default_rng(0)
    images = drawn.integers(0, 256, (5, 8, 6, 3), dtype=np.uint8)
    rows, top, left = drawn.integers(0, 5, 20), drawn.integers(0, 9, 20), drawn.integers(0, 9, 20)
    flip = drawn.integers(0, 2, 20)
    found = cut(padded(torch.from_numpy(images), 4), *map(torch.from_numpy, (rows, top, left, flip)), (8, 6))
    framed = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)))
    for number in range(20):
        window = framed[rows[number], top[number] : top[number] + 8, left[number] : left[number] + 6]
        np.testing.assert_array_equal(found[number], window[:, ::-1] if flip[number] else window)


def test_prepared_as_the_benchmark_prepares_them() -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    (expected, _, _), *_ = ArraySet("noise", images, None, PREPROCESSING["cifar10"]).batches(0, 4)
    found = normalised(torch.from_numpy(images))
    assert torch.equal(found, expected)
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_a_folder(place: Path) -> None:
    data = read(str(place))
    assert data.classes == 3
    assert data.train.images.shape == (200, 16, 16, 3)
    assert data.test.labels.dtype == torch.int64


def test_a_dataset_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cifar10_train .* is not in"):
        read("cifar10", tmp_path)
    with pytest.raises(ValueError, match="unknown dataset 'cifar11': known are cifar10, cifar100, or a folder"):
        read("cifar11", tmp_path)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((4, 16, 16), np.uint8), np.arange(4), "must hold colour pictures"),
        (np.zeros((4, 8, 8, 3), np.uint8), np.zeros(4, np.int64), "make them the same size"),
        (np.zeros((4, 16, 16, 3), np.uint8), np.arange(4), "labels must be whole numbers from 0 to 2"),
    ],
)
def test_a_bad_test_set(place: Path, images: np.ndarray, labels: np.ndarray, message: str) -> None:
    np.savez(place / "test.npz", images=images, labels=labels)
    with pytest.raises(ValueError, match=message):
        read(str(place))


@pytest.mark.parametrize(
    ("shape", "labels", "message"),
    [
        ((4, 0, 0, 3), [0, 1, 2, 0], "the pictures of train are 0 x 0 pixels; give at least 8 x 8"),
        ((4, 16, 3, 3), [0, 1, 2, 0], "the pictures of train are 16 x 3 pixels"),
        ((4, 16, 16, 3), [0, 1000, 2000, 3000], "no train picture has label 1, and the highest is 3000"),
        ((4, 16, 16, 3), [1, 2, 1, 2], "no train picture has label 0, and the highest is 2"),
    ],
)
def test_a_bad_train_set(place: Path, shape: tuple[int, ...], labels: list[int], message: str) -> None:
    for name in ("train", "test"):
        np.savez(place / f"{name}.npz", images=np.zeros(shape, np.uint8), labels=np.array(labels))
    with pytest.raises(ValueError, match=message):
        read(str(place))
