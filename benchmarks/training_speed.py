"""Steps of training per second on a GPU: eager against one CUDA graph, and several processes at once.

python benchmarks/training_speed.py resnet18 densenet101                    eager against graph
python benchmarks/training_speed.py resnet18 --processes 1 2 4              the sum over processes, by graph

Prints a Markdown table for benchmarks/training_speed.md. Batch 64 of random 32x32 pictures, bfloat16 autocast,
channels_last: the step that `davis train` takes, augmentation and SGD in it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from davis.training.pictures import Pictures
from davis.training.recipe import Recipe
from davis.training.step import Step, capture
from davis.zoo import build


def make(arch: str, device: str, *, compiled: bool = False) -> Step:
    drawn = np.random.default_rng(0)
    images = torch.from_numpy(drawn.integers(0, 256, (6400, 32, 32, 3), dtype=np.uint8))
    pictures = Pictures(images, torch.from_numpy(drawn.integers(0, 10, 6400))).to(torch.device(device))
    model = build(arch, classes=10).to(device).train()
    return Step(model, pictures, Recipe(arch=arch, dataset="cifar10", rate=0.001), compiled=compiled)


def steps_per_second(take: Callable[[], None], seconds: float, wait: Callable[[], None]) -> float:
    """The median over five spans, each behind a wait for the device."""
    for _ in range(5):
        take()
    rates = []
    for _ in range(5):
        wait()
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < seconds / 5:
            for _ in range(10):
                take()
            wait()
            count += 10
        rates.append(count / (time.perf_counter() - began))
    return sorted(rates)[2]


def one(arch: str, seconds: float) -> tuple[float, float, float]:
    torch.backends.cudnn.benchmark = True
    eager = make(arch, "cuda")
    eager.begin(0)
    first = steps_per_second(eager, seconds, torch.cuda.synchronize)
    del eager
    rates = [first]
    for compiled in (False, True):
        step = make(arch, "cuda", compiled=compiled)
        began = time.perf_counter()
        graph = capture(step)
        print(f"{arch}: captured in {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        step.begin(0)
        rates.append(steps_per_second(graph, seconds, torch.cuda.synchronize))
        del graph, step
    return rates[0], rates[1], rates[2]


def together(arch: str, count: int, seconds: float) -> float:
    """Steps per second of several processes that train at the same time, summed."""
    words = [sys.executable, __file__, arch, "--seconds", str(seconds), "--quiet"]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return sum(float(process.communicate()[0]) for process in running)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archs", nargs="+")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--processes", type=int, nargs="*", default=[])
    parser.add_argument("--quiet", action="store_true", help="steps per second of the graph alone")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: this compares CUDA graphs with eager steps, and torch finds no CUDA here; run it on a GPU")
    if options.quiet:
        torch.backends.cudnn.benchmark = True
        step = make(options.archs[0], "cuda")
        graph = capture(step)
        step.begin(0)
        print(steps_per_second(graph, options.seconds, torch.cuda.synchronize))
        return
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    if options.processes:
        print("| network | processes | steps/s in sum |\n|---|---|---|")
        for arch in options.archs:
            for count in options.processes:
                print(f"| {arch} | {count} | {together(arch, count, options.seconds):.1f} |", flush=True)
        return
    print("| network | eager steps/s | graph steps/s | ratio | compiled graph steps/s | ratio | 100 epochs at best |")
    print("|---|---|---|---|---|---|---|")
    for arch in options.archs:
        eager, graph, fused = one(arch, options.seconds)
        minutes = 100 * 781 / max(graph, fused) / 60
        print(
            f"| {arch} | {eager:.1f} | {graph:.1f} | {graph / eager:.2f} | {fused:.1f} | {fused / eager:.2f} "
            f"| {minutes:.1f} min |",
            flush=True,
        )


if __name__ == "__main__":
    main()
