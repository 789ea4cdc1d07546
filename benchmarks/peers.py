"""Ten methods end to end, davis beside pytorch-ood in one run: CPU time over one plain pass over all images used.

pip install pytorch-ood==0.4.0 && python benchmarks/peers.py [--images 400]

Both fit on the same images and score the same images with ResNet-18 at 224 px: MSP, MaxLogit, Energy, GEN, ODIN,
ReAct, DICE, ASH-S, KNN, ViM. pytorch-ood is used as its README shows, one detector after the other.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from davis import Backbone, Detector, fit_all
from davis.torchvision_ops import declare_missing_operators

CACHED = [
    "mean + msp",
    "mean + maxlogit",
    "mean + energy",
    "mean + gen",
    "mean + react + energy",
    "mean + dice + energy",
    "mean + ash_s + energy",
    "mean + knn(k=50)",
    "mean + vim",
]
ODIN = "odin + mean + msp(t=1000)"


class Counted(nn.Module):
    """Counts the images that pass through the network."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.images = 0
        self.model.layer4.register_forward_hook(self._count)  # type: ignore[union-attr, operator]

    def _count(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.images += len(output)


def network() -> nn.Module:
    declare_missing_operators()
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(weights=None).eval()


def by_davis(model: nn.Module, fit: list[Tensor], test: list[Tensor], odin: bool) -> dict[str, Tensor]:
    backbone = Backbone(model)
    detectors = fit_all(backbone, CACHED, fit)
    scores: dict[str, list[Tensor]] = {detector.spec: [] for detector in detectors}
    for activations, _ in backbone.stream(test, statistics=()):
        for detector in detectors:
            scores[detector.spec].append(detector.score(activations))
    if odin:
        moving = Detector(backbone, ODIN)
        scores[ODIN] = [moving.score_images(batch) for batch in test]
    return {spec: torch.cat(parts) for spec, parts in scores.items()}


def by_pytorch_ood(model: Any, fit: list[Tensor], test: list[Tensor], odin: bool) -> dict[str, Tensor]:
    from pytorch_ood import detector as peers

    parts = list(model.children())
    maps, tail = nn.Sequential(*parts[:-2]), nn.Sequential(parts[-2], nn.Flatten(), parts[-1])
    encoder = nn.Sequential(*parts[:-1], nn.Flatten())
    weight, bias = model.fc.weight.detach(), model.fc.bias.detach()
    loader = [(batch, torch.zeros(len(batch), dtype=torch.int64)) for batch in fit]
    methods: dict[str, Any] = {
        "msp": peers.MaxSoftmax(model),
        "maxlogit": peers.MaxLogit(model),
        "energy": peers.EnergyBased(model),
        "gen": peers.GEN(model, M=100),
        "react": peers.ReAct(maps, tail),
        "dice": peers.DICE(encoder, weight, bias, 0.7),
        "ash_s": peers.ASH(maps, tail, variant="ash-s", percentile=0.9),
        "knn": peers.KNN(encoder, k=50),
        "vim": peers.ViM(encoder, 256, weight, bias),
    }
    if odin:
        methods["odin"] = peers.ODIN(model)
    scores = {}
    for name, method in methods.items():
        method.fit(loader)
        context = torch.enable_grad() if name == "odin" else torch.no_grad()
        with context:
            scores[name] = torch.cat([method.predict(batch).detach().flatten() for batch in test])
    return scores


def timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=400, help="to fit on, and as many to score")
    options = parser.parse_args()
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(0)
    fit, test = (list(torch.randn((options.images, 3, 224, 224), generator=generator).split(50)) for _ in range(2))
    model = network()
    counted = Counted(model)

    def plain() -> None:
        with torch.no_grad():
            for batch in [*fit, *test]:
                model(batch)

    timed(plain)
    base = timed(plain)
    print("| library | with ODIN | CPU time / plain pass | forward passes |\n|---|---|---|---|")
    for odin in (False, True):
        for name, work in (("davis", by_davis), ("pytorch-ood", by_pytorch_ood)):
            counted.images = 0
            took = timed(lambda work=work, odin=odin: work(model, fit, test, odin))  # type: ignore[misc]
            passes = counted.images / (2 * options.images)
            print(f"| {name} | {'yes' if odin else 'no'} | {took / base:.2f} | {passes:.2f} |", flush=True)


if __name__ == "__main__":
    main()
