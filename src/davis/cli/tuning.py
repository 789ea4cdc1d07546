"""The verb tune: choose a detector and its settings from in-distribution images alone."""

from __future__ import annotations

import json
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from davis.cli.options import (
    Batch,
    Device,
    Head,
    Json,
    Mean,
    Model,
    NumClasses,
    Size,
    Skipped,
    Std,
    Strict,
    Tap,
    Tokens,
    Weights,
    Workers,
    folder_of_images,
    labels_of,
    numbers_of,
    open_backbone,
    prepare,
)
from davis.cli.printing import Watched, note, table


class Select(str, Enum):
    """What a candidate is judged by."""

    auroc = "auroc"
    fpr95 = "fpr95"


def tune(
    model: Model,
    data: Annotated[Path, typer.Option(help="Folder of in-distribution images; class folders become labels")],
    grid: Annotated[
        str | None, typer.Argument(help="Specs with alternatives: 'davis(gamma={1, 2, 3}) + energy; knn'")
    ] = None,
    holdout: Annotated[Path | None, typer.Option(help="Folder of images to compare on, not trained on")] = None,
    holdout_share: Annotated[float, typer.Option(help="Else this share of --data, drawn at random")] = 0.3,
    proxy: Annotated[
        list[str] | None, typer.Option(help="noise(std=0.2), patches, mix, blur or colour; several are averaged")
    ] = None,
    select: Annotated[Select, typer.Option(help="Choose by it")] = Select.auroc,
    check: Annotated[list[Path] | None, typer.Option(help="Folder of real OOD images, for checking only")] = None,
    top: Annotated[int, typer.Option(min=1, help="Rows to print")] = 10,
    plot: Annotated[Path | None, typer.Option(help="Draw the surface there: .png, .svg, .pdf")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the whole table there")] = None,
    weights: Weights = "default",
    num_classes: NumClasses = None,
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
    """Choose a detector and its settings from in-distribution images alone."""
    from davis.data import Images, image_files, shuffled, split
    from davis.statistics import CAPACITY
    from davis.tuning import DEFAULT, draw, expand, parse_proxies
    from davis.tuning import tune as search

    specs = expand(DEFAULT if grid is None else grid)
    proxies = list(parse_proxies(proxy or "noise"))
    checks = {path.name: image_files([folder_of_images(path)]) for path in check or []}
    if len(checks) < len(check or []):
        raise ValueError("two folders of --check have the same name; rename one of them")
    files = image_files([folder_of_images(data)])
    if holdout is None:
        fitted, held = split(files, holdout_share, seed)
    else:
        fitted, held = shuffled(files, seed), shuffled(image_files([folder_of_images(holdout)]), seed)
    means, stds = numbers_of("mean", mean), numbers_of("std", std)
    backbone = open_backbone(model, weights, num_classes, device, tap, head, tokens)
    preprocessing = prepare(model, backbone, size=size, resize=resize, mean=means, std=stds)
    labels = labels_of(data, files, backbone)
    skipped = Skipped(strict)
    read = partial(Images, preprocessing=preprocessing, batch=batch, workers=workers, on_error=skipped.add)
    found = search(
        backbone,
        Watched("fit", read(fitted, labels=[labels[file] for file in fitted] if labels else None)),
        Watched("compare", read(held)),
        grid=specs,
        proxy=proxies,
        select=select.value,
        check={name: Watched(f"check {name}", read(pictures)) for name, pictures in checks.items()},
        preprocessing=preprocessing,
        capacity=capacity or CAPACITY,
        seed=seed,
    )
    if plot is not None:
        draw(found, plot)
    if markdown is not None:
        markdown.write_text(found.to_markdown(), encoding="utf-8")
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    table([_shown(row) for row in found.rows[:top]])
    print()
    print("\n".join(found.sentences()))
    for line in [*found.warnings, *(f"left out {spec!r}: {reason}" for spec, reason in found.refused.items())]:
        note(f"beware: {line}")


def _shown(row: Any) -> dict[str, Any]:
    columns = {"candidate": row.spec, "AUROC": _percent(row.auroc), "FPR95": _percent(row.fpr95)}
    if row.check is not None:
        columns |= {"real AUROC": _percent(row.check.auroc), "real FPR95": _percent(row.check.fpr95)}
    return columns


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
