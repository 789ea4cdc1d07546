"""A bounded memory of which images were seen, by content: enough to notice that two sets overlap."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from davis.types import Images

CAPACITY = 4096
"""Hashes that are kept: the smallest ones, which are a uniform sample of all."""


class Sketch:
    """The smallest 63-bit hashes of the images that were added; order does not matter, sketches merge.

    >>> sketch = Sketch()
    >>> sketch.add(torch.arange(12.0).reshape(4, 3))
    >>> sketch.share(torch.arange(6.0, 18.0).reshape(4, 3))
    0.5
    """

    def __init__(self, hashes: Tensor | None = None) -> None:
        self.hashes = torch.zeros(0, dtype=torch.int64) if hashes is None else hashes

    def add(self, images: Images) -> None:
        """Remember a batch."""
        self._keep(_hashes(images))

    def merge(self, other: Sketch) -> None:
        """Remember what another sketch has seen."""
        self._keep(other.hashes)

    def share(self, images: Images) -> float | None:
        """The share of a batch that was seen before, judged by those of its hashes that would have been kept."""
        found = _hashes(images)
        if len(self.hashes) == CAPACITY:
            found = found[found <= self.hashes[-1]]
        return float(torch.isin(found, self.hashes).double().mean()) if len(found) else None

    def _keep(self, hashes: Tensor) -> None:
        self.hashes = torch.cat([self.hashes, hashes]).unique()[:CAPACITY]  # unique sorts


def _hashes(images: Images) -> Tensor:
    """(batch,) of each image's values, as float32, whatever its layout."""
    rows = images.detach().float().cpu().contiguous().flatten(1).numpy()
    digests = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return torch.tensor([int.from_bytes(digest, "big") >> 1 for digest in digests], dtype=torch.int64)
