"""The verb that shows what the library is for: demo.

Everything heavy is imported inside the command: ``davis --help`` must not wait for torch.
"""

from __future__ import annotations

import json
import time
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from davis.cli.options import Json, Skipped, Strict, check_outputs, named_path
from davis.cli.printing import bar, note, table


def demo(
    photos: Annotated[
        list[Path] | None,
        typer.Argument(help="Your own pictures, or folders of them", parser=named_path, metavar="PHOTOS"),
    ] = None,
    out: Annotated[Path, typer.Option(help="The page to write", parser=named_path, metavar="FILE")] = Path("demo.html"),
    open_page: Annotated[bool, typer.Option("--open", help="Show the page in a browser")] = False,
    strict: Strict = False,
    as_json: Json = False,
) -> int:
    """Judge real photographs, and yours, with an ImageNet classifier, print a table and write a page."""
    from davis.data import ImageError, image_files
    from davis.demo.gallery import judge, one_thread
    from davis.demo.page import is_page, tally, write_page
    from davis.demo.photographs import find_photographs, missing, your_photographs
    from davis.demo.shipped import CALIBRATION, SPECS, load_shipped

    started = time.monotonic()
    if out.is_dir():
        out = out / "demo.html"
    yours = image_files(photos or [])
    check_outputs(f"--out {out}", [out], inputs=yours, ours=is_page, new_folder=True)
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out {out} is to be a page; let its name end in .html")
    photographs = your_photographs(yours) + find_photographs()
    skipped = Skipped(strict)
    exhibits = []
    with one_thread():
        detectors = load_shipped()
        for photograph, file in bar("judge", photographs, len(photographs)):
            try:
                exhibits.append(judge(photograph, file, detectors))
            except ImageError as error:
                skipped.add(file, error)
    write_page(exhibits, detectors, out)
    rows = [exhibit.to_dict() for exhibit in exhibits]
    if as_json:
        print(json.dumps({"page": str(out), "calibration": CALIBRATION, "images": rows}))
    else:
        table([row | {"p-value": exhibit.p_text} for row, exhibit in zip(rows, exhibits, strict=True)])
        known, unknown = tally(exhibits)
        for pool in ("mean", "max"):
            refused = unknown["count"] - unknown["accepted"][pool]
            print(
                f"{SPECS[pool]} accepts {known['accepted'][pool]} of {known['count']} pictures of known things and "
                f"refuses {refused} of {unknown['count']} of unknown ones"
            )
        between = len(exhibits) - known["count"] - unknown["count"]
        print(f"{between} others, in between or yours, are in no count")
        if otherwise := [exhibit.photograph.name for exhibit in exhibits if exhibit.named_otherwise]:
            print(f"accepted is not right: {', '.join(otherwise)} have another label than the network says")
        print(f"\nverdict: {SPECS['max']}; with mean pooling: {SPECS['mean']}; p-values against {CALIBRATION}")
        print(f"wrote {out} ({time.monotonic() - started:.0f} s)")
    if (more := missing()) is not None:
        note(more)
    if open_page and not webbrowser.open(out.resolve().as_uri()):
        note(f"no browser could be started; open {out} yourself")
    return 1 if skipped.files else 0
