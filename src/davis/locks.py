"""One process at a time in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

LOCK = "lock"


@contextmanager
def alone_in(folder: Path, work: str) -> Iterator[None]:
    """No other process does this work in the folder meanwhile; the lock ends with the process, however that ends.

    Afterwards the lock is gone, and so are folders that were made for this and stayed empty.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        with _locked(folder, work):
            yield
    finally:
        for place in made:
            with suppress(OSError):  # there are files in it
                place.rmdir()


def is_empty_lock(file: Path) -> bool:
    """Whether a file may be what a killed process left behind."""
    return file.name == LOCK and file.is_file() and file.stat().st_size == 0


@contextmanager
def _locked(folder: Path, work: str) -> Iterator[None]:
    lock = folder / LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = lock.open("a")
    except OSError as error:
        raise ValueError(f"cannot write in {folder} ({error.strerror}); choose another folder") from None
    with stream:
        try:
            fcntl: Any = import_module("fcntl")
        except ModuleNotFoundError:  # not on Windows
            yield
            return
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same = os.path.samestat(os.fstat(stream.fileno()), lock.stat())
        except OSError:
            same = False
        if not same:  # held by another, or one that ended has just taken the file away
            raise ValueError(f"another process {work} {folder}; wait for it, or choose another folder")
        try:
            yield
        finally:
            if os.fstat(stream.fileno()).st_size == 0:  # ours are empty
                lock.unlink(missing_ok=True)
