"""The folder of a run: whose it is, and what is noted in it while the run goes on."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from davis import atomic
from davis.bench.results import read_json
from davis.detector import Detector
from davis.locks import is_empty_lock
from davis.stages import Stage
from davis.stages.base import listening


def claim(folder: Path, identity: dict[str, Any], *, write: bool) -> None:
    """Make sure that the folder is this benchmark's own, finished parts of another must not be mixed in; take it."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    file = folder / "benchmark.json"
    check_free(folder)
    if file.is_file():
        if read_json(file, advice="choose another folder").get("sha256") != digest:
            raise ValueError(
                f"{folder} holds another benchmark, or this one with other data, methods or options; "
                "choose another folder"
            )
    elif write:
        atomic.write(file, (json.dumps(identity | {"sha256": digest}, indent=1) + "\n").encode())


def check_free(folder: Path) -> None:
    """Refuse a folder with other things in it."""
    taken = folder.is_dir() and not (folder / "benchmark.json").is_file()
    begun = {"cache", "benchmark.json.next"}  # what a run leaves that is killed before the folder is its own
    if taken and any(entry.name not in begun and not is_empty_lock(entry) for entry in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and holds no benchmark; choose another folder")


def scores_file(folder: Path, name: str) -> Path:
    """Where the scores of one set are."""
    return folder / "scores" / f"{name}.npz"


NOTES = ("left_out.json", "warnings.json")


def is_scored(folder: Path, name: str, beside: Sequence[str]) -> bool:
    """Whether the scores of a set are there with all that is written before them; what is lost is made again."""
    return all(file.is_file() for file in (scores_file(folder, name), *(folder / each for each in (*NOTES, *beside))))


class LeftOut:
    """The detectors that do not work here, and why; kept in the folder for a run that is cut off."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NOTES[0]
        self.reasons: dict[str, str] = read_json(self._file) if self._file.is_file() else {}

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
        atomic.write(self._file, (json.dumps(self.reasons, indent=1) + "\n").encode())


class Warned:
    """What detectors warned of, each text once; kept in the folder for a run that is cut off."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NOTES[1]
        self.texts: dict[str, list[str]] = read_json(self._file) if self._file.is_file() else {}

    def add(self, spec: str, text: str) -> None:
        known = self.texts.setdefault(spec, [])
        if text not in known:
            known.append(text)

    @contextmanager
    def by_stages(self, detectors: Sequence[Detector]) -> Iterator[None]:
        """Inside, what stages say is noted for the detector that they belong to, though many are fitted together."""
        owners = {stage: detector.spec for detector in detectors for stage in detector.stages}

        def note(stage: Stage, text: str) -> None:
            if stage in owners:  # the plain mean that ODIN may score by is nobody's
                self.add(owners[stage], text)

        with listening(note):
            yield

    @contextmanager
    def by(self, spec: str) -> Iterator[None]:
        """Inside, this detector works alone: Python's warnings are its own."""
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", UserWarning)  # again where the same place has warned before
            warnings.simplefilter("always", RuntimeWarning)
            yield
        for each in raised:
            self.add(spec, str(each.message))

    def among(self, specs: Sequence[str]) -> dict[str, list[str]]:
        """The texts, in the order of the specs."""
        return {spec: self.texts[spec] for spec in specs if spec in self.texts}

    def save(self) -> None:
        atomic.write(self._file, (json.dumps(self.texts, indent=1) + "\n").encode())
