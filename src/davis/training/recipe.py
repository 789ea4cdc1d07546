"""What a training is: network, data and settings; the defaults are the paper's."""

from __future__ import annotations

import os
import shlex
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args

from davis.zoo import CLASSES, HeadKind, canonical, slug

_DECAYED_AT = (50, 75, 90)  # percent of the epochs; the paper trains for 100
_MOST_RATE = 1000.0  # what is larger is a slip of the hand
_MOST_SEED = 2**32 - 1  # what is drawn from the seed and the epoch must fit into 64 bits


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
        self._check_kinds()
        object.__setattr__(self, "arch", canonical(self.arch))
        object.__setattr__(self, "dataset", _plain(self.dataset))
        if self.head not in get_args(HeadKind):
            raise ValueError(f"unknown head {self.head!r}; known: {', '.join(get_args(HeadKind))}")
        for name, least in (("epochs", 1), ("batch", 2), ("padding", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.seed > _MOST_SEED:
            raise ValueError(f"seed must be at most {_MOST_SEED}, got {self.seed}")
        if self.images is not None and self.images < self.batch:
            raise ValueError(f"{self.images} images do not fill one batch of {self.batch}; give more")
        for name, allowed, right in (
            ("rate", f"above 0 and at most {_MOST_RATE:.0f}", 0 < self.rate <= _MOST_RATE),
            ("momentum", "from 0 to below 1", 0 <= self.momentum < 1),
            ("decay", f"from 0 to {_MOST_RATE:.0f}", 0 <= self.decay <= _MOST_RATE),
        ):
            if not right:
                raise ValueError(f"{name} must be {allowed}, got {getattr(self, name)}")

    def _check_kinds(self) -> None:
        """Settings may come from a file, where a number is easily written as a text, or 1.5 for a count."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("arch", "dataset"):
                if not isinstance(value, str) or not value.strip():
                    raise ValueError(f"{field.name} must be a name in quotes, got {value!r}")
                if "\0" in value:
                    raise ValueError(f"{field.name} must be a name, and {value!r} has a zero byte in it; take it out")
            elif field.name in ("rate", "momentum", "decay"):
                if isinstance(value, bool) or not isinstance(value, int | float):
                    raise ValueError(f"{field.name} must be a number, got {value!r}")
            elif field.name == "head" or (field.name == "images" and value is None):
                continue
            elif isinstance(value, bool) or not isinstance(value, int):
                raise ValueError(f"{field.name} must be a whole number, got {value!r}")

    @property
    def name(self) -> str:
        """``DATASET-ARCH``, after which files are named; a GODIN head and a seed other than 0 are part of it."""
        head = "_godin" if self.head == "godin" else ""
        seed = f"_seed{self.seed}" if self.seed else ""
        return f"{Path(os.path.abspath(self.dataset)).name}-{slug(self.arch)}{head}{seed}"

    def rate_at(self, epoch: int) -> float:
        """The learning rate of an epoch, the first being 0."""
        passed = sum(100 * epoch >= percent * self.epochs for percent in _DECAYED_AT)
        return self.rate / 10.0**passed

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for files."""
        return asdict(self)

    def command(self) -> str:
        """The line of a shell that trains this again."""
        words = ["davis train", shlex.quote(self.arch), shlex.quote(self.dataset)]
        for field in fields(self)[2:]:
            value = getattr(self, field.name)
            if value != field.default:
                words.append(f"--{field.name} {value}")
        return " ".join(words)


def _plain(dataset: str) -> str:
    """One spelling of a dataset: ``good/`` is ``good``, but ``cifar10/`` is a folder and not the catalogue's set.

    Nor is a folder an option of the command that it stands in.

    >>> _plain("good/"), _plain("./good"), _plain("cifar10"), _plain("cifar10/"), _plain("--help")
    ('good', 'good', 'cifar10', './cifar10', './--help')
    """
    if dataset in CLASSES:
        return dataset
    plain = str(Path(dataset))
    return os.path.join(".", plain) if plain in CLASSES or plain.startswith("-") else plain
