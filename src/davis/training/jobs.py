"""Several trainings side by side on one machine: each in a process of its own, each resumable.

::

    side_by_side = 4

    [[train]]
    arch = "resnet18"
    dataset = "cifar10"

    [[train]]
    arch = "resnet18"
    act = "silu"          # the same as arch = "resnet18(act=silu)"
    dataset = "cifar100"
    seed = 1              # and epochs, head, batch, rate, momentum, decay, padding, images
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from davis.training.files import load_card, read_log
from davis.training.loop import Said, finished
from davis.training.recipe import Recipe
from davis.training.sharing import shared_card
from davis.zoo import ACTIVATIONS, canonical

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SIDE_BY_SIDE = 4
_POLL = 0.2  # seconds


@dataclass(frozen=True)
class Job:
    """A training and its folder."""

    recipe: Recipe
    folder: Path

    def state(self) -> dict[str, Any]:
        """How far it is, as a row of a table; what is wrong with its files is in the row."""
        history, card, error = [], None, None
        try:
            card = load_card(self.folder, self.recipe)
            history = read_log(self.folder)
        except (ValueError, OSError) as problem:
            error = _one_line(problem) if card is None else None  # a trained one needs no log
        last = history[-1] if history else {}
        state = "trained" if card else ("cut off" if history else "not begun")
        return {
            "name": self.recipe.name,
            "state": "failed" if error else state,
            "epoch": f"{self.recipe.epochs if card else last.get('epoch', 0)}/{self.recipe.epochs}",
            "loss": last.get("loss"),
            "test accuracy": card["accuracy"] if card else last.get("test_accuracy"),
            "seconds": card["seconds"] if card else round(sum(record["seconds"] for record in history), 1),
            "folder": str(self.folder),
            "error": error,
        }

    def failed(self, error: str) -> dict[str, Any]:
        """Its row where it could not be trained."""
        return self.state() | {"state": "failed", "error": error}


def read_jobs(file: Path, out: Path) -> tuple[list[Job], int]:
    """The trainings that a TOML file lists, each with a folder in ``out``, and how many at a time."""
    try:
        content = tomllib.loads(file.read_bytes().decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not TOML: {error}") from None
    unknown = sorted(content.keys() - {"train", "side_by_side"})
    if unknown:
        raise ValueError(f"{file} has {unknown[0]!r} at its top, where only tables [[train]] and side_by_side may be")
    rows = content.get("train")
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{file} must hold tables [[train]] with arch and dataset, and may hold side_by_side")
    jobs = [_job(row, f"{file}, training {number}", out) for number, row in enumerate(rows, 1)]
    folders = [job.folder for job in jobs]
    twice = next((folder for folder in folders if folders.count(folder) > 1), None)
    if twice is not None:
        raise ValueError(
            f"{file}: two trainings would share the folder {twice}; list each once, and those that differ in "
            "more than network, dataset, head and seed in files of their own"
        )
    count = content.get("side_by_side", SIDE_BY_SIDE)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ValueError(f"{file}: side_by_side must be a whole number from 1, got {count!r}")
    return jobs, count


def _job(row: object, place: str, out: Path) -> Job:
    known = {field.name for field in fields(Recipe)} | {"act"}
    if not isinstance(row, dict):
        raise ValueError(f"{place} must be a table [[train]] with arch and dataset, got {row!r}")
    unknown = sorted(row.keys() - known)
    if not {"arch", "dataset"} <= row.keys() or unknown:
        problem = f" and not {unknown[0]!r}" if unknown else ""
        raise ValueError(
            f"{place} needs arch and dataset and may have {', '.join(sorted(known - {'arch', 'dataset'}))}{problem}"
        )
    settings = dict(row)
    act = settings.pop("act", None)
    for key, value in (("arch", settings["arch"]), ("act", act)):
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{place}: {key} must be a name in quotes, got {value!r}")
    try:
        recipe = Recipe(**settings | {"arch": with_act(settings["arch"], act)})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place}: {error}") from None
    return Job(recipe, out / recipe.name)


def with_act(arch: str, act: str | None) -> str:
    """The name of a network with its activation put in.

    >>> with_act("resnet18", "silu")
    'resnet18(act=silu)'
    """
    if act is None:
        return canonical(arch)
    if re.search(r"\bact\s*=", arch):
        raise ValueError(f"{arch!r} has an activation already, and {act!r} is given beside it; give one")
    if act not in ACTIVATIONS:
        raise ValueError(f"unknown activation {act!r}; known: {', '.join(ACTIVATIONS)}")
    return canonical(f"{arch.rstrip()[:-1]}, act={act})" if arch.rstrip().endswith(")") else f"{arch}(act={act})")


def command_of(job: Job, *, data: Path | None = None, options: Sequence[str] = ()) -> list[str]:
    """The command that trains a job, for the interpreter that runs this; it needs no more than torch and NumPy."""
    settings = job.recipe.to_dict()
    words = [sys.executable, "-m", "davis.training", settings.pop("arch"), settings.pop("dataset")]
    for name, value in settings.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    words += [f"--out={job.folder}", *options]  # in one word, since a folder may begin with a dash
    return [*words, f"--data={data}"] if data is not None else words


def run_jobs(
    jobs: Sequence[Job],
    *,
    side_by_side: int = SIDE_BY_SIDE,
    data: Path | None = None,
    device: str | None = None,
    options: Sequence[str] = (),
    share: bool = True,
    say: Said = lambda text: None,
    watch: Callable[[Sequence[Job]], None] = lambda running: None,
) -> list[dict[str, Any]]:
    """Train all that is not trained yet, a fixed number at a time; a row for each, failed ones among them.

    What a training prints is in ``output.log`` of its folder. With ``share``, those on one GPU run at the same time
    where they would take turns. ``watch`` is called with what runs, again and again.
    """
    if side_by_side < 1:
        raise ValueError(f"at least one training runs at a time, got side_by_side={side_by_side}")
    waiting: list[Job] = []
    running: dict[str, tuple[Job, subprocess.Popen[bytes]]] = {}
    failed: dict[str, str] = {}

    def fail(job: Job, error: str) -> None:
        failed[job.recipe.name] = error
        say(f"{job.recipe.name}: {error}")

    for job in jobs:
        try:
            if finished(job.recipe, job.folder, data=data, say=say) is None:
                waiting.append(job)
        except (ValueError, OSError) as error:
            fail(job, _one_line(error))
    words = [*options, *(["--device", device] if device else [])]
    # Threads by all jobs, not by those that wait: given again after a kill, each has as many and ends in the same bits.
    sharing = _shared(device, min(len(jobs), side_by_side), share and len(waiting) > 1, say)
    with _asked_to_end(), sharing as shared, _all_end(running):
        while waiting or running:
            while waiting and len(running) < side_by_side:
                job = waiting.pop(0)
                try:
                    process = start(job, data=data, options=words, environment=shared)
                except OSError as error:
                    fail(job, f"cannot write in {job.folder} ({error.strerror}); choose another folder")
                    continue
                running[job.recipe.name] = (job, process)
                say(f"{job.recipe.name}: begun, {len(waiting)} waiting")
            time.sleep(_POLL)
            watch([job for job, _ in running.values()])
            for name, (job, process) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[name]
                row = job.state()
                log = job.folder / "output.log"
                if process.returncode:
                    fail(job, f"{_last_error(log) or f'ended with status {process.returncode}'}; see {log}")
                elif row["state"] != "trained":
                    fail(job, row["error"] or f"ended without a model card; see {log}")
                else:
                    say(f"{name}: trained, test accuracy {100 * row['test accuracy']:.2f}")
    return [job.failed(failed[job.recipe.name]) if job.recipe.name in failed else job.state() for job in jobs]


@contextmanager
def _asked_to_end() -> Iterator[None]:
    """Inside, signals that ask a process to end are as Ctrl-C is: the trainings end too."""
    signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        signals = []
    before = {each: signal.getsignal(each) for each in signals if signal.getsignal(each) != signal.SIG_IGN}  # nohup
    for each in before:
        signal.signal(each, signal.default_int_handler)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _last_error(log: Path) -> str | None:
    """What the last process that printed there said of its end."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = lines[-1] if lines else ""
    return last.removeprefix("error: ") if last.startswith("error: ") else None


@contextmanager
def _all_end(running: Mapping[str, tuple[Job, subprocess.Popen[bytes]]]) -> Iterator[None]:
    """What still runs when this is left is ended."""
    try:
        yield
    finally:
        for _, process in running.values():
            process.terminate()


def start(
    job: Job,
    *,
    data: Path | None = None,
    options: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """A process that trains a job."""
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / "output.log").open("ab") as output:
        words = command_of(job, data=data, options=options)
        return subprocess.Popen(words, stdout=output, stderr=output, env=os.environ | dict(environment))


def _shared(device: str | None, count: int, share: bool, say: Said) -> AbstractContextManager[dict[str, str]]:
    """The environment in which trainings side by side do not stand in one another's way."""
    if _on_card(device):
        return shared_card(say) if share and count > 1 else nullcontext({})
    threads = max(1, torch.get_num_threads() // max(1, count))  # each with all cores: they would wait for one another
    return nullcontext({} if count < 2 or "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": str(threads)})


def _on_card(device: str | None) -> bool:
    return torch.cuda.is_available() and (device or "cuda").startswith("cuda")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
