"""Fills activation caches of the ImageNet crops for two networks and compares plain energy under three poolings.

python benchmarks/imagenet_crops.py DATA CACHE > benchmarks/imagenet_crops.md

DATA holds imagenet_crops/{val,dtd,sun5,plantdoc} and mobilenet_v2_imagenet1k.pth (docs/data.md); the caches go to
CACHE/imagenet-mobilenet_v2 and CACHE/imagenet-efficientnet_lite0. All 1,500 validation crops are ID: nothing is fitted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from davis import metrics
from davis.backbone import Backbone
from davis.bench.cache import Cached, fill
from davis.catalog import open_dataset
from davis.detector import Detector
from davis.models import adjusted, load_model, preprocessing_of
from davis.pooling import STATISTICS

SETS = {"val": "imagenet_crops", "dtd": "dtd10_crops", "sun5": "sun5_crops", "plantdoc": "plantdoc_crops"}
NETWORKS = {"mobilenet_v2": "mobilenet_v2_imagenet1k.pth", "efficientnet_lite0": ""}
TITLES = {"mobilenet_v2": "MobileNet-v2", "efficientnet_lite0": "EfficientNet-Lite0"}
RAW = {
    "mobilenet_v2": "72.6% on 5,000 raw crops",
    "efficientnet_lite0": "74.8% on raw crops",
}  # given, not measured here
SPECS = ("mean + energy", "max + energy", "davis(gamma=0.5) + energy")


def main(data: Path, cache: Path) -> None:
    """Write the page."""
    torch.set_num_threads(1)
    print("# Energy on the ImageNet crops\n")
    print("AUROC / FPR95 in percent, all 1,500 validation crops as ID; written by `benchmarks/imagenet_crops.py`.")
    print("The crops are WebP at quality 92, which costs accuracy, and none of the sets is a published benchmark's.")
    for name, file in NETWORKS.items():
        backbone, caches = filled(name, data / file if file else None, data, cache / f"imagenet-{name}")
        labels, known = caches["val"].labels, caches["val"].activations()
        accuracy = (known.logits.argmax(1) == labels).double().mean()
        print(f"\n## {TITLES[name]}: {100 * accuracy:.1f}% top-1 on these crops ({RAW[name]})\n")
        print(f"| OOD | {' | '.join(SPECS)} |\n|---|{'---|' * len(SPECS)}")
        detectors = [Detector(backbone, spec) for spec in SPECS]
        inside = [detector.score(known).numpy() for detector in detectors]
        for key in list(SETS)[1:]:
            outside = [detector.score(caches[key].activations()).numpy() for detector in detectors]
            cells = (
                f"{100 * metrics.auroc(i, o):.1f} / {100 * metrics.fpr_at_tpr(i, o):.1f}"
                for i, o in zip(inside, outside, strict=True)
            )
            print(f"| `{key}` | {' | '.join(cells)} |", flush=True)


def filled(name: str, weights: Path | None, data: Path, cache: Path) -> tuple[Backbone, dict[str, Cached]]:
    """The network, and the activations of every set with all statistics."""
    model = load_model(name, weights="default" if weights is None else str(weights))
    preprocessing = adjusted(preprocessing_of(name, model), size=224, resize=224)
    backbone = Backbone(model)
    caches = {}
    for key, source in SETS.items():
        images = open_dataset(source, preprocessing, data)
        images.name = key
        caches[key] = fill(cache, backbone, images, statistics=tuple(STATISTICS))
    return backbone, caches


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
