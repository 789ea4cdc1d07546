"""Does the marked region of an explanation carry the score? Deletes it, and random regions of its size and shape.

python benchmarks/faithfulness.py DATA > benchmarks/faithfulness.md

EfficientNet-Lite0 on validation and OOD crops (docs/data.md). The top 20% of the heat map are filled with the mean
colour of the image, or blurred. The control is the same mask turned by a random quarter, flipped at random and
shifted around the edges: size and shape stay, the place does not. Two controls an image are averaged. A region
changes the score by |score - score after|; the interval is that of the paired differences, by a bootstrap over images.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from davis.backbone import Backbone
from davis.catalog import find
from davis.data import image_files, shuffled
from davis.detector import Detector
from davis.explaining import Explanation, explain
from davis.models import adjusted, load_model, preprocessing_of

NAME = "efficientnet_lite0"
SETS = {"imagenet_crops": 120, "dtd10_crops": 40, "sun5_crops": 40, "plantdoc_crops": 40}
TRIED = 60  # the first of each set served to choose how the heat map is made
SPECS = ("max + energy", "mean + energy")
CONTROLS, SHARE = 2, 0.2


def main(data: Path) -> None:
    """Write the page."""
    torch.set_num_threads(1)
    model = load_model(NAME)
    preprocessing = adjusted(preprocessing_of(NAME, model), size=224, resize=224)
    backbone = Backbone(model)
    files = {
        name: shuffled(image_files([find(name, data)]), seed=0)[TRIED : TRIED + count] for name, count in SETS.items()
    }
    print("# Faithfulness of explanations\n")
    print("How much the score changes when a fifth of the image is deleted: the region that `davis.explain` marks,")
    print("against the same mask turned, flipped and shifted at random. EfficientNet-Lite0, WebP crops; 95% intervals")
    print("of the paired difference, by 10,000 bootstrap samples over images. By `benchmarks/faithfulness.py`.\n")
    print("| detector | filled with | images | marked | random | difference | 95% interval | marked changes more |")
    print("|---|---|---|---|---|---|---|---|")
    for spec in SPECS:
        detector = Detector(backbone, spec)
        detector.preprocessing = preprocessing.to_dict()
        rng = np.random.default_rng(0)
        rows = {name: [measure(detector, file, rng) for file in chosen] for name, chosen in files.items()}
        rows = {"all": [row for each in rows.values() for row in each], **rows}
        for name, found in rows.items():
            for fill, pairs in zip(("mean colour", "blur"), np.array(found).transpose(1, 0, 2), strict=True):
                marked, control = pairs.T
                low, high = interval(marked - control)
                cells = (
                    f"`{spec}`", fill, f"{len(pairs)} {name}", f"{marked.mean():.2f}", f"{control.mean():.2f}",
                    f"{(marked - control).mean():.2f}", f"{low:.2f} to {high:.2f}", f"{(marked > control).mean():.0%}",
                )  # fmt: skip
                print(f"| {' | '.join(cells)} |", flush=True)


def measure(detector: Detector, file: Path, rng: np.random.Generator) -> list[tuple[float, float]]:
    """For each filling: the change by the marked region, and the average change by the controls."""
    found = explain(detector, file)
    image = prepared(detector, found)
    mask = found.mask(SHARE)
    masks = torch.from_numpy(np.stack([mask, *(elsewhere(mask, rng) for _ in range(CONTROLS))]))[:, None]
    whole = detector.score_images(image)
    changes = []
    for filling in (image.mean((2, 3), keepdim=True).expand_as(image), blurred(image)):
        after = detector.score_images(torch.where(masks, filling, image))
        change = (after - whole).abs()
        changes.append((float(change[0]), float(change[1:].mean())))
    return changes


def prepared(detector: Detector, found: Explanation) -> Tensor:
    """The explained picture as the classifier takes it; the crops have their final size."""
    values = detector.preprocessing or {}
    mean, std = (torch.tensor(values[name]).reshape(1, 3, 1, 1) for name in ("mean", "std"))
    return (torch.from_numpy(found.picture).permute(2, 0, 1)[None].float() / 255 - mean) / std


def elsewhere(mask: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The mask turned by a quarter, flipped and shifted at random, around the edges."""
    moved = np.rot90(mask, rng.integers(4))
    moved = moved[:, ::-1] if rng.integers(2) else moved
    return np.roll(moved, rng.integers(mask.shape), axis=(0, 1)).copy()


def blurred(image: Tensor, sigma: float = 12.0) -> Tensor:
    """The image behind frosted glass."""
    reach = int(3 * sigma)
    places = torch.arange(-reach, reach + 1).float()
    kernel = torch.exp(-(places**2) / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).expand(3, 1, -1)
    image = F.pad(image, (reach,) * 4, mode="reflect")
    image = F.conv2d(image, kernel[:, :, None, :], groups=3)
    return F.conv2d(image, kernel[:, :, :, None], groups=3)


def interval(differences: np.ndarray, samples: int = 10_000) -> tuple[float, float]:
    """The 95% percentile interval of the mean."""
    rng = np.random.default_rng(0)
    means = differences[rng.integers(len(differences), size=(samples, len(differences)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
