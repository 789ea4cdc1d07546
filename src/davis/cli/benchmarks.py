"""The verbs around benchmarks: bench, report, data.

Everything heavy is imported inside the commands: ``davis --help`` must not wait for torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from davis.cli.options import Batch, Device, Json, Skipped, Strict, numbers_of
from davis.cli.printing import note, table

if TYPE_CHECKING:
    from davis.bench.results import Results

DataDir: TypeAlias = Annotated[
    Path | None, typer.Option("--data", help="Folder of datasets; default: $DAVIS_DATA or the user's cache")
]

data_app = typer.Typer(help="Datasets: what is there, what is missing, how to get it.", no_args_is_help=True)


def bench(
    benchmark: Annotated[
        str | None, typer.Argument(help="A TOML file, or a shipped one: davis bench --shipped lists them")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; default: runs/NAME")] = None,
    data: DataDir = None,
    weights: Annotated[str | None, typer.Option(help="File of tensors, default or none, in place of its own")] = None,
    model: Annotated[str | None, typer.Option(help="Without a file: torchvision or timm name, module:factory")] = None,
    fit: Annotated[Path | None, typer.Option(help="Without a file: ID images to fit on; default: half of --id")] = None,
    id: Annotated[Path | None, typer.Option(help="Without a file: ID images")] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Without a file: other ID images, which set thresholds")
    ] = None,
    ood: Annotated[list[Path] | None, typer.Option(help="Without a file: OOD images; may be repeated")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A spec; may be repeated. Default: the file's, or ten")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Without a file: side of the images")] = None,
    mean: Annotated[str | None, typer.Option(help="Without a file: of the channels, such as 0.5,0.5,0.5")] = None,
    std: Annotated[str | None, typer.Option(help="Without a file: of the channels, likewise")] = None,
    pixels: Annotated[bool, typer.Option(help="Run the methods that move images, in passes of their own")] = True,
    pixel_images: Annotated[
        int | None, typer.Option(min=1, help="Images of each set for those; default: the file's, or 2000")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="Folder of cached activations; default: OUT/cache")] = None,
    half: Annotated[bool, typer.Option("--half", help="Cache activations in float16")] = False,
    batch: Batch = 100,
    device: Device = None,
    strict: Strict = False,
    shipped: Annotated[bool, typer.Option("--shipped", help="List the benchmarks that come with davis")] = False,
    as_json: Json = False,
) -> int:
    """Compare detectors on real images: one pass over each set serves all methods; cut off, it goes on."""
    from dataclasses import replace

    from davis.bench import describe
    from davis.bench.report import write_reports
    from davis.bench.run import run
    from davis.catalog import data_directory

    if shipped:
        for name, text in describe.shipped().items():
            print(f"{name}: {text.splitlines()[0].lstrip('# ')}")
        return 0
    data = data or data_directory()
    if (benchmark is None) == (model is None):
        raise ValueError("give a benchmark (a TOML file or a shipped name), or --model, --id and --ood: one of the two")
    if benchmark is not None:
        if id or ood or fit or calibration or size or mean or std:
            raise ValueError(
                "--id, --fit, --calibration, --ood, --size, --mean and --std are for runs without a file; "
                f"{benchmark!r} names its own"
            )
        description, folder = describe.read(benchmark)
    else:
        description, folder = _from_options(str(model), id, fit, calibration, ood or [], size, mean, std), Path.cwd()
    if method:
        description["methods"], description["without"] = method, []
    skipped = Skipped(strict)
    built = describe.build(
        description, folder, data=data, weights=weights, device=device, batch=batch, on_error=skipped.add
    )
    if not pixels:
        built = replace(built, specs=describe.without_pixels(list(built.specs)))
    if pixel_images is not None:
        built = replace(built, pixel_images=pixel_images)
    if half:
        built = replace(built, dtype="float16")
    out = out or Path("runs") / built.name
    results = run(built, out, cache=cache or out / "cache", watch=_watch)
    if strict and results.facts["skipped"]:
        raise ValueError(f"pictures were left out in an earlier run: {results.facts['skipped']}; repair or remove them")
    files = write_reports(results, out)
    _show(results, files, as_json)
    for name, count in results.facts["skipped"].items():
        note(f"{count} pictures of {name} could not be read and were left out")
    for spec, texts in results.facts["warnings"].items():
        for text in texts:
            note(f"warning: {spec!r}: {text}")
    for spec, reason in results.facts["left_out"].items():
        note(f"left out {spec!r}: {reason}")
    return 1 if results.facts["skipped"] or results.facts["left_out"] else 0


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run")],
    as_json: Json = False,
) -> None:
    """Write the tables and the page of a finished run anew."""
    from davis.bench.report import write_reports
    from davis.bench.results import load

    results = load(folder)
    _show(results, write_reports(results, folder), as_json)


@data_app.command("list")
def list_data(data: DataDir = None, as_json: Json = False) -> None:
    """Say what is there, what is missing and how to get it."""
    from davis.catalog import data_directory, inventory

    rows = [
        {
            "name": row.dataset.name,
            "state": row.state,
            "images": row.dataset.count,
            "found": row.found,
            "role": row.dataset.role,
            "what": row.dataset.what,
            "path": str(row.path),
            "licence": row.dataset.licence,
            "how to get it": row.how,
        }
        for row in inventory(data or data_directory())
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        table([{key: value for key, value in row.items() if key not in ("path", "licence")} for row in rows])


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(help="A dataset that can be fetched, such as cifar10")],
    data: DataDir = None,
    as_json: Json = False,
) -> None:
    """Fetch a dataset, check it and put it in place."""
    from davis.catalog import data_directory
    from davis.fetch import get

    target = data or data_directory()
    said = ""

    def progress(what: str, done: int, total: int) -> None:
        nonlocal said
        if what != said:
            note(what)
        said = what

    files = get(name, target, progress)
    if as_json:
        print(json.dumps([str(file) for file in files]))
        return
    for file in files:
        print(file)


def _from_options(
    model: str,
    id: Path | None,
    fit: Path | None,
    calibration: Path | None,
    ood: list[Path],
    size: int | None,
    mean: str | None,
    std: str | None,
) -> dict[str, Any]:
    """The description that the options of a run without a file stand for."""
    from davis.bench.describe import check

    if id is None or not ood:
        raise ValueError("--model needs --id FOLDER and at least one --ood FOLDER")
    if len({path.resolve().name for path in ood}) < len(ood):
        raise ValueError("two --ood folders have the same name; rename one, or write a TOML file that names them")
    known = {"fit": str(fit.resolve()), "test": str(id.resolve())} if fit else {"images": str(id.resolve())}
    if calibration is not None:
        known["calibration"] = str(calibration.resolve())
    description: dict[str, Any] = {
        "name": Path(model.replace(":", "-")).name,
        "model": {"name": model},
        "id": known,
        "far": {path.resolve().name: str(path.resolve()) for path in ood},
        "methods": list(DEFAULT_METHODS),
    }
    numbers = {"mean": numbers_of("mean", mean), "std": numbers_of("std", std)}
    prepared: dict[str, Any] = {name: list(values) for name, values in numbers.items() if values is not None}
    prepared |= {} if size is None else {"size": size, "resize": size}
    if prepared:
        description["preprocessing"] = prepared
    return check(description, "the options")


DEFAULT_METHODS = (
    "mean + msp",
    "mean + energy",
    "max + energy",
    "davis(gamma=0.5) + energy",
    "mean + dice(p=70) + energy",
    "max + dice(p=70) + energy",
    "davis(gamma=0.5) + dice(p=70) + energy",
    "davis(gamma=0.5) + scale(p=85) + energy",
    "mean + knn",
    "mean + vim",
)


@contextmanager
def _watch(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar with rate and time left, on stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    hidden = not sys.stderr.isatty()
    with Progress(
        *columns, console=Console(stderr=True), redirect_stdout=False, transient=True, disable=hidden
    ) as bars:
        task = bars.add_task(title, total=total or None, rate="")

        def step(done: int) -> None:
            bars.advance(task, done)
            speed = bars.tasks[task].speed
            bars.update(task, rate="" if speed is None else f"{speed:.0f}/s")

        yield step


def _show(results: Results, files: list[Path], as_json: bool) -> None:
    from davis.bench.results import AVERAGES
    from davis.bench.tables import tabulate

    rows: dict[str, dict[str, Any]] = {}
    for line in tabulate(results):
        if line.dataset in AVERAGES.values():
            row = rows.setdefault(line.detector, {"detector": line.detector})
            row.update({f"{line.dataset} {metric}": round(line.values[metric], 2) for metric in ("FPR@95", "AUROC")})
    if as_json:
        written = [str(file) for file in files]
        shown = {"name": results.name, "accuracy": results.accuracy, "rows": list(rows.values()), "files": written}
        print(json.dumps(shown))
        return
    table(list(rows.values()))
    if results.accuracy is not None:
        print(f"\naccuracy {100 * results.accuracy:.2f}% on {results.id}")
    for file in files:
        note(f"wrote {file}")
