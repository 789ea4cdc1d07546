"""What fitting thirty detectors at once costs: CPU time over one plain pass, and peak memory over the image count.

python benchmarks/fit_cost.py                  ResNet-18, 224 px, 2,000 images: about ten minutes on two cores
python benchmarks/fit_cost.py --images 200     a quick look
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from davis import Backbone, fit_all
from davis.torchvision_ops import declare_missing_operators

SPECS = [
    "energy",
    "msp",
    "maxlogit",
    "gen",
    "gradnorm",
    "lts",
    "mahalanobis",
    "vim",
    "nnguide",
    "fdbd",
    "nci",
    "caref",
    "cadref",
    "optfs",
    "gradorth",
    "combood(k=10)",
    "knn(k=50)",
    "react(p=90) + energy",
    "dice(p=70) + energy",
    "bats + energy",
    "laps + energy",
    "max + energy",
    "max + knn(k=50)",
    "max + dice(p=70) + energy",
    "max + react(p=95) + dice(p=70) + energy",
    "davis(gamma=0.5) + react(p=95) + energy",
    "davis(gamma=0.5) + scale(p=85) + energy",
    "davis(gamma=0.5) + ash_s(p=90) + vim",
    "davis(gamma=3) + knn(k=50)",
    "unified(gamma=0.5) + mahalanobis",
]


def network() -> nn.Module:
    declare_missing_operators()
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(weights=None).eval()


def batches(images: int, size: int, batch: int = 50) -> Iterator[Tensor]:
    """Noise images, made as they are asked for: the work counts for both sides."""
    generator = torch.Generator().manual_seed(0)
    for start in range(0, images, batch):
        yield torch.randn((min(batch, images - start), 3, size, size), generator=generator)


def plain_pass(model: nn.Module, images: int, size: int) -> float:
    began = time.process_time()
    with torch.no_grad():
        for batch in batches(images, size):
            model(batch)
    return time.process_time() - began


def fit_pass(model: nn.Module, images: int, size: int) -> float:
    began = time.process_time()
    fit_all(Backbone(model), SPECS, batches(images, size))
    return time.process_time() - began


def peak_memory(images: int, size: int, capacity: int) -> int:
    """The peak resident memory, in bytes, of a process that fits all detectors on this many images."""
    code = (
        "import sys, torch; sys.path.insert(0, sys.argv[1]); torch.set_num_threads(2); import fit_cost as b\n"
        f"from davis import Backbone, fit_all\n"
        f"fit_all(Backbone(b.network()), b.SPECS, b.batches({images}, {size}), capacity={capacity})\n"
        "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    folder = __file__.rsplit("/", 1)[0] if "/" in __file__ else "."
    output = subprocess.run([sys.executable, "-c", code, folder], check=True, capture_output=True, text=True).stdout
    return int(output) * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=3, help="interleaved runs; the table shows the median ratio")
    options = parser.parse_args()
    torch.set_num_threads(2)
    model = network()
    plain_pass(model, 50, options.size)
    ratios = []
    print(f"ResNet-18, {options.size} px, {options.images} images, {len(SPECS)} detectors, CPU seconds\n")
    print("| run | plain pass | fit of all | ratio |\n|---|---|---|---|")
    for run in range(options.repeats):
        plain = plain_pass(model, options.images, options.size)
        fitted = fit_pass(model, options.images, options.size)
        ratios.append(fitted / plain)
        print(f"| {run + 1} | {plain:.1f} | {fitted:.1f} | {ratios[-1]:.3f} |", flush=True)
    print(f"\nmedian ratio {sorted(ratios)[len(ratios) // 2]:.3f} (asked for: below 1.3)\n")
    print("Peak memory of a fresh process, 64 px, capacity 1,000 rows\n")
    print("| images | peak MB |\n|---|---|")
    for images in (1000, 4000, 16000):
        print(f"| {images} | {peak_memory(images, 64, 1000) / 2**20:.0f} |", flush=True)


if __name__ == "__main__":
    main()
