"""The work on the borrowed machine: one call, the driver that outlasts calls, the benchmark of what is trained."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from davis import atomic
from davis.catalog import inventory
from davis.training.jobs import Job, command_of
from davis.training.sharing import shared_card
from sitting import luggage, plan
from sitting.parts import unpack
from sitting.plan import Task

SCRIPT = Path("benchmarks") / "gpu_sitting.py"
BENCHES = 2  # at a time, beside the trainings
ATTEMPTS = 4  # at each thing
PAUSE, LONGEST_PAUSE = 10.0, 60.0  # seconds between them: doubled each time, at most
SPACING = 5.0  # seconds: several that call on the card in the same moment find it busy
QUIET = {"train": 300.0, "bench": 600.0}  # seconds without a word, after which a process is taken to hang
TOLD_EVERY = 15.0  # seconds, by a benchmark
CALM = 120.0  # seconds without one turned away, after which one more is tried
CHECKED = "check.log"  # what came of a small benchmark on the card
MPS = "mps"  # the folder of the service through which they share the card
TURNED_AWAY = (b"busy or unavailable", b"finds no CUDA", b"MPS", b"CUDA driver initialization failed")
"""What is printed by a process that did not get the card; nothing is wrong with what it does."""


def visit(options: argparse.Namespace) -> None:
    """Put what came in its place, begin the work or let it go on, wait, and fill OUT with what is new."""
    land(plan.ROOT, options.home, renew=options.renew)
    plan.keep_stay(options.home / "work", options.stay)
    start(options, [sys.executable, str(options.home / "tree" / SCRIPT), "work", *sys.argv[2:]])
    luggage.collect(options)


def land(sent: Path, home: Path, *, renew: bool = False) -> None:
    """Keep what one call sent: the next sends another tree. A part is whole or not there, for the driver reads on."""
    output, tree, incoming = sent / "benchmarks" / "output", home / "tree", home / "incoming"
    shutil.rmtree(incoming, ignore_errors=True)  # of a call that was cut off
    if renew or not tree.is_dir():
        for name in ("src", "benchmarks"):
            shutil.copytree(sent / name, incoming / "tree" / name, ignore=shutil.ignore_patterns("output"))
        if tree.is_dir():
            os.replace(tree, home / f"tree-until-{time.time_ns()}")
        os.replace(incoming / "tree", tree)
    for kind in ("work", "parts"):  # checkpoints before what begins trainings
        (home / kind).mkdir(parents=True, exist_ok=True)
        for folder in sorted((output / kind).glob("*")):
            if folder.is_dir() and not (home / kind / folder.name).exists():
                shutil.copytree(folder, incoming / folder.name)
                os.replace(incoming / folder.name, home / kind / folder.name)
    arrived = output / "work" / luggage.ARRIVED
    if arrived.is_file():
        shutil.copy(arrived, home / "work" / luggage.ARRIVED)


def start(options: argparse.Namespace, words: list[str]) -> None:
    """Begin the driver in a session of its own, where none is at work."""
    work = options.home / "work"
    if (pid := driver_of(work)) is not None:
        print(f"under way as process {pid}; new parts are found by themselves")
        return
    if (work / "driver.pid").is_file():
        with suppress(ProcessLookupError):  # what a driver left behind that died would be in the way of the next
            os.killpg(int((work / "driver.pid").read_text()), signal.SIGKILL)
    with (work / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            words,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=options.home,  # the place that it was called from goes with the call
        )
    atomic.write(work / "driver.pid", str(process.pid).encode())
    print(f"begun as process {process.pid}")


def driver_of(work: Path) -> int | None:
    """The process of the driver, where it is at work."""
    file = work / "driver.pid"
    if not file.is_file():
        return None
    pid = int(file.read_text())
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    starting = command == b"" and state != "Z"  # for a moment a new process has no command line
    return pid if starting or SCRIPT.name.encode() in command else None


def work(options: argparse.Namespace) -> None:
    """Train and benchmark what the data that are there allow; what is trained is benchmarked before more is begun."""
    place = options.home / "work"
    todo = {job.recipe.name: job for job in plan.chosen(options)}
    environment = dict(os.environ, PYTHONPATH=str(plan.ROOT / "src"), PYTHONUNBUFFERED="1", OMP_NUM_THREADS="2")
    with shared_card(say, place / MPS) if options.mps else nullcontext({}) as shared:
        if options.device != "cpu" and not (place / CHECKED).is_file():
            # While no data have come the card is idle: whether a benchmark runs there is known before one is needed.
            with (place / CHECKED).open("wb") as log:
                words = [sys.executable, str(plan.ROOT / SCRIPT), "check", "--no-steps"]
                subprocess.Popen(words, stdout=log, stderr=log, env=environment | shared)
        Driver(place, todo, environment | shared, options).run()


class Running(NamedTuple):
    """A task under way."""

    process: subprocess.Popen[bytes]
    log: Path
    seen: int  # bytes that earlier attempts had printed
    since: float

    def hangs(self, kind: str) -> bool:
        """Whether nothing was heard of it for long."""
        return time.time() - max(self.since, self.log.stat().st_mtime) > QUIET[kind]

    def was_turned_away(self) -> bool:
        """Whether it ended because it did not get the card."""
        said = self.log.read_bytes()[self.seen :]
        return any(text in said for text in TURNED_AWAY)


class Driver:
    """What is to do, what is under way, and what the card takes."""

    def __init__(
        self, place: Path, todo: dict[str, Job], environment: dict[str, str], options: argparse.Namespace
    ) -> None:
        self.place, self.todo, self.environment, self.options = place, todo, environment, options
        self.running: dict[Task, Running] = {}
        self.failures: Counter[Task] = Counter()
        self.refusals: Counter[Task] = Counter()
        self.again_at: dict[Task, float] = {}
        self.next_at, self.calm_since = 0.0, time.monotonic()
        self.at_most = {"train": options.side_by_side, "bench": BENCHES}

    def run(self) -> None:
        """Until nothing is left that could end in time."""
        while True:
            there = unpack(self.options.home / "parts", self.place / "data")
            self.reap()
            left = plan.minutes_left(self.place)
            waiting = [
                task for task in plan.tasks(self.todo) if task not in self.running and self.failures[task] < ATTEMPTS
            ]
            if not self.running and not any(plan.all_can_end(self.costs(task), left) for task in waiting):
                say(f"done; failed: {sorted(+self.failures) or 'none'}")
                return
            if time.monotonic() >= self.next_at and (task := self.next_of(waiting, set(there), left)) is not None:
                self.running[task] = begin(task, self.todo[task.name], self.place, self.environment, self.options)
                self.next_at = time.monotonic() + SPACING
                say(f"{task.kind} {task.name}: begun")
            time.sleep(1)

    def reap(self) -> None:
        """Take note of what has ended, and end what hangs."""
        for task, running in list(self.running.items()):
            if running.process.poll() is None and running.hangs(task.kind):
                say(f"{task.kind} {task.name}: silent for {QUIET[task.kind]:.0f} s, ended")
                running.process.kill()
                running.process.wait()
            if running.process.poll() is None:
                continue
            del self.running[task]
            say(f"{task.kind} {task.name}: status {running.process.returncode}")
            if running.process.returncode == 0:
                continue
            if running.was_turned_away():
                self.refusals[task] += 1
                self.make_room(task.kind)
            else:
                self.failures[task] += 1
            tries = self.refusals[task] + self.failures[task]
            self.again_at[task] = time.monotonic() + min(PAUSE * 2 ** (tries - 1), LONGEST_PAUSE)
        if time.monotonic() - self.calm_since > CALM and self.at_most["train"] < self.options.side_by_side:
            self.at_most["train"] += 1
            self.calm_since = time.monotonic()
            say(f"all is calm: {self.at_most['train']} trainings at a time again")

    def make_room(self, kind: str) -> None:
        """What the card turned away has not failed: no more are begun for a while than those that it took."""
        self.calm_since = time.monotonic()
        if kind == "train":
            taken = sum(other.kind == "train" for other in self.running)
            self.at_most["train"] = max(1, min(taken, self.at_most["train"]))
            say(f"the card is crowded: for now {self.at_most['train']} trainings at a time")

    def next_of(self, waiting: list[Task], there: set[str], left: float) -> Task | None:
        """The first that has its data, a place, and time to end beside the others; else one that could go on later."""
        kept = Counter[str]()  # places for what comes first and has no data yet
        to_go_on = None
        for task in waiting:
            beside = [other for other in self.running if other.kind == task.kind]
            if len(beside) + kept[task.kind] >= self.at_most[task.kind]:
                continue
            if time.monotonic() < self.again_at.get(task, 0):
                continue
            if not task.needs() <= there:
                kept[task.kind] += 1
            elif plan.all_can_end(self.costs(task, *self.running), left):
                if plan.ends_alone(self.costs(task)[0], left):
                    return task
                to_go_on = to_go_on or task
        return to_go_on

    def costs(self, *tasks: Task) -> list[plan.Cost]:
        """What they still take of the card."""
        return [plan.work_left(self.todo[task.name], task) for task in tasks]


def begin(task: Task, job: Job, place: Path, environment: dict[str, str], options: argparse.Namespace) -> Running:
    """A process that does it; what it prints goes to a log beside what it makes."""
    job.folder.mkdir(parents=True, exist_ok=True)
    device = ["--device", options.device]  # said: one that does not get the card must not go on without it
    if task.kind == "train":
        compiled = ["--compile"] if options.compile else []
        words = command_of(job, data=place / "data", options=["--save-every", "5", *device, *compiled])
    else:
        words = [sys.executable, str(plan.ROOT / SCRIPT), "bench", str(place), task.name, *device]
        words += [] if options.pixels else ["--no-pixels"]
    file = job.folder / f"{task.kind}.log"
    with file.open("ab") as log:
        seen = log.tell()
        process = subprocess.Popen(words, stdout=log, stderr=log, env=environment)
    return Running(process, file, seen, time.time())


def say(text: str) -> None:
    """A line of a log."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@contextmanager
def told(title: str, images: int) -> Iterator[Callable[[int], None]]:
    """What a benchmark is at, in a line now and then: one that is silent is taken to hang."""
    done, told_at = 0, time.monotonic()
    say(f"{title}: {images} images")

    def step(more: int) -> None:
        nonlocal done, told_at
        done += more
        if time.monotonic() - told_at >= TOLD_EVERY:
            told_at = time.monotonic()
            say(f"{title}: {done} of {images}")

    yield step


def bench(options: argparse.Namespace) -> None:
    """Compare the paper's methods on a trained network, on the OOD sets that are there."""
    from davis.bench import describe
    from davis.bench.run import run

    folder = options.work / options.name
    dataset, _, arch = options.name.partition("-")
    spec = f"paper-{dataset}-{arch}" + ("-own" if arch == "densenet101" else "")
    description, _ = describe.read(spec)
    data = options.data or options.work / "data"
    for group in ("far", "near"):
        missing = [row.dataset.name for row in inventory(data) if row.state != "present"]
        description[group] = {key: name for key, name in description[group].items() if name not in missing}
    weights = str((folder / "weights.safetensors").resolve())
    built = describe.build(description, folder, data=data, weights=weights, device=options.device, batch=500)
    built = replace(built, pixel_images=options.pixel_images)
    if not options.pixels:
        built = replace(built, specs=describe.without_pixels(list(built.specs)))
    cache = options.work / "cache" / options.name
    results = run(built, folder / "bench", cache=cache, watch=told)
    shutil.rmtree(cache)  # gigabytes, and the tables are written
    for left_out, reason in results.facts["left_out"].items():
        print(f"{options.name}: left out {left_out}: {reason}")
    print(f"{options.name}: accuracy {results.accuracy}, {len(results.rows)} rows")
