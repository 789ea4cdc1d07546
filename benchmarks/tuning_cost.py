"""What tuning over 200 candidates costs: CPU time over one plain pass over the same images.

python benchmarks/tuning_cost.py                 ResNet-18, 224 px, 1,000 + 500 images: some minutes on two cores
python benchmarks/tuning_cost.py --images 200    a quick look
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from davis import Backbone
from davis.data import Preprocessing
from davis.torchvision_ops import declare_missing_operators
from davis.tuning import default_grid, tune

PLAIN = Preprocessing(size=224, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def network() -> nn.Module:
    declare_missing_operators()
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(weights=None).eval()


def batches(images: int, size: int, seed: int, batch: int = 50) -> Iterator[Tensor]:
    """Random pictures, made as they are asked for: the work counts for both sides."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, images, batch):
        yield (torch.rand((min(batch, images - start), 3, size, size), generator=generator) - 0.5) / 0.25


def plain_pass(model: nn.Module, images: int, size: int) -> float:
    """The network on the images to fit on, those held out, and those once more, as many as a proxy makes."""
    began = time.process_time()
    with torch.no_grad():
        for part, seed in ((images, 0), (images // 2, 1), (images // 2, 2)):
            for batch in batches(part, size, seed):
                model(batch)
    return time.process_time() - began


def tuning(model: nn.Module, images: int, size: int, proxy: str) -> float:
    began = time.process_time()
    found = tune(
        Backbone(model), batches(images, size, 0), batches(images // 2, size, 1), proxy=proxy, preprocessing=PLAIN
    )
    assert len(found.rows) == len(default_grid()) == 200, found.refused
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000, help="to fit on; half as many are held out")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--proxy", default="noise")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = network()
    plain_pass(model, 50, options.size)
    print("# What tuning costs\n\nWritten by `python benchmarks/tuning_cost.py`: the default grid of 200 candidates,")
    print("beside a plain forward pass over the same number of images in the same run.\n")
    held = options.images // 2
    print(f"ResNet-18, {options.size} px, {options.images} images to fit on, {held} held out, {held} made by the proxy")
    print(f"`{options.proxy}`; CPU seconds of the process\n\n| run | plain pass | tuning | ratio |\n|---|---|---|---|")
    ratios = []
    for run in range(options.repeats):
        plain = plain_pass(model, options.images, options.size)
        tuned = tuning(model, options.images, options.size, options.proxy)
        ratios.append(tuned / plain)
        print(f"| {run + 1} | {plain:.1f} | {tuned:.1f} | {ratios[-1]:.3f} |", flush=True)
    print(f"\nmedian ratio {sorted(ratios)[len(ratios) // 2]:.3f} (asked for: below 1.2)")


if __name__ == "__main__":
    main()
