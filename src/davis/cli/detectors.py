"""The verbs up to a saved detector: list, inspect, fit.

Everything heavy is imported inside the commands: ``davis --help`` must not wait for torch.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from davis.cli.options import (
    Batch,
    ByClass,
    Delta,
    Device,
    Head,
    Json,
    Kind,
    Mean,
    Model,
    NumClasses,
    Promise,
    Size,
    Skipped,
    Std,
    Strict,
    Tap,
    Tokens,
    Tpr,
    Weights,
    Workers,
    folder_of_images,
    labels_of,
    numbers_of,
    open_backbone,
    prepare,
)
from davis.cli.printing import Watched, flat, note, table


class What(str, Enum):
    """What `davis list` can list."""

    stages = "stages"
    families = "families"
    presets = "presets"


class Values(str, Enum):
    """Whose numbers a preset takes."""

    published = "published"
    reproducing = "reproducing"


# -- list -----------------------------------------------------------------------------------------


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
        table(lists[title])
        print()


def _stages() -> list[dict[str, Any]]:
    from davis.spec import KINDS
    from davis.stages import stages_of

    return [
        {
            "kind": kind,
            "name": stage.name,
            "settings": {name: parameter.default for name, parameter in stage.parameters_of().items()},
            "does": (stage.__doc__ or "").strip().partition("\n")[0].replace("``", ""),
            "experimental": stage.experimental,
        }
        for kind in KINDS
        for stage in stages_of(kind)
    ]


# -- inspect --------------------------------------------------------------------------------------


def inspect(
    model: Annotated[str, typer.Argument(help="A model, as for fit; or the folder of a saved detector")],
    weights: Weights = "default",
    size: Size = None,
    mean: Mean = None,
    std: Std = None,
    num_classes: NumClasses = None,
    tap: Tap = None,
    head: Head = None,
    tokens: Tokens = None,
    as_json: Json = False,
) -> None:
    """Show what is found in a model and check it; or what a saved detector holds."""
    from davis.artifact import JSON, read_record
    from davis.zoo.weights import CARD

    folder = Path(model)
    if folder.is_dir() and ((folder / JSON).is_file() or not (folder / CARD).is_file()):  # a training is a model
        found: dict[str, Any] = read_record(model)
    else:
        backbone = open_backbone(model, weights, num_classes, "cpu", tap, head, tokens)
        preprocessing = prepare(model, backbone, size=size, mean=numbers_of("mean", mean), std=numbers_of("std", std))
        found = {**backbone.describe(), "preprocessing": preprocessing.to_dict(), "check": "passed"}
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        table([{"": name, " ": value} for name, value in flat(found)], header=False)


# -- fit ------------------------------------------------------------------------------------------


def fit(
    model: Model,
    data: Annotated[Path, typer.Option(help="Folder of in-distribution images; class folders become labels")],
    out: Annotated[Path, typer.Option(help="Folder to save the detector in")],
    spec: Annotated[str | None, typer.Argument(help="The detector, such as 'max + energy'; auto picks one")] = None,
    preset: Annotated[str | None, typer.Option(help="A row of the paper, with --id and --arch; see davis list")] = None,
    id: Annotated[str | None, typer.Option(help="In-distribution set of the preset")] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture of the preset")] = None,
    values: Annotated[Values, typer.Option(help="The preset's numbers")] = Values.published,
    weights: Weights = "default",
    num_classes: NumClasses = None,
    holdout: Annotated[Path | None, typer.Option(help="Images for the threshold that the network never saw")] = None,
    holdout_share: Annotated[float, typer.Option(help="Else this share of --data, drawn at random")] = 0.2,
    tpr: Tpr = 0.95,
    promise: Promise = Kind.marginal,
    delta: Delta = 0.05,
    by_class: ByClass = False,
    size: Size = None,
    resize: Annotated[int | None, typer.Option(help="Shorter side before the middle square is cut out")] = None,
    mean: Mean = None,
    std: Std = None,
    tap: Tap = None,
    head: Head = None,
    tokens: Tokens = None,
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

    from davis.artifact import check_place, save
    from davis.calibrate import calibrate
    from davis.data import Images, image_files, shuffled, split
    from davis.detector import Detector
    from davis.models import knows_preprocessing
    from davis.spec import parse
    from davis.statistics import CAPACITY

    started = time.monotonic()
    text = None if spec == "auto" and preset is None else _spec(spec, preset, id, arch, values)
    files = image_files([folder_of_images(data)])
    if holdout is not None:
        fitted, held = shuffled(files, seed), image_files([folder_of_images(holdout)])
    elif text is None or parse(text).learns or by_class:
        fitted, held = split(files, holdout_share, seed)
    else:
        fitted, held = [], files  # nothing is fitted, so all of them can set the threshold
    try:
        calibrate(arange(len(held)).double(), tpr=tpr, kind=promise.value, delta=delta)  # before the work, not after
    except ValueError as error:
        raise ValueError(f"{error}; --holdout-share or --holdout gives more") from None
    if weights == "none":
        note("random weights are not saved: a detector fitted on them can be inspected, not used again")
    check_place(out)
    means, stds = numbers_of("mean", mean), numbers_of("std", std)
    backbone = open_backbone(model, weights, num_classes, device, tap, head, tokens)
    preprocessing = prepare(model, backbone, size=size, resize=resize, mean=means, std=stds)
    labels = labels_of(data, files, backbone)
    skipped = Skipped(strict)
    read = partial(Images, preprocessing=preprocessing, batch=batch, workers=workers, on_error=skipped.add)
    advice = None
    if text is None:  # picked on the images to fit on: those of the threshold have no part in it
        from davis.tuning import recommend

        advice = recommend(backbone, Watched("choose", read(fitted)), preprocessing=preprocessing, seed=seed)
        text = advice.spec
    detector = Detector(backbone, text)
    detector.preprocessing = preprocessing.to_dict()
    detector.fit(
        Watched("fit", read(fitted, labels=[labels[file] for file in fitted] if labels else None)),
        capacity=capacity or CAPACITY,
        seed=seed,
    )
    held_out = Watched("calibrate", read(held))
    detector.calibrate(held_out, tpr=tpr, kind=promise.value, delta=delta, by_class=by_class)
    before = _saved_spec(out)
    save(detector, out)
    if before is not None:
        note(f"replaced the detector that was in {out}: {before}")
    if holdout is None:
        note("the threshold rests on a part of --data; if the network was trained on these, --holdout must name others")
    if None in (size, means, stds) and not knows_preprocessing(model, backbone.model):
        note(
            "images were prepared as for ImageNet (224 px, its mean and std) where --size, --mean or --std is not given"
        )
    summary = {
        "folder": str(out),
        "spec": detector.spec,
        "model": model,
        "images_fitted": detector.images_seen,
        "labelled": bool(labels),
        "images_held_out": 0 if detector.calibration is None else detector.calibration.count,
        "tpr": tpr,
        "threshold": detector.threshold,
        "calibration": {} if detector.calibration is None else detector.calibration.statement(),
        "unreadable": len(skipped.files),
        "seconds": round(time.monotonic() - started, 2),
    } | ({} if advice is None else {"why": advice.why})
    if as_json:
        print(json.dumps(summary))
    else:
        shown = [(name, value) for name, value in flat(summary) if value is not None]
        table([{"": name, " ": value} for name, value in shown], header=False)


def _saved_spec(folder: Path) -> str | None:
    """What a detector is that will be written over."""
    from davis.artifact import JSON, read_record

    if not (folder / JSON).is_file():
        return None
    try:
        return str(read_record(folder)["spec"])
    except (ValueError, OSError):
        return "one that could not be read"


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
