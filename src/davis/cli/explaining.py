"""The verb that says why: explain.

Everything heavy is imported inside the command: ``davis --help`` must not wait for torch.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from davis.cli.options import (
    Device,
    Json,
    NumClasses,
    Skipped,
    Strict,
    Weights,
    open_backbone,
    recorded_adapter,
    with_default,
)
from davis.cli.printing import bar, table


def explain(
    images: Annotated[list[Path], typer.Argument(help="A saved detector, then images or folders of them")],
    model: Annotated[
        str | None, typer.Option(help="The model that it was fitted for; without one the demo's detector is explained")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for NAME.png, NAME.npz and NAME.json of each image")] = Path(
        "explanations"
    ),
    weights: Weights = "default",
    num_classes: NumClasses = None,
    channels: Annotated[int, typer.Option(min=1, help="Channels to name")] = 10,
    neighbours: Annotated[int, typer.Option(min=0, help="Nearest ID images to name, where a bank is kept")] = 5,
    device: Device = None,
    strict: Strict = False,
    as_json: Json = False,
) -> int:
    """Say why images score as they do: the channels that moved the score, and where; a heat map for each."""
    from davis.artifact import load, read_record
    from davis.data import ImageError, image_files
    from davis.explaining import explain as explain_one

    folder, model, images, names = with_default(images, model)
    files = image_files(images)
    stems = Counter(file.stem for file in files)
    if twice := [stem for stem, count in stems.items() if count > 1]:
        raise ValueError(
            f"{stems[twice[0]]} images are called {twice[0]!r}, and files are named after them; rename them"
        )
    if own := {file.resolve() for file in files} & {(out / f"{stem}.png").resolve() for stem in stems}:
        raise ValueError(f"--out {out} would write over {own.pop()}; choose another folder")
    adapter = recorded_adapter(read_record(folder)["backbone"])
    detector = load(folder, open_backbone(model, weights, num_classes, device, **adapter))
    skipped = Skipped(strict)
    rows: list[dict[str, Any]] = []
    for file in bar("explain", files, len(files)):
        try:
            found = explain_one(detector, file, channels=channels, neighbours=neighbours)
        except ImageError as error:
            skipped.add(file, error)
            continue
        picture, *_ = found.save(out, file.stem)
        label = found.label if names is None else names[found.label]
        rows.append({"file": str(file), "class": label, "picture": str(picture), **found.to_dict()})
    if as_json:
        print(json.dumps(rows))
    else:
        table([_line(row) for row in rows])
    return 1 if skipped.files else 0


def _line(row: dict[str, Any]) -> dict[str, Any]:
    strongest = row["channels"][0]
    return {
        "file": row["file"],
        "class": row["class"],
        "score": row["score"],
        "with mean pooling": row["plain"],
        "strongest channel": strongest["index"],
        "moved": strongest["moved"],
        "at": f"{strongest['x']},{strongest['y']}",
        "picture": row["picture"],
    }
