"""``python -m davis.training``: the same as ``davis train`` where typer and rich are not installed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from davis.training import Progress, Recipe, train
from davis.training.jobs import read_jobs, run_jobs, with_act

OUT = Path("trained")
_SETTINGS = ("dataset", "head", "epochs", "batch", "rate", "momentum", "decay", "padding", "seed", "images")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train one network, or those of a file; the model card, or the table, goes to stdout as JSON."""
    options = _parser().parse_args(arguments)
    try:
        return _jobs(options) if options.jobs else _one(options)
    except KeyboardInterrupt:
        return 130
    except (ValueError, TypeError, OSError) as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        return 2


def _one(options: argparse.Namespace) -> int:
    if options.arch is None or options.dataset is None:
        raise ValueError("give a network and a dataset, such as resnet18 cifar10, or --jobs FILE")
    if options.side_by_side is not None or options.no_mps:
        raise ValueError("--side-by-side and --no-mps are for several trainings; list them in a file for --jobs")
    given = {name: getattr(options, name) for name in _SETTINGS if getattr(options, name) is not None}
    recipe = Recipe(arch=with_act(options.arch, options.act), **given)
    said: int | None = None

    def watch(progress: Progress) -> None:
        nonlocal said
        if said is not None and progress.epoch != said:
            left = "" if progress.seconds_left is None else f", {progress.seconds_left:.0f} s left"
            _say(f"{json.dumps(progress.record)}{left}")
        said = progress.epoch

    card = train(
        recipe,
        options.out or OUT / recipe.name,
        data=options.data,
        device=options.device,
        graph=not options.no_graph,
        compiled=options.compile,
        save_every=options.save_every,
        watch=watch,
        say=_say,
    )
    sys.stdout.write(json.dumps(card) + "\n")
    return 0


def _jobs(options: argparse.Namespace) -> int:
    if any(getattr(options, name) is not None for name in ("arch", "act", *_SETTINGS)):
        raise ValueError("--jobs names the networks, datasets and settings in its file; give them there alone")
    jobs, count = read_jobs(options.jobs, options.out or OUT)
    passed = ["--save-every", str(options.save_every)]
    passed += ["--no-graph"] if options.no_graph else []
    passed += ["--compile"] if options.compile else []
    rows = run_jobs(
        jobs,
        side_by_side=count if options.side_by_side is None else options.side_by_side,
        data=options.data,
        device=options.device,
        options=passed,
        share=not options.no_mps,
        say=_say,
    )
    sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    return 1 if any(row["state"] == "failed" for row in rows) else 0


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m davis.training", description=__doc__)
    parser.add_argument("arch", nargs="?")
    parser.add_argument("dataset", nargs="?")
    parser.add_argument("--act")
    parser.add_argument("--head")
    for name in ("epochs", "batch", "padding", "seed", "images"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("rate", "momentum", "decay"):
        parser.add_argument(f"--{name}", type=float)
    for name in ("out", "data", "jobs"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--no-graph", action="store_true")
    parser.add_argument("--no-mps", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--save-every", type=int, default=1)
    parser.add_argument("--side-by-side", type=int)
    return parser


if __name__ == "__main__":
    sys.exit(main())
