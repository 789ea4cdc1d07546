"""Everything that happens on a borrowed GPU machine, in one driver: docs/training.md has the sequence of calls.

Here:      python benchmarks/gpu_sitting.py pack DATA PARTS          image sets as lossless mosaics in parts of 56 MiB
There:     python benchmarks/gpu_sitting.py check                    a minute: graph against eager, a benchmark on CUDA
           python benchmarks/gpu_sitting.py start WORK PARTS         detached; call again when more parts have come
           python benchmarks/gpu_sitting.py status WORK
           python benchmarks/gpu_sitting.py collect WORK OUT --wait 540    keeps the machine, then fills 8 files at most
Here:      python benchmarks/gpu_sitting.py join FETCHED TARGET      after each collect

It needs torch, NumPy, Pillow and safetensors, and this source tree: neither typer nor rich.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from davis.catalog import inventory  # noqa: E402 (the tree need not be installed)
from davis.training.jobs import Job, command_of, with_act  # noqa: E402
from davis.training.recipe import Recipe  # noqa: E402

# The order of the work, and the test accuracies that the paper prints: what can't be resumed elsewhere comes first.
ORDER = [
    ("resnet18", None, (93.89, 75.20)),
    ("resnet18", "silu", None),
    ("resnet18", "gelu", None),
    ("resnet18", "tanh", None),
    ("resnet34", None, (93.96, 75.70)),
    ("densenet101", None, (93.61, 74.47)),
    ("mobilenet_v2", None, (92.52, 72.69)),
    ("wrn28_10", None, (95.13, 77.96)),
]
SETS = ("cifar10_train", "cifar10_test", "cifar100_train", "cifar100_test")
SETS += ("svhn", "dtd10", "miniplaces", "lsuncats_crop", "tiny_imagenet")
DEEP = ("densenet101", "mobilenet_v2")  # many small kernels, one after the other: they go first on a shared card
FILES = 8  # that come back from a call
BENCHES = 2  # at a time, beside the trainings
MIB = 1 << 20
TILE, ACROSS, MOSAIC = 32, 50, 10_000  # pixels, pictures in a row, pictures in a file: whole rows


def jobs(work: Path, epochs: int, only: list[str]) -> list[Job]:
    """The sixteen trainings, in order."""
    found = []
    for arch, act, _ in ORDER:
        for dataset in ("cifar10", "cifar100"):
            recipe = Recipe(arch=with_act(arch, act), dataset=dataset, epochs=epochs)
            if not only or recipe.name in only:
                found.append(Job(recipe, work / recipe.name))
    if only and len(found) < len(only):
        raise SystemExit(f"--only takes names such as cifar10-resnet18_silu, got {', '.join(only)}")
    return found


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


# -- the detached driver ---------------------------------------------------------------------------------------------


def start(options: argparse.Namespace) -> None:
    """Begin the work in a session of its own, where it is not under way already."""
    if options.compile and options.threads:
        raise SystemExit("--compile does not go with --threads: tracing a network holds up the other threads")
    options.work.mkdir(parents=True, exist_ok=True)
    if (pid := driver_of(options.work)) is not None:
        print(f"under way as process {pid}; new parts are found by themselves")
        return
    words = [sys.executable, str(ROOT / "benchmarks" / "gpu_sitting.py"), "work", *sys.argv[2:]]
    with (options.work / "driver.log").open("ab") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    (options.work / "driver.pid").write_text(str(process.pid))
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


def work(options: argparse.Namespace) -> None:
    """Train and benchmark what the data that are there allow; what is trained is benchmarked before more is begun."""
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # as many streams as threads may have
    sys.setswitchinterval(0.0005)  # a thread that captures must not keep the others from their next step
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "src"), PYTHONUNBUFFERED="1", OMP_NUM_THREADS="2")
    if options.mps:
        environment |= start_mps(options.work)
    data = options.work / "data"
    todo = {job.recipe.name: job for job in jobs(options.work, options.epochs, options.only)}
    running: dict[Task, subprocess.Popen[bytes] | Thread] = {}
    failures: Counter[Task] = Counter()
    while True:
        there = unpack(options.parts, data)
        for task, process in list(running.items()):
            if process.poll() is not None:
                del running[task]
                failures[task] += process.returncode != 0
                say(f"{task.kind} {task.name}: status {process.returncode}")
        waiting = [task for task in tasks(todo) if failures[task] < 2]
        if not waiting and not running:
            say(f"done; failed: {sorted(+failures) or 'none'}")
            return
        for task in waiting:
            beside = sum(other.kind == task.kind for other in running)
            most = options.side_by_side if task.kind == "train" else BENCHES
            if task in running or beside >= most or not task.needs() <= set(there):
                continue
            running[task] = begin(task, todo[task.name], data, environment, options)
            say(f"{task.kind} {task.name}: begun")
        time.sleep(1)


class Task(NamedTuple):
    """One thing to do for a training."""

    kind: str  # train or bench
    name: str

    def needs(self) -> set[str]:
        """The image sets that must have come."""
        dataset = self.name.partition("-")[0]
        return set(SETS) if self.kind == "bench" else {f"{dataset}_train", f"{dataset}_test"} & set(SETS)


def tasks(todo: Mapping[str, Job]) -> list[Task]:
    """What is left to do: benchmarks first, so that what is finished can go home."""
    trained = {name: (job.folder / "card.json").is_file() for name, job in todo.items()}
    benched = {name: (job.folder / "bench" / "results.json").is_file() for name, job in todo.items()}
    benches = [Task("bench", name) for name in todo if trained[name] and not benched[name]]
    return benches + [Task("train", name) for name in todo if not trained[name]]


def begin(
    task: Task, job: Job, data: Path, environment: dict[str, str], options: argparse.Namespace
) -> subprocess.Popen[bytes] | Thread:
    job.folder.mkdir(parents=True, exist_ok=True)
    if task.kind == "train" and options.threads:
        return Thread(job, data)
    compiled = ["--compile"] if options.compile else []
    words = command_of(job, data=data, options=["--save-every", "5", *compiled])
    if task.kind == "bench":
        words = [sys.executable, str(ROOT / "benchmarks" / "gpu_sitting.py"), "bench", str(options.work), task.name]
        words += [] if options.pixels else ["--no-pixels"]
    with (job.folder / f"{task.kind}.log").open("ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, env=environment)


class Thread(threading.Thread):
    """A training in this process, on a stream of its own: its kernels run beside those of the others."""

    def __init__(self, job: Job, data: Path) -> None:
        super().__init__(daemon=True)
        self.job, self.data = job, data
        self.returncode: int | None = None
        self.start()

    def poll(self) -> int | None:
        return self.returncode

    def run(self) -> None:
        import torch

        from davis.training import train

        torch.backends.cudnn.benchmark = True  # of the process: one training that ends must not turn it off for others
        try:
            urgent = -1 if self.job.recipe.arch.startswith(DEEP) else 0
            stream = torch.cuda.Stream(priority=urgent) if torch.cuda.is_available() else None
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                train(self.job.recipe, self.job.folder, data=self.data, save_every=5)
            self.returncode = 0
        except Exception:
            with (self.job.folder / "train.log").open("a") as log:
                log.write(traceback.format_exc())
            self.returncode = 1


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
    return pipes if done.returncode == 0 else {}


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


def status(options: argparse.Namespace) -> None:
    """Print a line for each training, and the end of the driver's log."""
    pid = driver_of(options.work)
    print(f"driver: {'not running' if pid is None else f'process {pid}'}; data: {sorted(found(options.work))}")
    print(f"| training | state | epoch | loss | test accuracy | paper | seconds | benchmark |\n{'|---' * 8}|")
    for job in jobs(options.work, options.epochs, options.only):
        row, paper = job.state(), paper_accuracy(job)
        accuracy = "" if row["test accuracy"] is None else f"{100 * row['test accuracy']:.2f}"
        benched = "done" if (job.folder / "bench" / "results.json").is_file() else ""
        loss = "" if row["loss"] is None else f"{row['loss']:.4f}"
        cells = (row["name"], row["state"], row["epoch"], loss, accuracy, paper or "", row["seconds"], benched)
        print(f"| {' | '.join(map(str, cells))} |")
    log = options.work / "driver.log"
    if log.is_file():
        print("\n".join(log.read_text().splitlines()[-12:]))


def found(work: Path) -> list[str]:
    return [name for name in SETS if (work / "data" / f"{name}.npz").is_file()]


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
    until = time.monotonic() + options.wait
    while time.monotonic() < until and driver_of(options.work) is not None:
        time.sleep(1)
    chosen = jobs(options.work, options.epochs, options.only)
    sent = options.work / "sent"
    sent.mkdir(exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(options.out / "tables.tar.gz", "w:gz") as archive:
        for job in chosen:
            for name in SMALL:
                if (job.folder / name).is_file():
                    archive.add(job.folder / name, f"{job.recipe.name}/{name}")
        if (options.work / "driver.log").is_file():
            archive.add(options.work / "driver.log", "driver.log")
    waiting = [piece for piece in pieces(chosen, options) if not (sent / piece.name).is_file()]
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
    status(options)
    print(f"{len(list(options.out.iterdir()))} files; {left} pieces are left: collect again")


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


def pieces(chosen: list[Job], options: argparse.Namespace) -> list[Piece]:
    """Weights of what is trained; with --last also the checkpoints that are small enough to go on with elsewhere."""
    found, step = [], int(options.size * MIB)
    for job in chosen:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)

    def verb(function: Any, *places: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(function.__name__, help=(function.__doc__ or "").strip())
        added.set_defaults(function=function)
        for place in places:
            added.add_argument(place, type=lambda text: Path(text).resolve())  # the tree may be sent anew meanwhile
        return added

    verb(pack, "data", "parts").add_argument("--size", type=float, default=56, help="MiB of a part")
    verb(join, "fetched", "target")
    verb(check)
    for function in (start, work):
        added = verb(function, "work", "parts")
        added.add_argument("--side-by-side", type=int, default=4)
        added.add_argument("--threads", action="store_true", help="train in one process, each on a stream of its own")
        added.add_argument("--compile", action="store_true", help="fuse kernels by torch.compile; not in threads")
        added.add_argument("--mps", action="store_true", help="let the processes share the card at the same time")
        added.add_argument("--no-pixels", dest="pixels", action="store_false", help="leave out ODIN and AdaSCALE")
    added = verb(bench, "work")
    added.add_argument("name")
    added.add_argument("--no-pixels", dest="pixels", action="store_false")
    verb(status, "work")
    added = verb(collect, "work", "out")
    added.add_argument("--wait", type=float, default=0, help="seconds before that, while the work goes on")
    added.add_argument("--last", action="store_true", help="small checkpoints of unfinished trainings too")
    added.add_argument("--room", type=float, default=60, help="MiB of a call")
    added.add_argument("--size", type=float, default=15, help="MiB of a file")
    added.add_argument("--largest", type=float, default=32, help="MiB of a checkpoint that is worth bringing home")
    for name in ("start", "work", "status", "collect"):
        verbs.choices[name].add_argument("--only", nargs="*", default=[], help="names such as cifar10-resnet18_silu")
        verbs.choices[name].add_argument("--epochs", type=int, default=100)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
