"""The verb calibrate: another threshold for a saved detector, from images or from scores alone.

Everything heavy is imported inside the command: ``davis --help`` must not wait for torch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from davis.cli.options import (
    Batch,
    ByClass,
    Delta,
    Device,
    Json,
    Kind,
    NumClasses,
    Promise,
    Skipped,
    Strict,
    Tpr,
    Weights,
    Workers,
    open_detector,
)
from davis.cli.printing import Watched, flat, table

if TYPE_CHECKING:
    from davis.calibrate import Calibration


def calibrate(
    folder: Annotated[
        Path | None, typer.Argument(help="A saved detector; without one, the threshold is printed")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="CSV, parquet, npz or JSON lines of scores of held-out images; needs no model")
    ] = None,
    column: Annotated[str, typer.Option(help="Column of the scores; that of predicted classes is 'class'")] = "score",
    data: Annotated[Path | None, typer.Option(help="Or a folder of held-out images, with --model")] = None,
    model: Annotated[str | None, typer.Option(help="The model that the detector was fitted for, as for fit")] = None,
    weights: Weights = "default",
    num_classes: NumClasses = None,
    tpr: Tpr = 0.95,
    promise: Promise = Kind.marginal,
    delta: Delta = 0.05,
    by_class: ByClass = False,
    batch: Batch = 64,
    device: Device = None,
    workers: Workers = 2,
    strict: Strict = False,
    as_json: Json = False,
) -> int:
    """Set the threshold of a detector anew, and say what it promises."""
    if (scores is None) == (data is None):
        raise ValueError(
            "give held-out images (--data FOLDER --model NAME) or their scores (--scores FILE): one of the two"
        )
    skipped = Skipped(strict)
    options: dict[str, Any] = {"tpr": tpr, "kind": promise.value, "delta": delta}
    if scores is not None:
        found = _from_scores(folder, scores, column, by_class, options)
    else:
        if folder is None or model is None:
            raise ValueError("--data needs a saved detector and --model, the model that it was fitted for")
        found = _from_images(
            folder,
            data,
            model,
            weights,
            num_classes,
            device,
            by_class,
            options,
            batch=batch,
            workers=workers,
            skipped=skipped,
        )
    said = ({} if folder is None else {"folder": str(folder)}) | found.statement()
    if as_json:
        print(json.dumps(said))
    else:
        table([{"": name, " ": value} for name, value in flat(said) if value is not None], header=False)
    return 1 if skipped.files else 0


def _from_scores(
    folder: Path | None, scores: Path, column: str, by_class: bool, options: dict[str, Any]
) -> Calibration:
    import torch

    from davis.artifact import read_record, recalibrate, saved_class_counts
    from davis.calibrate import calibrate, pooled
    from davis.scores_file import detectors_named, read_scores

    if folder is not None:
        spec = read_record(folder)["spec"]
        if others := detectors_named(scores) - {spec}:
            raise ValueError(f"{scores} holds scores of {sorted(others)[0]!r}, and {folder} is {spec!r}: score with it")
    values = torch.from_numpy(read_scores(scores, column=column))
    classes = groups = None
    if by_class:
        if folder is None:
            raise ValueError("--by-class pools rare classes by what the fit saw; name the saved detector")
        counts = saved_class_counts(folder)
        found = read_scores(scores, column="class")
        classes = torch.from_numpy(found).long()
        if (
            not bool((classes == torch.from_numpy(found)).all())
            or not 0 <= int(classes.min()) <= int(classes.max()) < len(counts)
            or len(classes) != len(values)
        ):
            raise ValueError(
                f"{scores}: column 'class' must hold the predicted class, 0 to {len(counts) - 1}, of each row"
            )
        groups = pooled(counts, len(values), **options)
    calibration = calibrate(values, classes=classes, groups=groups, **options)
    if folder is not None:
        recalibrate(folder, calibration)
    return calibration


def _from_images(
    folder: Path,
    data: Path | None,
    model: str,
    weights: str,
    num_classes: int | None,
    device: str | None,
    by_class: bool,
    options: dict[str, Any],
    *,
    batch: int,
    workers: int,
    skipped: Skipped,
) -> Calibration:
    from davis.artifact import recalibrate
    from davis.data import Images, Preprocessing, image_files

    if data is None or not data.is_dir():
        raise FileNotFoundError(f"no such folder of images: {data}")
    detector = open_detector(folder, model, weights, num_classes, device)
    if detector.preprocessing is None:
        raise ValueError(f"{folder} does not say how images are prepared; set detector.preprocessing before saving it")
    files = image_files([data])
    prepared = Preprocessing.from_dict(detector.preprocessing)
    images = Images(files, prepared, batch=batch, workers=workers, on_error=skipped.add)
    detector.calibrate(Watched("calibrate", images), by_class=by_class, **options)
    if detector.calibration is None:
        raise ValueError("nothing was calibrated")
    recalibrate(folder, detector.calibration)
    return detector.calibration
