"""What comes into a backbone: batches of images, perhaps with labels, checked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn

from davis.types import Images, Labels

Batches: TypeAlias = Iterable["Images | tuple[Images, Tensor]"]


def check_kind(images: object) -> None:
    """Refuse what is no batch of numbers."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a tensor (batch, ...); a {type(images).__name__} was given")
    if images.ndim < 2 or images.numel() == 0:
        raise ValueError(f"images must be a batch (batch, ...) with at least one image; given {tuple(images.shape)}")
    if not images.is_floating_point():
        raise ValueError(f"images are {images.dtype}; convert to float and normalise as the model expects")


def check_values(images: Images) -> None:
    """Refuse NaN and infinity, by row."""
    if not torch.isfinite(images.detach()).all():
        rows = (~torch.isfinite(images.detach()).flatten(1).all(1)).nonzero().flatten().tolist()
        more = ", ..." if len(rows) > 5 else ""
        raise ValueError(
            f"images hold NaN or inf in {len(rows)} of {len(images)} rows ({', '.join(map(str, rows[:5]))}{more}); "
            "repair or drop them"
        )


def check_batches(batches: object) -> None:
    """Refuse one tensor, whose rows would pass for batches."""
    if isinstance(batches, Tensor):
        raise TypeError("one tensor was given where batches are expected; give [images], or a DataLoader")


def pairs(batches: Batches) -> Iterator[tuple[Images, Labels | None]]:
    """Images and labels of every batch."""
    check_batches(batches)
    return (split_batch(batch) for batch in batches)


def split_batch(batch: object) -> tuple[Images, Labels | None]:
    """Images and labels of a batch: images, [images], or (images, labels) where labels may be None."""
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, tuple | list) and len(batch) in (1, 2) and isinstance(batch[0], Tensor):
        images, given = batch[0], batch[1] if len(batch) == 2 else None
        return images, None if given is None else _labels(given, images)
    size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
    raise TypeError(f"a batch must be images or (images, labels); a {type(batch).__name__}{size} was given")


def _labels(given: object, images: Images) -> Labels:
    try:
        labels = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"labels must be integers, one per image; a {type(given).__name__} was given") from None
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"a batch of {len(images)} images came with labels of shape {tuple(labels.shape)}; give one per image "
            "(a dataset that is not batched goes into a DataLoader first)"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, one per image; they are {labels.dtype}")
    return labels.to(torch.int64)


def placement(model: nn.Module, images: Images) -> tuple[torch.device, torch.dtype]:
    """Where the model is and in what precision; that of the images where it has no numbers."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return images.device, images.dtype
