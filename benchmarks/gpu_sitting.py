"""Everything that happens on a borrowed GPU machine, in one driver: docs/training.md has the sequence of calls.

Here:      python benchmarks/gpu_sitting.py pack DATA PARTS     image sets as lossless mosaics in parts of 56 MiB
There:     python benchmarks/gpu_sitting.py visit OUT --wait 0  each call: keeps the part that came, goes on, fills OUT
           python benchmarks/gpu_sitting.py check               a minute: graph against eager, a benchmark on CUDA
Here:      python benchmarks/gpu_sitting.py join FETCHED TARGET after each call that gave something back

It needs torch, NumPy, Pillow and safetensors, and this source tree: neither typer nor rich.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from davis.catalog import inventory  # noqa: E402 (the tree need not be installed)
from davis.training import figure  # noqa: E402
from davis.training.files import read_log  # noqa: E402
from davis.training.jobs import Job, command_of, with_act  # noqa: E402
from davis.training.recipe import Recipe  # noqa: E402

# The order of the work, and the test accuracies that the paper prints: what is to ship first, the largest last.
ORDER = [
    ("densenet101", None, (93.61, 74.47)),
    ("resnet18", None, (93.89, 75.20)),
    ("mobilenet_v2", None, (92.52, 72.69)),
    ("resnet18", "silu", None),
    ("resnet18", "gelu", None),
    ("resnet18", "tanh", None),
    ("resnet34", None, (93.96, 75.70)),
    ("wrn28_10", None, (95.13, 77.96)),
]


class Cost(NamedTuple):
    """Minutes of an H200 that 100 epochs take, compiled."""

    alone: float  # with the card to itself
    full: float  # of a card that is busy all the time: what the others wait for it
    resumes: bool = False  # in another sitting: its checkpoint is small enough to come home


# Alone, ResNet-18 and DenseNet-101 are measured (benchmarks/training_speed.md), and so is ResNet-18 on a full card: a
# share of four there. WRN-28-10 alone was given to us. All others are guessed from their arithmetic.
COSTS = {
    "resnet18": Cost(2.5, 2.0),
    "resnet34": Cost(4.8, 4.0),
    "wrn28_10": Cost(9.9, 9.9),
    "densenet101": Cost(11.7, 6.0, resumes=True),
    "mobilenet_v2": Cost(5.0, 3.0, resumes=True),
}
SLACK = 1.5  # minutes: to compile, to test, to write
SETS = ("cifar10_train", "cifar10_test", "cifar100_train", "cifar100_test")
SETS += ("svhn", "dtd10", "miniplaces", "lsuncats_crop", "tiny_imagenet")
FILES = 8  # that come back from a call
BENCHES = 1  # at a time, beside the trainings
ATTEMPTS, PAUSE = 4, 15.0  # at each thing, and the seconds between them: a card may be busy for a moment
AT_HOME = ROOT / "benchmarks" / "trained"
MIB = 1 << 20
TILE, ACROSS, MOSAIC = 32, 50, 10_000  # pixels, pictures in a row, pictures in a file: whole rows


def jobs(work: Path, epochs: int = 100, images: int | None = None) -> list[Job]:
    """The sixteen trainings, in order."""
    archs = [with_act(arch, act) for arch, act, _ in ORDER]
    recipes = [
        Recipe(arch=arch, dataset=dataset, epochs=epochs, images=images)
        for arch in archs
        for dataset in ("cifar10", "cifar100")
    ]
    return [Job(recipe, work / recipe.name) for recipe in recipes]


def chosen(options: argparse.Namespace) -> list[Job]:
    """Those that are asked for by name, else all whose tables are not at home yet."""
    every = {job.recipe.name: job for job in jobs(options.home / "work", options.epochs, options.images)}
    if unknown := set(options.only) - every.keys():
        raise SystemExit(f"--only takes names such as cifar10-resnet18_silu, got {', '.join(sorted(unknown))}")
    if options.only:
        return [every[name] for name in options.only]
    return [job for name, job in every.items() if not (AT_HOME / name / "results.json").is_file()]


def paper_accuracy(job: Job) -> float | None:
    places = {"cifar10": 0, "cifar100": 1}
    known = [both for arch, act, both in ORDER if both and with_act(arch, act) == job.recipe.arch]
    return known[0][places[job.recipe.dataset]] if known and job.recipe.dataset in places else None


# -- data: npz -> mosaics in parts -> npz ----------------------------------------------------------------------------


def pack(options: argparse.Namespace) -> None:
    """Write each set as mosaics, and spread them over folders that one transfer takes."""
    part, room = -1, 0
    for name in SETS:
        with np.load(options.data / f"{name}.npz") as arrays:
            images, labels = arrays["images"], arrays["labels"]
        options.parts.mkdir(parents=True, exist_ok=True)
        made = options.parts / "made"
        made.mkdir(exist_ok=True)
        np.save(made / f"{name}.labels.npy", labels.astype(np.int16))
        for number, start in enumerate(range(0, len(images), MOSAIC)):
            mosaic(images[start : start + MOSAIC]).save(made / f"{name}.{number}.webp", lossless=True, method=4)
        for file in sorted(made.iterdir()):
            if part < 0 or file.stat().st_size > room:
                part, room = part + 1, int(options.size * MIB)
                (options.parts / f"{part:02d}").mkdir(exist_ok=True)
            room -= file.stat().st_size
            os.replace(file, options.parts / f"{part:02d}" / file.name)
        made.rmdir()
        print(f"{name}: up to part {part:02d}", flush=True)


def mosaic(images: np.ndarray) -> Image.Image:
    rows = -(-len(images) // ACROSS)
    canvas = np.zeros((rows * ACROSS, TILE, TILE, 3), np.uint8)
    canvas[: len(images)] = images
    tiles = canvas.reshape(rows, ACROSS, TILE, TILE, 3).swapaxes(1, 2)
    return Image.fromarray(tiles.reshape(rows * TILE, ACROSS * TILE, 3))


def unpack(parts: Path, data: Path) -> list[str]:
    """Write each set whose files have all come; the names of those that are there."""
    Image.MAX_IMAGE_PIXELS = None
    data.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        target = data / f"{name}.npz"
        labels_file = next(parts.glob(f"*/{name}.labels.npy"), None)
        if target.is_file() or labels_file is None:
            continue
        labels = np.load(labels_file).astype(np.int64)
        numbers = range(-(-len(labels) // MOSAIC))
        files = [next(parts.glob(f"*/{name}.{number}.webp"), None) for number in numbers]
        if any(file is None for file in files):
            continue
        tiles = []
        for file in files:
            pixels = np.asarray(Image.open(file).convert("RGB"))  # type: ignore[arg-type]
            rows = pixels.shape[0] // TILE
            tiles.append(pixels.reshape(rows, TILE, ACROSS, TILE, 3).swapaxes(1, 2).reshape(-1, TILE, TILE, 3))
        unfinished = data / f"{name}.next.npz"
        np.savez(unfinished, images=np.concatenate(tiles)[: len(labels)], labels=labels)
        os.replace(unfinished, target)
    return [name for name in SETS if (data / f"{name}.npz").is_file()]


# -- one call there --------------------------------------------------------------------------------------------------


def visit(options: argparse.Namespace) -> None:
    """Put what came in its place, begin the work or let it go on, wait, and fill OUT with what is new."""
    land(ROOT, options.home)
    script = options.home / "tree" / "benchmarks" / "gpu_sitting.py"
    start(options, [sys.executable, str(script), "work", *sys.argv[2:]])
    collect(options)


def land(sent: Path, home: Path) -> None:
    """Keep what one call sent: the next sends another tree. A part is whole or not there, for the driver reads on."""
    output, tree, incoming = sent / "benchmarks" / "output", home / "tree", home / "incoming"
    if not tree.is_dir():
        for name in ("src", "benchmarks"):
            shutil.copytree(sent / name, incoming / "tree" / name, ignore=shutil.ignore_patterns("output"))
        os.replace(incoming / "tree", tree)
    for kind in ("parts", "work"):
        (home / kind).mkdir(parents=True, exist_ok=True)
        for folder in sorted((output / kind).glob("*")):
            if folder.is_dir() and not (home / kind / folder.name).exists():
                shutil.copytree(folder, incoming / folder.name)
                os.replace(incoming / folder.name, home / kind / folder.name)


def start(options: argparse.Namespace, words: list[str]) -> None:
    """Begin the driver in a session of its own, where none is at work."""
    work = options.home / "work"
    if (pid := driver_of(work)) is not None:
        print(f"under way as process {pid}; new parts are found by themselves")
        return
    with (work / "driver.log").open("ab") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    (work / "driver.pid").write_text(str(process.pid))
    print(f"begun as process {process.pid}")


def driver_of(work: Path) -> int | None:
    file = work / "driver.pid"
    if not file.is_file():
        return None
    pid = int(file.read_text())
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return pid if b"gpu_sitting" in command else None


# -- the detached driver ---------------------------------------------------------------------------------------------


def work(options: argparse.Namespace) -> None:
    """Train and benchmark what the data that are there allow; what is trained is benchmarked before more is begun."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "src"), PYTHONUNBUFFERED="1", OMP_NUM_THREADS="2")
    place = options.home / "work"
    data = place / "data"
    if options.mps:
        environment |= start_mps(place)
    todo = {job.recipe.name: job for job in chosen(options)}
    running: dict[Task, subprocess.Popen[bytes]] = {}
    failures: Counter[Task] = Counter()
    again_at: dict[Task, float] = {}
    while True:
        there = unpack(options.home / "parts", data)
        for task, process in list(running.items()):
            if process.poll() is not None:
                del running[task]
                say(f"{task.kind} {task.name}: status {process.returncode}")
                if process.returncode:
                    failures[task] += 1
                    again_at[task] = time.monotonic() + PAUSE
        left = options.stay - (time.time() - began(place)) / 60
        waiting = [task for task in tasks(todo) if task not in running and failures[task] < ATTEMPTS]
        if not running and not any(all_can_end([work_left(todo[task.name], task)], left) for task in waiting):
            say(f"done; failed: {sorted(+failures) or 'none'}")
            return
        kept = Counter[str]()  # places for what comes first and has no data yet
        for task in waiting:
            beside = [other for other in running if other.kind == task.kind]
            most = options.side_by_side if task.kind == "train" else BENCHES
            if len(beside) + kept[task.kind] >= most or time.monotonic() < again_at.get(task, 0):
                continue
            if not task.needs() <= set(there):
                kept[task.kind] += 1
                continue
            if not all_can_end([work_left(todo[each.name], each) for each in (task, *running)], left):
                continue
            running[task] = begin(task, todo[task.name], data, environment, options)
            say(f"{task.kind} {task.name}: begun")
            break  # one at a time: several that call on the card in the same moment find it busy
        time.sleep(1)


class Task(NamedTuple):
    """One thing to do for a training."""

    kind: str  # train or bench
    name: str

    def needs(self) -> set[str]:
        """The image sets that must have come."""
        dataset = self.name.partition("-")[0]
        return set(SETS) if self.kind == "bench" else {f"{dataset}_train", f"{dataset}_test"} & set(SETS)


def work_left(job: Job, task: Task) -> Cost:
    """What a training still takes of the card; of a benchmark nothing is known, and it is short."""
    if task.kind == "bench":
        return Cost(0, 0, resumes=True)
    try:
        done = len(read_log(job.folder))
    except ValueError:  # the training itself says what is wrong with it
        done = 0
    cost, share = COSTS[job.recipe.arch.partition("(")[0]], 1 - done / job.recipe.epochs
    return Cost(cost.alone * share, cost.full * share, cost.resumes)


def all_can_end(side_by_side: list[Cost], minutes: float) -> bool:
    """Whether these end in time where all share the card alike; one that can go on elsewhere is waited for if it could
    end by itself."""

    def ends(one: Cost) -> bool:
        together = max(one.alone, sum(min(one.full, other.full) for other in side_by_side))
        return together + SLACK <= minutes or (one.resumes and one.alone + SLACK > minutes)

    return all(ends(one) for one in side_by_side)


def began(work: Path) -> float:
    """When the first driver of this machine began, by the clock."""
    file = work / "began"
    if not file.is_file():
        file.write_text(str(time.time()))
    return float(file.read_text())


def tasks(todo: Mapping[str, Job]) -> list[Task]:
    """What is left to do: benchmarks first, so that what is finished can go home."""
    trained = {name: (job.folder / "card.json").is_file() for name, job in todo.items()}
    benched = {name: (job.folder / "bench" / "results.json").is_file() for name, job in todo.items()}
    benches = [Task("bench", name) for name in todo if trained[name] and not benched[name]]
    return benches + [Task("train", name) for name in todo if not trained[name]]


def begin(
    task: Task, job: Job, data: Path, environment: dict[str, str], options: argparse.Namespace
) -> subprocess.Popen[bytes]:
    job.folder.mkdir(parents=True, exist_ok=True)
    compiled = ["--compile"] if options.compile else []
    words = command_of(job, data=data, options=["--save-every", "5", *compiled])
    if task.kind == "bench":
        words = [sys.executable, str(ROOT / "benchmarks" / "gpu_sitting.py"), "bench", str(data.parent), task.name]
        words += [] if options.pixels else ["--no-pixels"]
    with (job.folder / f"{task.kind}.log").open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, env=environment)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def start_mps(folder: Path) -> dict[str, str]:
    """CUDA's multi-process service: kernels of several processes run at the same time. The card stays as it is."""
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "mps"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "mps")}
    (folder / "mps").mkdir(exist_ok=True)
    daemon = shutil.which("nvidia-cuda-mps-control")
    if daemon is None:
        print("no nvidia-cuda-mps-control here: the processes take turns", flush=True)
        return {}
    done = subprocess.run([daemon, "-d"], env=os.environ | pipes, capture_output=True, text=True)
    print(f"mps: status {done.returncode} {done.stdout} {done.stderr}", flush=True)
    return pipes if done.returncode == 0 or "already running" in done.stdout + done.stderr else {}


def bench(options: argparse.Namespace) -> None:
    """Compare the paper's methods on a trained network, on the OOD sets that are there."""
    from davis.bench import describe
    from davis.bench.run import run

    folder = options.work / options.name
    dataset, _, arch = options.name.partition("-")
    spec = f"paper-{dataset}-{arch}" + ("-own" if arch == "densenet101" else "")
    description, _ = describe.read(spec)
    data = options.work / "data"
    for group in ("far", "near"):
        missing = [row.dataset.name for row in inventory(data) if row.state != "present"]
        description[group] = {key: name for key, name in description[group].items() if name not in missing}
    weights = str((folder / "weights.safetensors").resolve())
    built = describe.build(description, folder, data=data, weights=weights, batch=500)
    if not options.pixels:
        built = replace(built, specs=describe.without_pixels(list(built.specs)))
    cache = options.work / "cache" / options.name
    results = run(built, folder / "bench", cache=cache)
    shutil.rmtree(cache)  # gigabytes, and the tables are written
    for spec, reason in results.facts["left_out"].items():
        print(f"{options.name}: left out {spec}: {reason}")
    print(f"{options.name}: accuracy {results.accuracy}, {len(results.rows)} rows")


# -- looking, and bringing home --------------------------------------------------------------------------------------


def status(work: Path, shown: list[Job]) -> None:
    """Print a line for each training, and the end of the driver's log."""
    pid, there = driver_of(work), [name for name in SETS if (work / "data" / f"{name}.npz").is_file()]
    print(f"driver: {'not running' if pid is None else f'process {pid}'}; data: {there}")
    print(f"| training | state | epoch | loss | test accuracy | paper | seconds | benchmark |\n{'|---' * 8}|")
    for job in shown:
        row, paper = job.state(), paper_accuracy(job)
        accuracy = "" if row["test accuracy"] is None else f"{100 * row['test accuracy']:.2f}"
        benched = "done" if (job.folder / "bench" / "results.json").is_file() else ""
        loss = "" if row["loss"] is None else f"{row['loss']:.4f}"
        cells = (row["name"], row["state"], row["epoch"], loss, accuracy, paper or "", row["seconds"], benched)
        print(f"| {' | '.join(map(str, cells))} |")
    log = work / "driver.log"
    if log.is_file():
        print("\n".join(log.read_text().splitlines()[-12:]))


SMALL = ("card.json", "log.jsonl", "curves.svg", "train.log", "bench.log")
SMALL += (
    "bench/results.json",
    "bench/accuracy.json",
    "bench/timings.json",
    "bench/benchmark.json",
    "bench/left_out.json",
)


def collect(options: argparse.Namespace) -> None:
    """Wait, then put into OUT what has not come home yet: all tables and logs, and weights in parts, finished first."""
    work, shown = options.home / "work", chosen(options)
    until = time.monotonic() + options.wait
    while time.monotonic() < until and driver_of(work) is not None:
        time.sleep(1)
    if options.last and (pid := driver_of(work)) is not None:
        os.killpg(pid, signal.SIGTERM)  # nobody may write a checkpoint anew between two of its parts
        time.sleep(2)
    sent = work / "sent"
    sent.mkdir(exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(options.out / "tables.tar.gz", "w:gz") as archive:
        for job in shown:
            for name in SMALL:
                if (job.folder / name).is_file():
                    archive.add(job.folder / name, f"{job.recipe.name}/{name}")
        if (work / "driver.log").is_file():
            archive.add(work / "driver.log", "driver.log")
    waiting = [piece for piece in pieces(shown, options) if not (sent / piece.name).is_file()]
    room = options.room * MIB - (options.out / "tables.tar.gz").stat().st_size
    left = 0
    for piece in waiting:
        content = piece.read()
        if len(list(options.out.iterdir())) == FILES or len(content) > room:
            left += 1
            continue
        room -= len(content)
        (options.out / piece.name).write_bytes(content)
        (sent / piece.name).touch()
    status(work, shown)
    print(f"{len(list(options.out.iterdir()))} files; {left} pieces are left: visit again")


class Piece(NamedTuple):
    """A part of a file that is too large to travel whole."""

    name: str
    file: Path
    start: int
    size: int

    def read(self) -> bytes:
        with self.file.open("rb") as stream:
            stream.seek(self.start)
            return stream.read(self.size)


def pieces(shown: list[Job], options: argparse.Namespace) -> list[Piece]:
    """Weights of what is trained; with --last also the checkpoints that are small enough to go on with elsewhere."""
    found, step = [], int(options.size * MIB)
    for job in shown:
        finished = (job.folder / "card.json").is_file()
        file = job.folder / ("weights.safetensors" if finished else "checkpoint.safetensors")
        if not file.is_file() or (not finished and (not options.last or file.stat().st_size > options.largest * MIB)):
            continue
        for number, start in enumerate(range(0, file.stat().st_size, step)):
            found.append(Piece(f"{job.recipe.name}.{file.name}.{number:03d}", file, start, step))
    return found


def join(options: argparse.Namespace) -> None:
    """Put fetched files into TARGET, a folder for each training; weights are checked against their cards."""
    options.target.mkdir(parents=True, exist_ok=True)
    if (options.fetched / "tables.tar.gz").is_file():
        with tarfile.open(options.fetched / "tables.tar.gz") as archive:
            archive.extractall(options.target, filter="data")
    for part in sorted(options.fetched.glob("*.safetensors.[0-9]*")):
        name, kind = part.name.split(".")[:2]
        folder = options.target / name / "parts"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(part, folder / part.name.removeprefix(f"{name}."))
    for folder in sorted(options.target.glob("*/parts")):
        for kind in ("weights", "checkpoint"):
            parts = sorted(folder.glob(f"{kind}.safetensors.*"))
            if parts:
                whole = folder.parent / f"{kind}.safetensors"
                whole.write_bytes(b"".join(part.read_bytes() for part in parts))
                print(f"{whole}: {verdict(whole)}")
    for folder in sorted(options.target.glob("*/bench/results.json")):
        keep(folder.parent.parent, options.tables)


def keep(folder: Path, tables: Path) -> None:
    """Put what the repository shows of a network where benchmarks/own_networks.py reads it."""
    place = tables / folder.name
    place.mkdir(parents=True, exist_ok=True)
    for name in ("card.json", "log.jsonl", "bench/results.json"):
        shutil.copy(folder / name, place / Path(name).name)
    figure.draw(read_log(folder), folder.name, place / "curves.svg")  # matplotlib is not where it was trained


def verdict(file: Path) -> str:
    from davis.zoo.weights import sha256_of

    card = file.parent / "card.json"
    if file.stem == "checkpoint" or not card.is_file():
        return "joined from the parts that are here"
    same = sha256_of(file) == json.loads(card.read_text())["sha256"]
    return "whole" if same else "not whole yet: fetch the other calls and join again"


# -- a minute that says whether the rest will work -------------------------------------------------------------------


def check(options: argparse.Namespace) -> None:
    """Compare captured steps with eager ones for every network, and run a benchmark on CUDA, on noise."""
    import tempfile

    import torch

    if not torch.cuda.is_available():
        raise SystemExit("check needs CUDA: torch finds none here")
    from davis.training.pictures import Pictures
    from davis.training.step import Step, capture
    from davis.zoo import ARCHS, build

    torch.backends.cudnn.benchmark = True
    drawn = np.random.default_rng(0)
    pictures = Pictures(
        torch.from_numpy(drawn.integers(0, 256, (640, 32, 32, 3), dtype=np.uint8)).cuda(),
        torch.from_numpy(drawn.integers(0, 10, 640)).cuda(),
    )
    for arch in ARCHS:
        outcomes = []
        for captured in (False, True):
            torch.manual_seed(0)
            step = Step(
                build(arch, classes=10).cuda().train(), pictures, Recipe(arch=arch, dataset="cifar10", rate=0.01)
            )
            take = capture(step) if captured else step
            step.begin(0)
            for _ in range(10):
                take()
            outcomes.append((step.outcome()[0], torch.cat([p.detach().flatten() for p in step.model.parameters()])))
        (eager, before), (graph, after) = outcomes
        apart = float((before - after).norm() / before.norm())
        verdict = "ok" if abs(eager - graph) < 0.05 * eager and apart < 0.02 else "DIFFERENT"
        print(
            f"{arch}: loss of ten steps eager {eager:.5f}, graph {graph:.5f}, weights {apart:.2e} apart: {verdict}",
            flush=True,
        )
    with tempfile.TemporaryDirectory() as place:
        print(f"benchmark on CUDA: {tiny_benchmark(Path(place), 'cuda')} rows", flush=True)


def tiny_benchmark(place: Path, device: str, *, spec: str = "paper-cifar10-resnet18") -> int:
    """The rows of the paper's methods on a small untrained network and noise: does all of it run on the device?"""
    from davis.bench import describe
    from davis.bench.run import run

    drawn = np.random.default_rng(1)
    for name, count in (("train", 400), ("test", 120), ("near", 100), ("far", 100)):
        images = drawn.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        np.savez(place / f"{name}.npz", images=images, labels=drawn.integers(0, 10, count))
    description = describe.read(spec)[0]
    description |= {"id": {"fit": "train.npz", "test": "test.npz"}, "pixel_images": 40}
    description |= {"near": {"near": "near.npz"}, "far": {"far": "far.npz"}}
    built = describe.build(description, place, data=place, weights="none", device=device)
    return len(run(built, place / "out", cache=place / "cache").rows)


def absolute(text: str) -> Path:
    """A path for processes that live in other folders."""
    return Path(text).resolve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)

    def verb(function: Any, *places: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(function.__name__, help=(function.__doc__ or "").strip())
        added.set_defaults(function=function)
        for place in places:
            added.add_argument(place, type=absolute)
        return added

    verb(pack, "data", "parts").add_argument("--size", type=float, default=56, help="MiB of a part")
    verb(join, "fetched", "target").add_argument("--tables", type=Path, default=AT_HOME, help="for the repository")
    verb(check)
    for function in (visit, work):
        added = verb(function, "out")
        added.add_argument(
            "--home", type=absolute, default=Path.home() / "sitting", help="a place that outlasts a call"
        )
        added.add_argument("--wait", type=float, default=0, help="seconds of work before anything is given back")
        added.add_argument("--last", action="store_true", help="end the work; small checkpoints come home too")
        added.add_argument("--only", nargs="*", default=[], help="names such as cifar10-resnet18_silu")
        added.add_argument(
            "--stay", type=float, default=26, help="minutes of work: of 30, starting and fetching take some"
        )
        added.add_argument("--side-by-side", type=int, default=6)
        added.add_argument("--no-compile", dest="compile", action="store_false", help="leave out torch.compile")
        added.add_argument(
            "--no-mps", dest="mps", action="store_false", help="let the processes take turns on the card"
        )
        added.add_argument("--no-pixels", dest="pixels", action="store_false", help="leave out ODIN and AdaSCALE")
        added.add_argument("--epochs", type=int, default=100, help="fewer for a rehearsal")
        added.add_argument("--images", type=int, help="train on the first so many only, for a rehearsal")
        added.add_argument("--room", type=float, default=60, help="MiB of a call")
        added.add_argument("--size", type=float, default=15, help="MiB of a file")
        added.add_argument("--largest", type=float, default=32, help="MiB of a checkpoint that is worth bringing home")
    added = verb(bench, "work")
    added.add_argument("name")
    added.add_argument("--no-pixels", dest="pixels", action="store_false")
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
