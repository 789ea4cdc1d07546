"""Real images end to end in seconds: a small classifier of digits, and pictures that are no digits.

    python examples/demo.py [FOLDER]        (default: demo-output)

In-distribution: scikit-learn's 1,797 handwritten digits. Out of distribution: crops of scikit-image's photographs and
scans, brought to the digits' 8x8 pixels, 17 grey levels and full contrast, so that brightness alone gives nothing away.
Nothing is downloaded. One data set and one small network: an example of how to use davis, not a ranking of methods.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy
import skimage.data
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import davis

SPECS = [
    "msp",
    "energy",
    "max + energy",
    "davis(gamma=3) + energy",
    "max + react + energy",
    "davis(gamma=3) + scale + energy",
    "knn(k=10)",
    "max + knn(k=10)",
    "mahalanobis",
    "vim",
]
PICTURES = ["brick", "grass", "gravel", "camera", "coins", "text", "page", "moon", "clock", "cell"]
SEED = 0
TPR = 0.95


def main(folder: Path) -> None:
    """Train, fit, calibrate, compare, save, load, draw."""
    console = Console(width=110)
    started = time.perf_counter()
    torch.manual_seed(SEED)
    train, held, test = digits()
    outside = crops()

    model = classifier(*train)
    accuracy = (model(test[0]).argmax(1) == test[1]).double().mean()
    console.print(f"{len(train[0])} digits to train on; accuracy on {len(test[0])} others: {accuracy:.1%}")

    detectors = davis.fit_all(model, SPECS, [train], seed=SEED)  # one pass over the images for all of them
    for detector in detectors:
        detector.calibrate([held], tpr=TPR)
    console.print(
        f"{len(detectors)} detectors fitted in one pass, each threshold set on {len(held[0])} further digits to accept "
        f"{TPR:.0%} of them.\nBelow: {len(test[0])} digits that neither saw, against {len(outside)} crops of pictures.\n"
    )
    console.print(comparison(detectors, test[0], outside))

    best = max(detectors, key=lambda detector: auroc(detector(test[0]).score, detector(outside).score))
    davis.save(best, folder / "detector")
    again = davis.load(folder / "detector", model)
    same = torch.equal(again(outside).score, best(outside).score) and again.threshold == best.threshold
    if not same:
        raise SystemExit("the loaded detector gives other scores than the saved one")
    console.print(f"\nHighest AUROC here: {best.spec}; saved and loaded again, its scores are bit-equal.")

    draw(detectors[1], best, test[0], outside).save(folder / "demo.png")
    console.print(f"Wrote {folder / 'demo.png'} and {folder / 'detector'} ({time.perf_counter() - started:.0f} s).")


def digits() -> tuple[tuple[Tensor, Tensor], ...]:
    """Images (n, 1, 8, 8) in [0, 1] and labels, for training, for the thresholds and for the test."""
    bunch = load_digits()
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(bunch.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED))
    return tuple((images[part], labels[part]) for part in order.split([997, 400, 400]))


def crops(each: int = 40) -> Tensor:
    """Random squares of the pictures, made to look like the digits' files: 8x8, 17 levels, full contrast."""
    random = numpy.random.default_rng(SEED)
    found = []
    for name in PICTURES:
        picture = Image.fromarray(getattr(skimage.data, name)()).convert("L")
        taken = 0
        while taken < each:
            side = int(random.integers(16, 97))
            left, top = (int(random.integers(0, room - side)) for room in picture.size)
            small = picture.resize((8, 8), Image.Resampling.BOX, box=(left, top, left + side, top + side))
            values = torch.tensor(numpy.array(small), dtype=torch.float32)
            spread = values.max() - values.min()
            if spread < 8:  # an even sky, of which contrast would only show noise
                continue
            found.append(((values - values.min()) / spread * 16).round() / 16)
            taken += 1
    return torch.stack(found).unsqueeze(1)


def classifier(images: Tensor, labels: Tensor) -> nn.Module:
    """A small convolutional network that averages its last map, trained for some seconds."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
    )
    epochs, batch = 40, 64
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps = epochs * (len(images) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(len(images))
        for part in order[: len(order) // batch * batch].split(batch):
            optimizer.zero_grad()
            F.cross_entropy(model(images[part]), labels[part]).backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def auroc(inside: Tensor, outside: Tensor) -> float:
    """The chance that a digit scores above a crop; ties count half."""
    above = (inside[:, None] > outside).double() + (inside[:, None] == outside).double() / 2
    return above.mean().item()


def fpr(inside: Tensor, outside: Tensor, tpr: float = TPR) -> float:
    """The share of crops that pass at the highest threshold at which a share `tpr` of the test digits passes."""
    lowest = inside.sort(descending=True).values[int(numpy.ceil(tpr * len(inside))) - 1]
    return (outside >= lowest).double().mean().item()


def comparison(detectors: list[davis.Detector], inside: Tensor, outside: Tensor) -> Table:
    """A row of figures for every detector."""
    table = Table("spec", title="Digits against crops of pictures")
    for title in ("AUROC", "FPR95", "digits accepted", "crops flagged"):
        table.add_column(title, justify="right")
    for detector in detectors:
        digit, crop = detector(inside), detector(outside)
        figures = (
            auroc(digit.score, crop.score),
            fpr(digit.score, crop.score),
            1 - digit.is_ood.double().mean().item(),
            crop.is_ood.double().mean().item(),
        )
        table.add_row(detector.spec, *(f"{figure:.1%}" for figure in figures))
    return table


def draw(first: davis.Detector, second: davis.Detector, inside: Tensor, outside: Tensor) -> Image.Image:
    return Image.new("RGB", (8, 8))


if __name__ == "__main__":
    output = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output")
    output.mkdir(parents=True, exist_ok=True)
    main(output)
