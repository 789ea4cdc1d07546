"""The verb that says why: explain.

Everything heavy is imported inside the command: ``davis --help`` must not wait for torch.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from davis.cli.options import (
    Device,
    Json,
    NumClasses,
    Paths,
    Skipped,
    Strict,
    Weights,
    check_outputs,
    named_path,
    open_detector,
    with_default,
)
from davis.cli.printing import bar, note, table

_MOST_BYTES = 255  # of a name, on nearly every file system


def explain(
    images: Paths,
    model: Annotated[
        str | None, typer.Option(help="The model that it was fitted for; without one the demo's detector is explained")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for NAME.png, NAME.npz and NAME.json of each image", parser=named_path, metavar="FOLDER"
        ),
    ] = Path("explanations"),
    weights: Weights = "default",
    num_classes: NumClasses = None,
    channels: Annotated[int, typer.Option(min=1, help="Channels to name")] = 10,
    neighbours: Annotated[int, typer.Option(min=0, help="Nearest rows of the bank to name, where one is kept")] = 5,
    device: Device = None,
    strict: Strict = False,
    as_json: Json = False,
) -> int:
    """Say why images score as they do: the channels that moved the score, and where; a heat map for each."""
    from davis.data import ImageError, image_files
    from davis.explaining import explain as explain_one
    from davis.explaining.files import SUFFIXES, is_explanation

    folder, model, images, names = with_default(images, model)
    given = set(images)
    files = [file for file in image_files(images) if file in given or not is_explanation(file)]
    if not files:
        raise ValueError(f"in {images[0]} are only pictures that davis explain wrote; name photographs")
    titles = _titles(files)
    _check_lengths(titles)
    outputs = [out / f"{title}.{suffix}" for title in titles.values() for suffix in SUFFIXES]
    check_outputs(f"--out {out}", outputs, inputs=[*files, Path(weights)], ours=is_explanation, new_folder=True)
    detector = open_detector(folder, model, weights, num_classes, device)
    skipped = Skipped(strict)
    rows: list[dict[str, Any]] = []
    for file in bar("explain", files, len(files)):
        try:
            found = explain_one(detector, file, channels=channels, neighbours=neighbours)
        except ImageError as error:
            skipped.add(file, error)
            continue
        picture, *_ = found.save(out, titles[file], classes=names)
        named = {} if names is None else {"name": names[found.label]}
        rows.append({"file": str(file), "class": found.label, **named, "picture": str(picture), **found.to_dict()})
        if as_json:
            print(json.dumps(rows[-1]), flush=True)
    if not as_json:
        table([_line(row) for row in rows])
        for row in rows:
            for branch in row.get("branches", [row]):
                for warning in branch["warnings"]:
                    note(f"beware: {row['file']}, {branch['spec']}: {warning}")
    return 1 if skipped.files else 0


def _titles(files: Sequence[Path]) -> dict[Path, str]:
    """What the files of an explanation are called: as the image, and behind its folders where names meet."""
    for depth in range(1, max(len(file.parts) for file in files) + 1):
        titles = {file: "-".join(file.with_suffix("").parts[-depth:]) for file in files}
        counted = Counter(titles.values())
        if max(counted.values()) == 1:
            return titles
    twice, count = counted.most_common(1)[0]
    raise ValueError(f"{count} images are called {twice!r}, and files are named after them; rename them")


def _check_lengths(titles: Mapping[Path, str]) -> None:
    """Refuse, before the work, names that are too long for a file once a suffix stands behind them."""
    from davis.explaining.files import SUFFIXES

    longest = max(map(len, SUFFIXES)) + 1
    for file, title in titles.items():
        if (length := len(os.fsencode(title)) + longest) > _MOST_BYTES:
            raise ValueError(
                f"the explanation of {file} would have a name of {length} bytes, and {_MOST_BYTES} are allowed; "
                "rename the image"
            )


def _line(row: dict[str, Any]) -> dict[str, Any]:
    """What a person reads first; of fused detectors the one that decides stands for all."""
    fused = "branches" in row
    branch = row["branches"][0] if fused else row
    strongest = branch["channels"][0] if branch["channels"] else None  # under average pooling none moved anything
    return {
        "file": row["file"],
        "class": row.get("name", row["class"]),
        "verdict": row["verdict"],
        "score": row["score"],
        **({"decided by": branch["spec"], "its score": branch["score"]} if fused else {}),
        "with mean pooling": branch["plain"],
        "strongest channel": strongest and strongest["index"],
        "moved": strongest and strongest["moved"],
        "at": strongest and f"{strongest['x']},{strongest['y']}",
        "map accounts for": f"{branch['accounted']:.0%}",
        "picture": row["picture"],
    }
