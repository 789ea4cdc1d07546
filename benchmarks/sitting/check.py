"""A minute that says whether the rest will work: captured steps against eager ones, a benchmark on CUDA."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from davis.bench.results import Results


def check(options: argparse.Namespace) -> None:
    """Run a benchmark on CUDA, on noise, and compare captured steps with eager ones for every network."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("check needs CUDA: torch finds none here")
    with tempfile.TemporaryDirectory() as place:
        results = tiny_benchmark(Path(place), "cuda")
    print(f"benchmark on CUDA: {len(results.rows)} rows; left out: {results.facts['left_out'] or 'none'}", flush=True)
    if options.steps:
        compare_steps()


def compare_steps() -> None:
    """The losses and weights after ten steps, captured and eager, a line for each network."""
    import torch

    from davis.training.pictures import Pictures
    from davis.training.recipe import Recipe
    from davis.training.step import Step, capture
    from davis.zoo import ARCHS, build

    torch.backends.cudnn.benchmark = True
    drawn = np.random.default_rng(0)
    pictures = Pictures(
        torch.from_numpy(drawn.integers(0, 256, (640, 32, 32, 3), dtype=np.uint8)).cuda(),
        torch.from_numpy(drawn.integers(0, 10, 640)).cuda(),
    )
    for arch in ARCHS:
        outcomes = []
        for captured in (False, True):
            torch.manual_seed(0)
            step = Step(
                build(arch, classes=10).cuda().train(), pictures, Recipe(arch=arch, dataset="cifar10", rate=0.01)
            )
            take = capture(step) if captured else step
            step.begin(0)
            for _ in range(10):
                take()
            outcomes.append((step.outcome()[0], torch.cat([p.detach().flatten() for p in step.model.parameters()])))
        (eager, before), (graph, after) = outcomes
        apart = float((before - after).norm() / before.norm())
        verdict = "ok" if abs(eager - graph) < 0.05 * eager and apart < 0.02 else "DIFFERENT"
        print(
            f"{arch}: loss of ten steps eager {eager:.5f}, graph {graph:.5f}, weights {apart:.2e} apart: {verdict}",
            flush=True,
        )


def tiny_benchmark(place: Path, device: str, *, spec: str = "paper-cifar10-resnet18") -> Results:
    """The rows of the paper's methods on a small untrained network and noise: does all of it run on the device?"""
    from davis.bench import describe
    from davis.bench.run import run

    drawn = np.random.default_rng(1)
    for name, count in (("train", 400), ("test", 120), ("near", 100), ("far", 100)):
        images = drawn.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        np.savez(place / f"{name}.npz", images=images, labels=drawn.integers(0, 10, count))
    description = describe.read(spec)[0]
    description |= {"id": {"fit": "train.npz", "test": "test.npz"}, "pixel_images": 40}
    description |= {"near": {"near": "near.npz"}, "far": {"far": "far.npz"}}
    built = describe.build(description, place, data=place, weights="none", device=device)
    return run(built, place / "out", cache=place / "cache")
