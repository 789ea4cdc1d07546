"""The folder of a run: whose it is, and what is noted in it while the run goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from davis.bench.results import write_atomically
from davis.detector import Detector


def claim(folder: Path, identity: dict[str, Any], *, write: bool) -> None:
    """Make sure that the folder is this benchmark's own, finished parts of another must not be mixed in; take it."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    file = folder / "benchmark.json"
    check_free(folder)
    if file.is_file():
        if json.loads(file.read_text(encoding="utf-8")).get("sha256") != digest:
            raise ValueError(
                f"{folder} holds another benchmark, or this one with other data, methods or options; "
                "choose another folder"
            )
    elif write:
        write_atomically(file, (json.dumps(identity | {"sha256": digest}, indent=1) + "\n").encode())


def check_free(folder: Path) -> None:
    """Refuse a folder with other things in it."""
    taken = folder.is_dir() and not (folder / "benchmark.json").is_file()
    if taken and any(entry.name != "cache" for entry in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no benchmark; choose another folder")


def scores_file(folder: Path, name: str) -> Path:
    """Where the scores of one set are."""
    return folder / "scores" / f"{name}.npz"


class LeftOut:
    """The detectors that do not work here, and why; kept in the folder for a run that is cut off."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "left_out.json"
        self.reasons: dict[str, str] = json.loads(self._file.read_text()) if self._file.is_file() else {}

    def add(self, detector: Detector, reason: str) -> None:
        self.reasons[detector.spec] = reason

    def without(self, detectors: Sequence[Detector]) -> list[Detector]:
        """Those that work; nothing can be compared where none does."""
        working = [detector for detector in detectors if detector.spec not in self.reasons]
        if not working:
            spec, reason = next(iter(self.reasons.items()))
            raise ValueError(f"none of the {len(self.reasons)} methods works here; the first, {spec!r}: {reason}")
        return working

    def among(self, detectors: Sequence[Detector]) -> dict[str, str]:
        """The reasons, in the order of the detectors."""
        return {d.spec: self.reasons[d.spec] for d in detectors if d.spec in self.reasons}

    def save(self) -> None:
        if self.reasons:
            write_atomically(self._file, (json.dumps(self.reasons, indent=1) + "\n").encode())
