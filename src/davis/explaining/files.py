"""The files of an explanation, which say whose they are."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from davis.atomic import replacing

SUFFIXES = ("png", "npz", "json")  # of the files of an explanation
MADE_BY = "davis explain"
_MARKS = {".png": b"Software\0" + MADE_BY.encode(), ".json": f'"made_by": "{MADE_BY}"'.encode()}
_START = 512  # bytes at the start of a file, among which its mark is


def write_picture(file: Path, picture: Image.Image) -> None:
    """A PNG that says what made it."""
    said = PngInfo()
    said.add_text("Software", MADE_BY)
    with replacing(file, alone=False) as stream:
        picture.save(stream, "PNG", pnginfo=said)


def write_arrays(file: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """An archive of arrays that says in its comment what made it."""
    content = io.BytesIO()
    stored: dict[str, Any] = dict(arrays)  # to mypy, an array might be the argument allow_pickle
    np.savez_compressed(content, **stored)
    with zipfile.ZipFile(content, "a") as archive:
        archive.comment = MADE_BY.encode()
    with replacing(file, alone=False) as stream:
        stream.write(content.getvalue())


def write_values(file: Path, values: Mapping[str, Any]) -> None:
    """Plain values as JSON, behind what made it."""
    with replacing(file, alone=False) as stream:
        stream.write((json.dumps({"made_by": MADE_BY, **values}, indent=2) + "\n").encode())


def is_explanation(file: Path) -> bool:
    """Whether an explanation wrote the file, by the mark in it."""
    if file.suffix == ".npz":
        try:
            with zipfile.ZipFile(file) as archive:
                return archive.comment == MADE_BY.encode()
        except zipfile.BadZipFile:
            return False
    mark = _MARKS.get(file.suffix)
    if mark is None:
        return False
    with file.open("rb") as stream:
        return mark in stream.read(_START)
