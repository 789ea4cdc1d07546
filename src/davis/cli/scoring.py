"""The verb that judges images: score.

Everything heavy is imported inside the command: ``davis --help`` must not wait for torch.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from davis.cli.options import (
    Batch,
    Device,
    Json,
    NumClasses,
    Paths,
    Skipped,
    Strict,
    Weights,
    Workers,
    check_outputs,
    named_path,
    open_detector,
    with_default,
)
from davis.cli.printing import bar, note, table

if TYPE_CHECKING:
    from davis.calibrate import Calibration
    from davis.types import Output


def score(
    images: Paths,
    model: Annotated[
        str | None, typer.Option(help="The model that it was fitted for; without one the demo's detector judges")
    ] = None,
    weights: Weights = "default",
    num_classes: NumClasses = None,
    classes: Annotated[Path | None, typer.Option(help="File with the name of a class on each line")] = None,
    batch: Batch = 64,
    device: Device = None,
    workers: Workers = 2,
    strict: Strict = False,
    as_json: Json = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write the table there", parser=named_path, metavar="FILE")
    ] = None,
    fdr: Annotated[
        float | None, typer.Option(help="Judge all images together: the share of OOD verdicts that may be wrong")
    ] = None,
) -> int:
    """Score images: on which of them should the model not be trusted?"""
    from davis.artifact import read_record
    from davis.data import Images, Preprocessing, image_files

    if as_json and csv_file is not None:
        raise ValueError("--json and --csv were both given; choose one")
    folder, model, images, default_names = with_default(images, model)
    record = read_record(folder)
    if record["preprocessing"] is None:
        raise ValueError(f"{folder} does not say how images are prepared; set detector.preprocessing before saving it")
    preprocessing = Preprocessing.from_dict(record["preprocessing"])
    names = default_names if classes is None else classes.read_text(encoding="utf-8").splitlines()
    files = image_files(images)
    if csv_file is not None:
        inputs = [*files, Path(weights), *([] if classes is None else [classes])]
        check_outputs(f"--csv {csv_file}", [csv_file], inputs=inputs, ours=_is_table)
    detector = open_detector(folder, model, weights, num_classes, device)
    skipped = Skipped(strict)
    batches = Images(files, preprocessing, batch=batch, workers=workers, on_error=skipped.add)
    rows: list[dict[str, Any]] = []
    together = fdr is not None  # then no verdict is known before the last image
    if fdr is not None and not 0 < fdr < 1:
        raise ValueError(f"--fdr must lie between 0 and 1, such as 0.1 for one wrong call in ten; got {fdr}")
    if together and detector.calibration is None:
        raise ValueError(f"--fdr judges by p-values, and {folder} is not calibrated; see davis calibrate")
    traced = {"detector": detector.spec} | _traced(detector.calibration, fdr)
    apart = not (as_json and sys.stdout.isatty())  # a bar among lines of results would be torn
    for positions, pictures in bar("score", batches.numbered(), len(batches), shown=apart):
        found = _verdicts([files[position] for position in positions], detector(pictures), names)
        rows += found if together or not as_json else []
        for row in found if as_json and not together else []:
            print(json.dumps(row | traced), flush=True)
    if fdr is not None and detector.calibration is not None:
        _judge_together(rows, fdr, min(detector.calibration.sizes))
        for row in rows if as_json else []:
            print(json.dumps(row | traced), flush=True)
    if csv_file is not None and not rows:
        note(f"no image could be read: {csv_file} was not written")
    elif csv_file is not None:
        _write_csv(csv_file, [row | {"detector": detector.spec} for row in rows])
        counted = Counter(row["verdict"] for row in rows)
        note(f"wrote {csv_file}: {len(rows)} images" + (f", {counted['OOD']} OOD" if None not in counted else ""))
    elif not as_json:
        table(rows)
    return 1 if skipped.files else 0


VERDICTS = {None: None, True: "OOD", False: "ok"}


def _verdicts(files: list[Path], output: Output, names: list[str] | None) -> list[dict[str, Any]]:
    probabilities, predicted = output.logits.double().softmax(1).max(1)
    if names is not None and len(names) != output.logits.shape[1]:
        raise ValueError(f"--classes names {len(names)} classes, and the model has {output.logits.shape[1]}")
    nothing = [None] * len(files)
    ood = nothing if output.is_ood is None else output.is_ood.tolist()
    p = nothing if output.p_value is None else output.p_value.tolist()
    columns = zip(files, predicted.tolist(), probabilities.tolist(), output.score.tolist(), p, ood, strict=True)
    return [
        {"file": str(file), "class": label}
        | ({} if names is None else {"name": names[label]})
        | {"probability": probability, "score": score, "p_value": p_value, "verdict": VERDICTS[is_ood]}
        for file, label, probability, score, p_value, is_ood in columns
    ]


def _traced(calibration: Calibration | None, fdr: float | None) -> dict[str, Any]:
    """What every verdict rests on."""
    if calibration is None:
        return {}
    said = calibration.statement()
    kept = {name: said[name] for name in ("method", "n", "alpha", "delta", "scores_sha256")}
    return {"calibration": kept | ({} if fdr is None else {"fdr": fdr})}


def _judge_together(rows: list[dict[str, Any]], fdr: float, held_out: int) -> None:
    """Verdicts by Benjamini and Hochberg in the place of those by the threshold."""
    from torch import float64, tensor

    from davis.calibrate import discoveries

    p = tensor([row["p_value"] for row in rows], dtype=float64)
    for row, found in zip(rows, discoveries(p, q=fdr, held_out=held_out).tolist(), strict=True):
        row["verdict"] = VERDICTS[found]


def _write_csv(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write the file whole or not at all."""
    from davis.atomic import replacing

    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    with replacing(file, alone=False) as stream:
        stream.write(text.getvalue().encode("utf-8", errors="backslashreplace"))


def _is_table(file: Path) -> bool:
    """Whether a file begins as the tables do that score writes; a spreadsheet may have saved it since."""
    with file.open("rb") as stream:
        first = stream.readline(200).removeprefix(b"\xef\xbb\xbf").strip()
    return set(_COLUMNS) - _NOT_ALWAYS <= set(first.split(b",")) <= set(_COLUMNS)


_COLUMNS = (b"file", b"class", b"name", b"probability", b"score", b"p_value", b"verdict", b"detector")
_NOT_ALWAYS = {b"name", b"detector"}
