"""What a training is: network, data and settings; the defaults are the paper's."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from davis.zoo import HeadKind, canonical, slug

_DECAYED_AT = (50, 75, 90)  # percent of the epochs; the paper trains for 100


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training, and all that its outcome depends on beside the machine.

    >>> recipe = Recipe(arch="resnet18(act=silu)", dataset="cifar10")
    >>> recipe.name, [round(recipe.rate_at(epoch), 9) for epoch in (0, 49, 50, 75, 99)]
    ('cifar10-resnet18_silu', [0.1, 0.1, 0.01, 0.001, 0.0001])
    """

    arch: str
    dataset: str  # cifar10, cifar100, or a folder with train.npz and test.npz
    head: HeadKind = "linear"
    epochs: int = 100
    batch: int = 64
    rate: float = 0.1  # divided by ten at 50, 75 and 90 percent of the epochs
    momentum: float = 0.9
    decay: float = 1e-4  # of all weights, but those of a GODIN head's similarity
    padding: int = 4  # black pixels around a picture before it is cut out again at random
    seed: int = 0
    images: int | None = None  # train on the first so many only, for a trial

    def __post_init__(self) -> None:
        object.__setattr__(self, "arch", canonical(self.arch))
        if self.head not in get_args(HeadKind):
            raise ValueError(f"unknown head {self.head!r}; known: {', '.join(get_args(HeadKind))}")
        for name, least in (("epochs", 1), ("batch", 2), ("padding", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.images is not None and self.images < self.batch:
            raise ValueError(f"{self.images} images do not fill one batch of {self.batch}; give more")
        if not self.rate > 0 or not 0 <= self.momentum < 1 or self.decay < 0:
            raise ValueError(
                f"rate must be above 0, momentum from 0 to below 1 and decay at least 0, "
                f"got {self.rate}, {self.momentum} and {self.decay}"
            )

    @property
    def name(self) -> str:
        """``DATASET-ARCH``, after which files are named."""
        return f"{Path(self.dataset).name}-{slug(self.arch)}{'_godin' if self.head == 'godin' else ''}"

    def rate_at(self, epoch: int) -> float:
        """The learning rate of an epoch, the first being 0."""
        passed = sum(100 * epoch >= percent * self.epochs for percent in _DECAYED_AT)
        return self.rate / 10.0**passed

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for files."""
        return asdict(self)

    def command(self) -> str:
        """The line of a shell that trains this again."""
        arch = f"'{self.arch}'" if "(" in self.arch else self.arch
        words = ["davis train", arch, self.dataset]
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            if value != field.default:
                words.append(f"--{field.name} {value}")
        return " ".join(words)
