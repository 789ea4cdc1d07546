"""Arrays out of published files: .npz, the CIFAR archives (whose pickles run nothing here), MNIST's idx files."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Collection
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

Split: TypeAlias = Literal["train", "test"]
Pictures: TypeAlias = NDArray[np.uint8]
Labels: TypeAlias = NDArray[np.int64]

_CIFAR_FILES: dict[str, dict[str, tuple[str, ...]]] = {
    "cifar10": {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
    "cifar100": {"train": ("train",), "test": ("test",)},
}
_IDX_FILES = {"train": "train-images-idx3-ubyte", "test": "t10k-images-idx3-ubyte"}
_IDX_IMAGES, _IDX_LABELS = b"\x00\x00\x08\x03", b"\x00\x00\x08\x01"
_DAMAGE = (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile, tarfile.TarError, struct.error)


def read_npz(file: Path) -> tuple[Pictures, Labels | None]:
    """The arrays ``images`` and, where there are any, ``labels``."""
    try:
        with file.open("rb") as stream, zipfile.ZipFile(stream) as arrays:
            names = [name.removesuffix(".npy") for name in arrays.namelist()]
            if "images" in names:
                labels = _array_in(arrays, "labels") if "labels" in names else None
                return _array_in(arrays, "images"), labels
    except FileNotFoundError:
        raise FileNotFoundError(f"no such file or folder: {file}") from None
    except _DAMAGE as error:
        raise ValueError(f"cannot read {file}: {error}".splitlines()[0]) from error
    raise ValueError(f"{file} has no array 'images'; it holds {', '.join(names) or 'nothing'}")


def _array_in(arrays: zipfile.ZipFile, name: str) -> NDArray[Any]:
    with arrays.open(f"{name}.npy") as stream:
        values: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return values


def split_kind(path: Path) -> str | None:
    """The family of a source that holds both a training and a test set; None for any other."""
    if path.is_dir():
        names = {entry.name for entry in path.iterdir() if entry.is_file()}
        if names & {name + suffix for name in _IDX_FILES.values() for suffix in ("", ".gz")}:
            return "mnist"
        return _cifar_kind(names)
    if not path.name.endswith((".tar", ".tar.gz", ".tgz")):
        return None
    try:
        with tarfile.open(path) as archive:  # the archives of CIFAR have eight members at most
            return _cifar_kind({PurePosixPath(member.name).name for member in islice(archive, 16) if member.isfile()})
    except (tarfile.TarError, OSError, EOFError, zlib.error):
        return None  # who reads it next says what is wrong


def read_split(path: Path, split: Split) -> tuple[Pictures, Labels | None]:
    """One of the two sets in a source that `split_kind` knows."""
    kind = split_kind(path)
    if kind == "mnist":
        name = _IDX_FILES[split]
        return read_idx_pair(next((file for file in _with_gz(path / name) if file.is_file()), path / name))
    if kind is None:
        raise ValueError(f"{path} is neither a CIFAR archive nor a folder of idx files")
    parts = [_cifar_batch(path, name) for name in _CIFAR_FILES[kind][split]]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def is_idx(file: Path) -> bool:
    """Whether a file, plain or gzipped, begins as an idx file of images does."""
    try:
        with _plain(file) as stream:
            return stream.read(4) == _IDX_IMAGES
    except (OSError, EOFError, zlib.error):
        return False


def read_idx_pair(file: Path) -> tuple[Pictures, Labels | None]:
    """The images in an idx file and the labels in the one beside it, where there is one."""
    images = _read_idx(file, _IDX_IMAGES)
    beside = file.with_name(file.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1"))
    for labels in _with_gz(beside):
        if labels.is_file() and labels != file:
            return images, _read_idx(labels, _IDX_LABELS).astype(np.int64)
    return images, None


def _with_gz(file: Path) -> tuple[Path, Path]:
    return file, file.with_name(file.name + ".gz")


def _plain(file: Path) -> gzip.GzipFile | io.BufferedReader:
    with file.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    return gzip.open(file) if packed else file.open("rb")


def _read_idx(file: Path, magic: bytes) -> Pictures:
    try:
        with _plain(file) as stream:
            content = stream.read()
        if content[:4] != magic:
            raise ValueError(f"it begins with {content[:4].hex()}, not {magic.hex()}")
        shape = struct.unpack_from(f">{magic[3]}I", content, 4)
        begin = 4 + 4 * len(shape)
        if len(content) - begin != np.prod(shape, dtype=np.int64):
            raise ValueError(
                f"it holds {len(content) - begin} values where its header says {'x'.join(map(str, shape))}"
            )
        return np.frombuffer(content, np.uint8, offset=begin).reshape(shape)
    except FileNotFoundError:
        raise FileNotFoundError(f"no such file or folder: {file}") from None
    except _DAMAGE as error:
        raise ValueError(f"cannot read the idx file {file}: {error}") from error


def _cifar_kind(names: Collection[str]) -> str | None:
    if "data_batch_1" in names or "test_batch" in names:
        return "cifar10"
    return "cifar100" if {"train", "test", "meta"} <= set(names) else None


def _cifar_batch(path: Path, name: str) -> tuple[Pictures, Labels]:
    try:
        batch = _unpickled(_content(path, name))
        images = batch[b"data"].array()
        labels = np.array(batch[b"fine_labels"] if b"fine_labels" in batch else batch[b"labels"], dtype=np.int64)
        if images.ndim != 2 or images.shape[1] != 3072 or labels.shape != images.shape[:1]:
            raise ValueError(f"images of shape {images.shape} with labels of shape {labels.shape}")
        return images.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels
    except FileNotFoundError:
        raise
    except Exception as error:  # a damaged pickle raises nearly anything
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise ValueError(f"cannot read {name} of {path}: {reason}".splitlines()[0]) from error


def _content(path: Path, name: str) -> bytes:
    if path.is_dir():
        if (path / name).is_file():
            return (path / name).read_bytes()
    else:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and PurePosixPath(member.name).name == name:
                    stream = archive.extractfile(member)
                    return b"" if stream is None else stream.read()
    raise FileNotFoundError(f"{path} lacks {name}; it is not all there")


class _StoredArray:
    """Where a pickle wants a NumPy array made: keeps what it says, makes nothing."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def array(self) -> Pictures:
        _, shape, kind, columns_first, content = self.state
        if kind.name not in (b"u1", "u1") or columns_first or not isinstance(content, bytes):
            raise ValueError("its data are not plain bytes")
        return np.frombuffer(content, np.uint8).reshape(shape)


class _StoredType:
    """Where a pickle wants a NumPy dtype made: keeps the name."""

    def __init__(self, name: object, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        pass


def _empty_array(*_: object) -> _StoredArray:
    return _StoredArray()


def _encoded(text: str, encoding: str) -> bytes:
    """Bytes as Python 3 writes them for older readers."""
    return text.encode("latin1" if encoding in ("latin1", b"latin1") else "ascii")


_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): _StoredArray,
    ("numpy", "dtype"): _StoredType,
    ("_codecs", "encode"): _encoded,
}


class _Unpickler(pickle.Unpickler):
    """Reads dictionaries, lists, text, numbers and byte arrays; a name of anything else is an error, not a call."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file does; refused")
        return _ALLOWED[module, name]


def _unpickled(content: bytes) -> dict[bytes, Any]:
    batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    if not isinstance(batch, dict):
        raise ValueError("it holds no dictionary")
    return {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}
