"""One function for every kind of source."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from davis.data import OnError, Preprocessing
from davis.sets import formats
from davis.sets.arrays import ArraySet, load_npz
from davis.sets.files import FolderSet, TarSet
from davis.sets.objects import Indexed, ObjectSet

AnySet: TypeAlias = ArraySet | FolderSet | TarSet | ObjectSet

_KINDS = "a folder of images, an .npz file, a CIFAR archive, an idx file, a tar archive of images, or a dataset object"


def open_set(
    source: str | os.PathLike[str] | Indexed,
    preprocessing: Preprocessing,
    *,
    name: str | None = None,
    split: formats.Split | None = None,
    on_error: OnError | None = None,
    workers: int = 0,
) -> AnySet:
    """The image set in a file, a folder or a dataset object, whatever it is.

    ``split`` is "train" or "test" where a source holds both: the CIFAR archives, a folder of MNIST's files. A picture
    that cannot be decoded goes to ``on_error``, once, and is left out; without ``on_error`` it is raised. ``workers``
    threads decode the pictures of a folder.
    """
    if not isinstance(source, str | os.PathLike):
        if isinstance(source, Mapping):
            raise TypeError(
                f"a {type(source).__name__} of {', '.join(map(str, source)) or 'nothing'}; pass one of them"
            )
        if not isinstance(source, Indexed):
            raise TypeError(f"cannot read images from {type(source).__name__}; give {_KINDS}")
        _refuse(split, type(source).__name__)
        return ObjectSet(source, preprocessing, name=name, on_error=on_error)
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"no such file or folder: {path}")
    family = formats.split_kind(path)
    if family is not None:
        if split not in ("train", "test"):
            raise ValueError(f"{path} holds a training and a test set; choose with split='train' or split='test'")
        images, labels = formats.read_split(path, split)
        return ArraySet(name or f"{family}_{split}", images, labels, preprocessing)
    _refuse(split, str(path))
    if path.is_dir():
        return FolderSet(path, preprocessing, name=name, on_error=on_error, workers=workers)
    if path.suffix == ".npz":
        return load_npz(path, preprocessing, name=name)
    if formats.is_idx(path):
        return ArraySet(name or path.name.split(".")[0], *formats.read_idx_pair(path), preprocessing)
    if path.name.endswith((".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")) or tarfile.is_tarfile(path):
        return TarSet(path, preprocessing, name=name, on_error=on_error)
    raise ValueError(f"cannot read images from {path}; give {_KINDS}")


def _refuse(split: str | None, source: str) -> None:
    if split is not None:
        raise ValueError(f"{source} holds one set; leave out split={split!r}")
