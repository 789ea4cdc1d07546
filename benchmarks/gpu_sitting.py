"""Everything that happens on a borrowed GPU machine, in one driver: gpu_sitting.md has the sequence of calls.

Here:      python benchmarks/gpu_sitting.py pack DATA PARTS     image sets as lossless mosaics in parts of 56 MiB
There:     python benchmarks/gpu_sitting.py visit OUT --wait 0  each call: keeps the part that came, goes on, fills OUT
           python benchmarks/gpu_sitting.py check               a minute: graph against eager, a benchmark on CUDA
Here:      python benchmarks/gpu_sitting.py join FETCHED WORK   after each call, before the next
           python benchmarks/gpu_sitting.py finish WORK DATA    at the end: benchmarks that were not run there

It needs torch, NumPy, Pillow and safetensors, and this source tree: neither typer nor rich.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

from sitting import plan  # noqa: E402 (the tree need not be installed)
from sitting.check import check  # noqa: E402
from sitting.luggage import finish, join  # noqa: E402
from sitting.machine import bench, visit, work  # noqa: E402
from sitting.parts import pack  # noqa: E402


def absolute(text: str) -> Path:
    """A path for processes that live in other folders."""
    return Path(text).resolve()


def parser() -> argparse.ArgumentParser:
    """The verbs and their options."""
    whole = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = whole.add_subparsers(required=True)

    def verb(function: Callable[[argparse.Namespace], None], *places: str) -> argparse.ArgumentParser:
        added = verbs.add_parser(function.__name__, help=(function.__doc__ or "").strip())
        added.set_defaults(function=function)
        for place in places:
            added.add_argument(place, type=absolute)
        return added

    verb(check).add_argument("--no-steps", dest="steps", action="store_false", help="the benchmark alone")
    verb(pack, "data", "parts").add_argument("--size", type=float, default=56, help="MiB of a part")
    for function in (visit, work):
        added = verb(function, "out")
        added.add_argument(
            "--home", type=absolute, default=Path.home() / "sitting", help="a place that outlasts a call"
        )
        added.add_argument("--wait", type=float, default=0, help="seconds of work before anything is given back")
        added.add_argument("--last", action="store_true", help="end the work now; small checkpoints come home too")
        added.add_argument("--only", nargs="*", default=[], help="names such as cifar10-resnet18_silu")
        added.add_argument(
            "--stay", type=float, default=23.5, help="minutes of work: of 30, starting and fetching take some"
        )
        added.add_argument("--side-by-side", type=int, default=4, help="trainings; fewer if the card is crowded")
        added.add_argument("--device", default="cuda", help="cpu for a rehearsal")
        added.add_argument("--renew", action="store_true", help="what is begun from now on runs this call's code")
        added.add_argument("--no-compile", dest="compile", action="store_false", help="leave out torch.compile")
        added.add_argument(
            "--no-mps", dest="mps", action="store_false", help="let the processes take turns on the card"
        )
        added.add_argument("--no-pixels", dest="pixels", action="store_false", help="leave out ODIN and AdaSCALE")
        added.add_argument("--epochs", type=int, default=100, help="fewer for a rehearsal")
        added.add_argument("--images", type=int, help="train on the first so many only, for a rehearsal")
        added.add_argument("--room", type=float, default=60, help="MiB of a call")
        added.add_argument("--size", type=float, default=15.8, help="MiB of a file")
        added.add_argument("--largest", type=float, default=32, help="MiB of a checkpoint that is worth bringing home")
    joining, finishing = verb(join, "fetched", "target"), verb(finish, "work", "data")
    for added in (joining, finishing):
        added.add_argument("--tables", type=absolute, default=plan.AT_HOME, help="tables for the repository")
        added.add_argument("--shipped", type=absolute, default=plan.SHIPPED, help="weights for the package")
    benching = verb(bench, "work")
    benching.add_argument("name")
    benching.add_argument("--data", type=absolute, help="WORK/data if it is not said")
    benching.add_argument("--device", help="where the network runs")
    finishing.set_defaults(device=None)
    for added in (benching, finishing):
        added.add_argument("--no-pixels", dest="pixels", action="store_false", help="leave out ODIN and AdaSCALE")
        added.add_argument("--pixel-images", type=int, default=2000, help="images a set for ODIN and AdaSCALE")
    return whole


def main() -> None:
    """Do what the command line asks for."""
    options = parser().parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
