"""What comes home: tables and logs with every call, weights in pieces that are given again until they have arrived.

Only the latest call's files can be fetched, so a call that was not fetched has lost what it gave. Therefore `join`
notes at home what has arrived; that note travels with the next call, and what is not in it is given again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import tarfile
import time
from pathlib import Path
from typing import NamedTuple

from davis import atomic
from davis.training import figure
from davis.training.files import read_log
from davis.training.jobs import Job
from davis.zoo.weights import sha256_of
from sitting import machine, plan
from sitting.parts import MIB

FILES = 8  # that come back from a call
GRACE = 2.0  # minutes after the stay, for the last benchmarks; then all is ended and what is left comes home
ARRIVED, GIVEN = "arrived.txt", "given.json"
SHIPS = 5_000_000  # bytes of weights that are small enough to come with the package
SMALL = ("card.json", "log.jsonl", "curves.svg", "train.log", "bench.log")
SMALL += tuple(f"bench/{name}.json" for name in ("results", "accuracy", "timings", "benchmark", "left_out"))


class Piece(NamedTuple):
    """Some of a file that may be too large to travel whole; files that differ have pieces of other names."""

    name: str
    file: Path
    start: int
    size: int

    def read(self) -> bytes:
        """Its bytes."""
        with self.file.open("rb") as stream:
            stream.seek(self.start)
            return stream.read(self.size)


_PIECE = re.compile(
    r"(?P<training>.+)\.(?P<kind>weights|checkpoint)\.(?P<digest>[0-9a-f]{8})\.(?P<number>\d+)-of-(?P<count>\d+)"
)


def collect(options: argparse.Namespace) -> None:
    """Put into OUT what has not come home yet, wait, and do so again: a call that is killed gives back the first."""
    work = options.home / "work"
    over = plan.began(work) + 60 * (options.stay + GRACE)
    until = min(time.time() + options.wait, over)
    fill(options)
    while time.time() < until and machine.driver_of(work) is not None:
        time.sleep(1)
    options.last |= time.time() >= over
    if options.last and (pid := machine.driver_of(work)) is not None:
        os.killpg(pid, signal.SIGTERM)  # nobody may write a checkpoint anew between two of its pieces
        time.sleep(2)
    given, left = fill(options)
    atomic.write(work / GIVEN, json.dumps(given).encode())
    status(work, plan.begun(options))
    print(f"{len(list(options.out.iterdir()))} files: fetch and join them before the next call; {left} pieces are left")


def fill(options: argparse.Namespace) -> tuple[dict[str, int], int]:
    """Put all tables and logs into OUT, and of weights what has not arrived yet, the small ones first.

    How often each piece was given then, and how many are left.
    """
    work, begun = options.home / "work", plan.begun(options)
    options.out.mkdir(parents=True, exist_ok=True)
    for file in options.out.iterdir():
        file.unlink()
    tables = options.out / "tables.tar.gz"
    with tarfile.open(tables, "w:gz") as archive:
        for job in begun:
            for name in SMALL:
                if (job.folder / name).is_file():
                    archive.add(job.folder / name, f"{job.recipe.name}/{name}")
        for file in (work / "driver.log", work / machine.CHECKED, *(work / machine.MPS).glob("*.log")):
            if file.is_file():
                archive.add(file, file.relative_to(work))
    arrived = (work / ARRIVED).read_text().split() if (work / ARRIVED).is_file() else []
    given: dict[str, int] = json.loads((work / GIVEN).read_text()) if (work / GIVEN).is_file() else {}
    waiting = [piece for piece in pieces(begun, options) if piece.name not in arrived]
    waiting.sort(key=lambda piece: (given.get(piece.name, 0), piece.file.stat().st_size))
    room, left = options.room * MIB - tables.stat().st_size, 0
    for piece in waiting:
        content = piece.read()
        if len(list(options.out.iterdir())) == FILES or len(content) > room:
            left += 1
            continue
        room -= len(content)
        (options.out / piece.name).write_bytes(content)
        given[piece.name] = given.get(piece.name, 0) + 1
    return given, left


def pieces(begun: list[Job], options: argparse.Namespace) -> list[Piece]:
    """Weights of what is trained; with --last also the checkpoints that are small enough to go on with elsewhere."""
    found, step = [], int(options.size * MIB)
    for job in begun:
        kind = "weights" if (job.folder / "card.json").is_file() else "checkpoint"
        file = job.folder / f"{kind}.safetensors"
        size = file.stat().st_size if file.is_file() else 0
        if size == 0 or (kind == "checkpoint" and (not options.last or size > options.largest * MIB)):
            continue
        digest, count = sha256_of(file)[:8], -(-size // step)
        for number in range(count):
            name = f"{job.recipe.name}.{kind}.{digest}.{number}-of-{count}"
            found.append(Piece(name, file, number * step, step))
    return found


def status(work: Path, begun: list[Job]) -> None:
    """Print a line for each training that was begun, and the end of the driver's log."""
    pid, there = machine.driver_of(work), [name for name in plan.SETS if (work / "data" / f"{name}.npz").is_file()]
    print(f"driver: {'not running' if pid is None else f'process {pid}'}; data: {there}")
    print(f"| training | state | epoch | loss | test accuracy | paper | seconds | benchmark |\n{'|---' * 8}|")
    for job in begun:
        row, paper = job.state(), plan.paper_accuracy(job)
        accuracy = "" if row["test accuracy"] is None else f"{100 * row['test accuracy']:.2f}"
        benched = "done" if (job.folder / "bench" / "results.json").is_file() else last_line(job.folder / "bench.log")
        loss = "" if row["loss"] is None else f"{row['loss']:.4f}"
        cells = (row["name"], row["state"], row["epoch"], loss, accuracy, paper or "", row["seconds"], benched)
        print(f"| {' | '.join(map(str, cells))} |")
    for log, lines in ((work / machine.CHECKED, 1), (work / "driver.log", 12)):
        if log.is_file():
            print("\n".join(log.read_text().splitlines()[-lines:]))


def last_line(log: Path) -> str:
    """What was printed last, on a table's line."""
    said = log.read_text(errors="replace").splitlines() if log.is_file() else []
    return said[-1][:100].replace("|", "/") if said else ""


# -- at home ---------------------------------------------------------------------------------------------------------


def join(options: argparse.Namespace) -> None:
    """Put fetched files into TARGET, a folder for each training, and what the repository keeps into the repository."""
    options.target.mkdir(parents=True, exist_ok=True)
    if (options.fetched / "tables.tar.gz").is_file():
        with tarfile.open(options.fetched / "tables.tar.gz") as archive:
            archive.extractall(options.target, filter="data")
    note = options.target / ARRIVED
    arrived = set(note.read_text().split()) if note.is_file() else set()
    for file in sorted(options.fetched.iterdir()):
        if found := _PIECE.fullmatch(file.name):
            place = options.target / found["training"] / "pieces"
            place.mkdir(parents=True, exist_ok=True)
            atomic.write(place / file.name, file.read_bytes())
            arrived.add(file.name)
    for place in sorted(options.target.glob("*/pieces")):
        arrived -= put_together(place)
    atomic.write(note, "".join(f"{name}\n" for name in sorted(arrived)).encode())
    for folder in sorted(path.parent for path in options.target.glob("*/card.json")):
        keep(folder, options)


def put_together(place: Path) -> set[str]:
    """Write every file of which all pieces are there, and take the pieces away; the names of damaged ones."""
    damaged: set[str] = set()
    files: dict[tuple[str, str, int], dict[int, Path]] = {}
    for path in place.iterdir():
        if found := _PIECE.fullmatch(path.name):
            key = (found["kind"], found["digest"], int(found["count"]))
            files.setdefault(key, {})[int(found["number"])] = path
    for (kind, digest, count), there in files.items():
        whole = place.parent / f"{kind}.safetensors"
        if len(there) < count:
            print(f"{whole}: {len(there)} of {count} pieces are here")
            continue
        content = b"".join(there[number].read_bytes() for number in range(count))
        if not hashlib.sha256(content).hexdigest().startswith(digest):
            print(f"{whole}: its pieces came damaged; they are given again")
            damaged |= {path.name for path in there.values()}
        else:
            atomic.write(whole, content)
            print(f"{whole}: whole")
        for path in there.values():
            path.unlink()
    return damaged


def keep(folder: Path, options: argparse.Namespace) -> None:
    """Put what the repository shows of a trained network in its places: card, log, tables, and weights that are small.

    At once and not at the end: a sitting may be cut off, and what is in these places can be committed.
    """
    card, weights = folder / "card.json", folder / "weights.safetensors"
    if weights.is_file() and weights.stat().st_size < SHIPS and sha256_of(weights) == _digest(card):
        options.shipped.mkdir(parents=True, exist_ok=True)
        shutil.copy(weights, options.shipped / f"{folder.name}.safetensors")
        shutil.copy(card, options.shipped / f"{folder.name}.json")
    place = options.tables / folder.name
    place.mkdir(parents=True, exist_ok=True)
    for file in (card, folder / "log.jsonl", folder / "bench" / "results.json"):
        if file.is_file():
            shutil.copy(file, place / file.name)
    figure.draw(read_log(folder), folder.name, place / "curves.svg")  # matplotlib is not where it was trained


def finish(options: argparse.Namespace) -> None:
    """Benchmark here what was trained there and has no tables yet, where its weights came home; then keep it."""
    for place in sorted(path.parent for path in options.tables.glob("*/card.json")):
        folder, shipped = options.work / place.name, options.shipped / f"{place.name}.safetensors"
        if (place / "results.json").is_file():
            continue
        if not (folder / "weights.safetensors").is_file() and shipped.is_file():  # another sitting's
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(shipped, folder / "weights.safetensors")
            for name in ("card.json", "log.jsonl"):
                shutil.copy(place / name, folder / name)
        if not (folder / "weights.safetensors").is_file() or sha256_of(folder / "weights.safetensors") != _digest(
            place / "card.json"
        ):
            print(f"{place.name}: its weights are not here; it is trained again in the next sitting")
            continue
        if not (folder / "bench" / "results.json").is_file():
            shutil.rmtree(folder / "bench", ignore_errors=True)  # begun there, with what did not come along
            options.name = place.name
            try:
                machine.bench(options)
            except (ValueError, OSError, RuntimeError) as error:
                print(f"{place.name}: no benchmark: {error}")
                continue
        keep(folder, options)


def _digest(card: Path) -> str:
    """Of the weights that a card describes."""
    return str(json.loads(card.read_text())["sha256"])
