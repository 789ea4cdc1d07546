"""Sets of picture files: in a folder, or in a tar archive that stays packed."""

from __future__ import annotations

import json
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image
from torch import Tensor

from davis.data import (
    SUFFIXES,
    ImageError,
    Images,
    OnError,
    Preprocessing,
    class_folders,
    class_names,
    image_files,
    opened,
)
from davis.sets.classes import numbered_classes
from davis.sets.reading import Batches, add_file, counted, digest_of, numbered, once, prepared, reason


class FolderSet:
    """The pictures in a folder, sorted; folders in it are classes, numbered in the order of their names.

    A folder without a picture keeps its number, or the classes after it would move up by one.
    """

    def __init__(
        self,
        folder: Path,
        preprocessing: Preprocessing,
        *,
        name: str | None = None,
        on_error: OnError | None = None,
        workers: int = 0,
    ) -> None:
        self.name = name or folder.resolve().name
        self.folder = folder
        self.preprocessing = preprocessing
        self.workers = workers
        self.files = image_files([folder])
        names = class_folders(folder, self.files)
        inside = [names[file] for file in self.files] if names else []
        self.classes, self.labels = numbered_classes(inside, class_names(folder))
        self._report = once(on_error)

    @property
    def place(self) -> Path:
        """Where it is."""
        return self.folder

    def keep(self, part: int, parts: int) -> None:
        """Keep one of so many equal parts, which share no picture and have the classes alike.

        Pictures are dealt out class by class. Both the classes and the pictures in each are shuffled first, the same
        way every time: files on disk have an order that a plain "every third" can fall in step with.
        """
        random = np.random.default_rng(0)
        labels = np.zeros(len(self.files), np.int64) if self.labels is None else np.array(self.labels)
        classes, pictures = random.permutation(max(len(self.classes), 1)), random.permutation(len(self.files))
        kept = np.sort(np.lexsort((pictures, classes[labels]))[part::parts])
        self.files = [self.files[place] for place in kept]
        self.labels = None if self.labels is None else [self.labels[place] for place in kept]

    def __len__(self) -> int:
        return len(self.files)

    def fingerprint(self) -> str:
        """A digest of the files' names and contents, the labels and the preprocessing."""
        digest = digest_of(self.preprocessing)
        digest.update(json.dumps(self.labels).encode())  # which the names of the files alone do not tell
        for file in self.files:
            digest.update(json.dumps([file.relative_to(self.folder).as_posix(), file.stat().st_size]).encode())
            add_file(digest, file)
        return digest.hexdigest()

    def batches(self, start: int, size: int) -> Batches:
        """Images from a position on, their labels, and how many pictures were read; broken ones are left out."""
        files = self.files[start:]
        labels = None if self.labels is None else self.labels[start:]
        decoded = Images(files, self.preprocessing, batch=size, workers=self.workers, on_error=self._report).numbered()
        return counted(decoded, labels, len(files), size, self.preprocessing.shape)


class TarSet:
    """The pictures in a tar archive, in its order; folders in it, below those that all share, are classes."""

    def __init__(
        self, file: Path, preprocessing: Preprocessing, *, name: str | None = None, on_error: OnError | None = None
    ) -> None:
        self.name = name or file.name.split(".")[0]
        self.file = file
        self.preprocessing = preprocessing
        self.members = _picture_members(file)
        self.classes, self.labels = numbered_classes(_inner_folders([member.name for member in self.members]))
        self._report = once(on_error)

    @property
    def place(self) -> Path:
        """Where it is."""
        return self.file

    def __len__(self) -> int:
        return len(self.members)

    def fingerprint(self) -> str:
        """A digest of the archive, the labels and the preprocessing."""
        digest = digest_of(self.preprocessing)
        digest.update(json.dumps(self.labels).encode())
        add_file(digest, self.file)
        return digest.hexdigest()

    def batches(self, start: int, size: int) -> Batches:
        """Images from a position on, their labels, and how many pictures were read; broken ones are left out."""
        places = [self.file / member.name for member in self.members[start:]]
        labels = None if self.labels is None else self.labels[start:]
        decoded = numbered(self._decoded(start), size, places.__getitem__, self._report)
        return counted(decoded, labels, len(places), size, self.preprocessing.shape)

    def _decoded(self, start: int) -> Iterator[Tensor | ImageError]:
        with tarfile.open(self.file) as archive:
            for member in self.members[start:]:
                yield prepared(self.file / member.name, partial(_open_member, archive, member), self.preprocessing)


def _inner_folders(names: Sequence[str]) -> list[str]:
    """The first folder of each file below those that all share; empty where some file is in none."""
    folders = [PurePosixPath(name).parent.parts for name in names]
    shared = next((depth for depth, level in enumerate(zip(*folders, strict=False)) if len(set(level)) > 1), None)
    if shared is None:
        return []
    return [parts[shared] for parts in folders]


def _picture_members(file: Path) -> list[tarfile.TarInfo]:
    try:
        with tarfile.open(file) as archive:
            members = [member for member in archive if member.isfile() and _is_picture(member.name)]
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"cannot read the archive {file}: {reason(error)}") from error
    if not members:
        raise ValueError(f"no images in {file}; looked for {', '.join(SUFFIXES)}")
    return members


def _is_picture(name: str) -> bool:
    hidden = any(part.startswith(".") and part != ".." for part in PurePosixPath(name).parts)
    return name.lower().endswith(SUFFIXES) and not hidden


def _open_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Image.Image:
    stream = archive.extractfile(member)
    if stream is None:
        raise ValueError("not a file")
    return opened(stream.read())  # whole: decoders go back and forth, gzip only forth
