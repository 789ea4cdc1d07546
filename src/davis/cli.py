"""The command line: verbs that parse and print; the library does the work.

Everything heavy is imported inside the commands: ``davis --help`` must not wait for torch.
"""

from __future__ import annotations

import contextlib
import csv
import json
import logging
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias

import typer

from davis import __version__

if TYPE_CHECKING:
    from davis.backbone import Backbone
    from davis.data import Images, Preprocessing
    from davis.types import Output

app = typer.Typer(
    add_completion=False, help="Know when an image classifier should not be trusted.", rich_markup_mode=None
)

# typer brings its own click or uses the installed one; either way this is the base of what it raises at bad usage.
_ClickError: Any = typer.BadParameter.__mro__[2]


class What(str, Enum):
    """What `davis list` can list."""

    stages = "stages"
    families = "families"
    presets = "presets"


class Values(str, Enum):
    """Whose numbers a preset takes."""

    published = "published"
    reproducing = "reproducing"


Model: TypeAlias = Annotated[str, typer.Argument(help="torchvision or timm name, hf:ID, hf:FOLDER or module:factory")]
Weights: TypeAlias = Annotated[str, typer.Option(help="default (the zoo's pretrained ones), none or a file of tensors")]
NumClasses: TypeAlias = Annotated[int | None, typer.Option(help="Outputs of the model, where not the zoo's own number")]
Size: TypeAlias = Annotated[int | None, typer.Option(help="Side of the square images; default: the zoo's own, or 224")]
Mean: TypeAlias = Annotated[str | None, typer.Option(help="Of the channels: 0.485,0.456,0.406; one for grey images")]
Std: TypeAlias = Annotated[str | None, typer.Option(help="Of the channels, likewise")]
Tap: TypeAlias = Annotated[str | None, typer.Option(help="Module that returns the last map; default: found")]
Head: TypeAlias = Annotated[str | None, typer.Option(help="Last linear layer; default: found")]
Batch: TypeAlias = Annotated[int, typer.Option(min=1, help="Images at a time")]
Device: TypeAlias = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps; default: cuda if there, else cpu")]
Workers: TypeAlias = Annotated[int, typer.Option(min=0, help="Threads that decode images")]
Strict: TypeAlias = Annotated[bool, typer.Option("--strict", help="Stop at the first image that cannot be read")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON")]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command: status 0, 1 if images were skipped, 2 with one line on stderr if it failed, 130 if interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug = "--debug" in given  # accepted before and after the verb
    given = [argument for argument in given if argument != "--debug"]
    try:
        with _quiet_zoos(debug):
            status = app(given, prog_name="davis", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        status = 130
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"error: {_one_line(error)}", file=sys.stderr)
        status = 2
    sys.exit(status if isinstance(status, int) else 0)


def _one_line(error: Exception) -> str:
    if isinstance(error, _ClickError):
        text = f"{error.format_message()} (davis --help lists what there is)"
    elif isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.strerror}: {error.filename}"
    elif isinstance(error, ValueError | TypeError | OSError | ImportError) and str(error):
        text = str(error)
    else:
        text = f"{type(error).__name__}: {error} (--debug shows where)"
    return " ".join(text.split())


@contextlib.contextmanager
def _quiet_zoos(debug: bool) -> Iterator[None]:
    """Warnings as one line each; what zoos log about their own retries and deprecations not at all."""
    if debug:
        yield
        return

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)

    for name in ("huggingface_hub", "transformers", "timm"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        warnings.showwarning = show
        yield


def _version(asked: bool) -> None:
    if asked:
        print(f"davis {__version__}")
        raise typer.Exit


@app.callback()
def _davis(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error comes from")] = False,
) -> None:
    pass


# -- list -----------------------------------------------------------------------------------------


@app.command("list")
def list_(
    what: Annotated[What | None, typer.Argument(help="One of the three; default: all, presets counted only")] = None,
    id: Annotated[str | None, typer.Option(help="Presets of one in-distribution set")] = None,
    arch: Annotated[str | None, typer.Option(help="Presets of one architecture")] = None,
    as_json: Json = False,
) -> None:
    """List the stages of the spec language, the tested model families and the paper's presets."""
    from davis.families import FAMILIES
    from davis.presets import presets
    from davis.stages.base import write

    if what in (What.stages, What.families) and (id or arch):
        raise ValueError(f"--id and --arch choose among presets; write `davis list presets`, not `list {what.value}`")
    rows = [asdict(row) for row in presets(id=id, arch=arch)]
    counts = Counter((row["id"], row["arch"]) for row in rows)
    lists: dict[str, list[dict[str, Any]]] = {
        "stages": _stages(),
        "families": [family._asdict() for family in FAMILIES],
        "presets": rows if what else [{"id": id, "arch": arch, "presets": n} for (id, arch), n in counts.items()],
    }
    if as_json:
        print(json.dumps(lists[what.value] if what else lists, indent=2))
        return
    for stage in lists["stages"]:
        stage["settings"] = ", ".join(f"{name}={write(value)}" for name, value in stage["settings"].items())
        stage["does"] += " (experimental)" if stage.pop("experimental") else ""
    for title in [what.value] if what else lists:
        print(f"{title}\n")
        _table(lists[title])
        print()


def _stages() -> list[dict[str, Any]]:
    from davis.spec import ORDER
    from davis.stages import stages_of

    return [
        {
            "kind": kind,
            "name": stage.name,
            "settings": {name: parameter.default for name, parameter in stage.parameters_of().items()},
            "does": (stage.__doc__ or "").strip().partition("\n")[0],
            "experimental": stage.experimental,
        }
        for kind in ORDER
        for stage in stages_of(kind)
    ]


# -- inspect --------------------------------------------------------------------------------------


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(help="A model, as for fit; or the folder of a saved detector")],
    weights: Weights = "default",
    size: Size = None,
    mean: Mean = None,
    std: Std = None,
    num_classes: NumClasses = None,
    tap: Tap = None,
    head: Head = None,
    as_json: Json = False,
) -> None:
    """Show what is found in a model and check it; or what a saved detector holds."""
    if Path(model).is_dir():
        from davis.artifact import read_record

        found: dict[str, Any] = read_record(model)
    else:
        backbone = _backbone(model, weights, num_classes, "cpu", tap, head)
        preprocessing = _prepared(model, backbone, size=size, mean=_numbers("mean", mean), std=_numbers("std", std))
        found = {**backbone.describe(), "preprocessing": preprocessing.to_dict(), "check": "passed"}
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _table([{"": name, " ": value} for name, value in _flat(found)], header=False)


def _flat(record: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in record.items():
        if isinstance(value, dict) and value:
            yield from ((f"{name}.{key}", inner) for key, inner in _flat(value))
        else:
            yield name, value


# -- fit ------------------------------------------------------------------------------------------


@app.command()
def fit(
    model: Model,
    data: Annotated[Path, typer.Option(help="Folder of in-distribution images; class folders become labels")],
    out: Annotated[Path, typer.Option(help="Folder to save the detector in")],
    spec: Annotated[str | None, typer.Argument(help="The detector, such as 'max + energy'; or use --preset")] = None,
    preset: Annotated[str | None, typer.Option(help="A row of the paper, with --id and --arch; see davis list")] = None,
    id: Annotated[str | None, typer.Option(help="In-distribution set of the preset")] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture of the preset")] = None,
    values: Annotated[Values, typer.Option(help="The preset's numbers")] = Values.published,
    weights: Weights = "default",
    num_classes: NumClasses = None,
    holdout: Annotated[Path | None, typer.Option(help="Folder of images for the threshold")] = None,
    holdout_share: Annotated[float, typer.Option(help="Else this share of --data, drawn at random")] = 0.2,
    tpr: Annotated[float, typer.Option(help="Share of in-distribution images to accept")] = 0.95,
    size: Size = None,
    resize: Annotated[int | None, typer.Option(help="Shorter side before the middle square is cut out")] = None,
    mean: Mean = None,
    std: Std = None,
    tap: Tap = None,
    head: Head = None,
    batch: Batch = 64,
    device: Device = None,
    workers: Workers = 2,
    seed: Annotated[int, typer.Option(help="Of every random choice")] = 0,
    capacity: Annotated[int | None, typer.Option(min=1, help="Feature rows kept for methods that search them")] = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Fit a detector to a model on a folder of images, set its threshold and save it."""
    from torch import arange

    from davis.artifact import save
    from davis.calibrate import calibrate
    from davis.data import Images, image_files, shuffled, split
    from davis.detector import Detector
    from davis.statistics import CAPACITY

    started = time.monotonic()
    text = _spec(spec, preset, id, arch, values)
    files = image_files([_folder(data)])
    fitted, held = split(files, holdout_share, seed) if holdout is None else (shuffled(files, seed), [])
    held = image_files([_folder(holdout)]) if holdout is not None else held
    calibrate(arange(len(held)).double(), tpr=tpr)  # refuses a tpr that so few images cannot promise, before the work
    if out.is_file():
        raise ValueError(f"{out} is a file; a detector is saved into a folder")
    means, stds = _numbers("mean", mean), _numbers("std", std)
    backbone = _backbone(model, weights, num_classes, device, tap, head)
    preprocessing = _prepared(model, backbone, size=size, resize=resize, mean=means, std=stds)
    labels = _labels(data, files, backbone)
    skipped = _Skipped(strict)
    detector = Detector(backbone, text)
    detector.preprocessing = preprocessing.to_dict()
    read = partial(Images, preprocessing=preprocessing, batch=batch, workers=workers, on_error=skipped.add)
    detector.fit(
        _Watched("fit", read(fitted, labels=[labels[file] for file in fitted] if labels else None)),
        capacity=capacity or CAPACITY,
        seed=seed,
    )
    detector.calibrate(_Watched("calibrate", read(held)), tpr=tpr)
    save(detector, out)
    summary = {
        "folder": str(out),
        "spec": detector.spec,
        "model": model,
        "images_fitted": detector.images_seen,
        "labelled": bool(labels),
        "images_held_out": 0 if detector.calibration is None else detector.calibration.count,
        "tpr": tpr,
        "threshold": detector.threshold,
        "unreadable": len(skipped.files),
        "seconds": round(time.monotonic() - started, 2),
    }
    if as_json:
        print(json.dumps(summary))
    else:
        _table([{"": name, " ": value} for name, value in summary.items()], header=False)


def _spec(spec: str | None, preset: str | None, id: str | None, arch: str | None, values: Values) -> str:
    from davis.presets import preset as row
    from davis.spec import canonical

    if (spec is None) == (preset is None):
        raise ValueError("give a SPEC such as 'max + energy', or --preset with --id and --arch: one of the two")
    if preset is None:
        if id or arch:
            raise ValueError("--id and --arch belong to --preset, and a SPEC was given; leave one of them out")
        return canonical(str(spec))
    if id is None or arch is None:
        raise ValueError(f"--preset {preset!r} needs --id and --arch; `davis list presets` shows them")
    return canonical(row(preset, id=id, arch=arch, values=values.value).spec)


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise FileNotFoundError(f"no such folder of images: {path}")
    return path


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--{option} {text!r} must be numbers with commas between, such as 0.5,0.5,0.5") from None


def _labels(folder: Path, files: list[Path], backbone: Backbone) -> dict[Path, int]:
    """The label of each file where there is one folder per class of the model; else nothing."""
    from davis.data import class_folders

    names = class_folders(folder, files)
    order = {name: index for index, name in enumerate(sorted(set(names.values())))}
    classes = backbone.describe()["classes"]
    if names and len(order) != classes:
        _note(f"{folder} has {len(order)} folders and the model {classes} classes: fitting with predicted classes")
        return {}
    return {file: order[name] for file, name in names.items()}


# -- score ----------------------------------------------------------------------------------------


@app.command()
def score(
    folder: Annotated[Path, typer.Argument(help="A saved detector")],
    images: Annotated[list[Path], typer.Argument(help="Images, or folders of them")],
    model: Annotated[str, typer.Option(help="The model that it was fitted for, as for fit")],
    weights: Weights = "default",
    num_classes: NumClasses = None,
    classes: Annotated[Path | None, typer.Option(help="File with the name of a class on each line")] = None,
    batch: Batch = 64,
    device: Device = None,
    workers: Workers = 2,
    strict: Strict = False,
    as_json: Json = False,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write the table there")] = None,
) -> int:
    """Score images: on which of them should the model not be trusted?"""
    from davis.artifact import load, read_record
    from davis.data import Images, Preprocessing, image_files

    if as_json and csv_file is not None:
        raise ValueError("--json and --csv were both given; choose one")
    record = read_record(folder)
    if record["preprocessing"] is None:
        raise ValueError(f"{folder} does not say how images are prepared; set detector.preprocessing before saving it")
    preprocessing = Preprocessing.from_dict(record["preprocessing"])
    names = None if classes is None else classes.read_text(encoding="utf-8").splitlines()
    files = image_files(images)
    detector = load(folder, _backbone(model, weights, num_classes, device, **_adapter(record["backbone"])))
    skipped = _Skipped(strict)
    batches = Images(files, preprocessing, batch=batch, workers=workers, on_error=skipped.add)
    rows: list[dict[str, Any]] = []
    apart = not (as_json and sys.stdout.isatty())  # a bar among lines of results would be torn
    for positions, pictures in _bar("score", batches.numbered(), len(batches), shown=apart):
        found = _verdicts([files[position] for position in positions], detector(pictures), names)
        rows += [] if as_json else found
        for row in found if as_json else []:
            print(json.dumps(row), flush=True)
    if csv_file is not None:
        _write_csv(csv_file, rows)
    elif not as_json:
        _table(rows)
    return 1 if skipped.files else 0


def _adapter(found: dict[str, Any]) -> dict[str, Any]:
    """The tap and head of a record where they say it all, so that those given to fit need not be given again."""
    plain = found.get("after") is None and found.get("neck") is None
    return {"tap": found.get("tap"), "head": found.get("head")} if plain else {}


def _verdicts(files: list[Path], output: Output, names: list[str] | None) -> list[dict[str, Any]]:
    probabilities, predicted = output.logits.double().softmax(1).max(1)
    if names is not None and len(names) != output.logits.shape[1]:
        raise ValueError(f"--classes names {len(names)} classes, and the model has {output.logits.shape[1]}")
    ood = [None] * len(files) if output.is_ood is None else output.is_ood.tolist()
    columns = zip(files, predicted.tolist(), probabilities.tolist(), output.score.tolist(), ood, strict=True)
    return [
        {"file": str(file), "class": label}
        | ({} if names is None else {"name": names[label]})
        | {"probability": probability, "score": score, "verdict": {None: None, True: "OOD", False: "ok"}[is_ood]}
        for file, label, probability, score, is_ood in columns
    ]


def _write_csv(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write the file whole or not at all."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        with unfinished.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, fieldnames=list(rows[0]) if rows else ["file"])
            writer.writeheader()
            writer.writerows(rows)
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


# -- what the verbs share -------------------------------------------------------------------------


def _backbone(
    name: str, weights: str, classes: int | None, device: str | None, tap: str | None = None, head: str | None = None
) -> Backbone:
    from davis.backbone import Backbone
    from davis.models import load_model, place_on

    with contextlib.redirect_stdout(sys.stderr):  # a user's module may print, and stdout is for results
        model = place_on(load_model(name, weights=weights, classes=classes), device)
    return Backbone(model, tap=tap, head=head)


def _prepared(name: str, backbone: Backbone, **changes: Any) -> Preprocessing:
    """How images are prepared for a model, and the model found and checked on noise of their shape."""
    from davis.models import adjusted, preprocessing_of

    preprocessing = adjusted(preprocessing_of(name, backbone.model), **changes)
    backbone.probe(preprocessing.shape)
    return preprocessing


class _Skipped:
    """The images that could not be read, each said once."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.files: set[Path] = set()

    def add(self, file: Path, error: Exception) -> None:
        if self.strict:
            raise error
        if file not in self.files:
            _note(f"skipped: {error}")
        self.files.add(file)


class _Watched:
    """Batches that may be read again, with a progress bar each time."""

    def __init__(self, title: str, batches: Images) -> None:
        self.title = title
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return _bar(self.title, self.batches, len(self.batches))


def _bar(title: str, batches: Iterable[Any], total: int, *, shown: bool = True) -> Iterator[Any]:
    """The batches, with a progress bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    hidden = not (shown and sys.stderr.isatty())
    # Left to itself, rich takes stdout over, and results printed meanwhile would land on stderr.
    with Progress(console=Console(stderr=True), transient=True, redirect_stdout=False, disable=hidden) as progress:
        yield from progress.track(batches, total=total, description=title)


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def _table(rows: Sequence[dict[str, Any]], *, header: bool = True) -> None:
    """Print rows that have the same keys; files and pipes get whole lines, however long."""
    from rich.console import Console
    from rich.table import Table

    if not rows:
        return
    table = Table(*rows[0], box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=header)
    for row in rows:
        style = "bold red" if row.get("verdict") == "OOD" else None
        table.add_row(*(_cell(value) for value in row.values()), style=style)
    Console(markup=False, width=None if sys.stdout.isatty() else 10_000).print(table, highlight=False)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)
