"""Image sets on their way: npz -> lossless mosaics in parts that one transfer takes -> npz."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from PIL import Image

from sitting import plan

MIB = 1 << 20
TILE, ACROSS, MOSAIC = 32, 50, 10_000  # pixels, pictures in a row, pictures in a file: whole rows


def pack(options: argparse.Namespace) -> None:
    """Write each set as mosaics, and spread them over folders that one transfer takes."""
    part, room = -1, 0
    for name in plan.SETS:
        with np.load(options.data / f"{name}.npz") as arrays:
            images, labels = arrays["images"], arrays["labels"]
        options.parts.mkdir(parents=True, exist_ok=True)
        made = options.parts / "made"
        made.mkdir(exist_ok=True)
        np.save(made / f"{name}.labels.npy", labels.astype(np.int16))
        for number, start in enumerate(range(0, len(images), MOSAIC)):
            mosaic(images[start : start + MOSAIC]).save(made / f"{name}.{number}.webp", lossless=True, method=4)
        for file in sorted(made.iterdir()):
            if part < 0 or file.stat().st_size > room:
                part, room = part + 1, int(options.size * MIB)
                (options.parts / f"{part:02d}").mkdir(exist_ok=True)
            room -= file.stat().st_size
            os.replace(file, options.parts / f"{part:02d}" / file.name)
        made.rmdir()
        print(f"{name}: up to part {part:02d}", flush=True)


def mosaic(images: np.ndarray) -> Image.Image:
    """Pictures beside and below each other, the last row filled up with black."""
    rows = -(-len(images) // ACROSS)
    canvas = np.zeros((rows * ACROSS, TILE, TILE, 3), np.uint8)
    canvas[: len(images)] = images
    tiles = canvas.reshape(rows, ACROSS, TILE, TILE, 3).swapaxes(1, 2)
    return Image.fromarray(tiles.reshape(rows * TILE, ACROSS * TILE, 3))


def unpack(parts: Path, data: Path) -> list[str]:
    """Write each set whose files have all come; the names of those that are there."""
    Image.MAX_IMAGE_PIXELS = None
    data.mkdir(parents=True, exist_ok=True)
    for name in plan.SETS:
        target = data / f"{name}.npz"
        labels_file = next(parts.glob(f"*/{name}.labels.npy"), None)
        if target.is_file() or labels_file is None:
            continue
        labels = np.load(labels_file).astype(np.int64)
        numbers = range(-(-len(labels) // MOSAIC))
        files = [next(parts.glob(f"*/{name}.{number}.webp"), None) for number in numbers]
        if any(file is None for file in files):
            continue
        tiles = []
        for file in files:
            pixels = np.asarray(Image.open(file).convert("RGB"))  # type: ignore[arg-type]
            rows = pixels.shape[0] // TILE
            tiles.append(pixels.reshape(rows, TILE, ACROSS, TILE, 3).swapaxes(1, 2).reshape(-1, TILE, TILE, 3))
        unfinished = data / f"{name}.next.npz"
        np.savez(unfinished, images=np.concatenate(tiles)[: len(labels)], labels=labels)
        os.replace(unfinished, target)
    return [name for name in plan.SETS if (data / f"{name}.npz").is_file()]
