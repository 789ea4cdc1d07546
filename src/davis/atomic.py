"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(file: Path, *, alone: bool = True) -> Iterator[IO[bytes]]:
    """A stream whose content takes the file's place once all of it is there; until then the old file stands.

    A process that is killed meanwhile leaves ``NAME.next``, which the next one writes over. Where two may write the
    same file at once, say ``alone=False``: the last to end wins, and a killed one leaves ``.davis-*.unfinished``.
    """
    unfinished = file.with_name(f"{file.name}.next" if alone else f".davis-{secrets.token_hex(4)}.unfinished")
    unfinished.unlink(missing_ok=True)  # of a kill; a link there would lead elsewhere
    try:
        with unfinished.open("x+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(unfinished, file)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write(file: Path, content: bytes) -> None:
    """Put these bytes in the place of what the file holds."""
    with replacing(file) as stream:
        stream.write(content)
