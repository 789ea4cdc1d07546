"""Why the demo's detector is what it is: candidates that learn nothing, on the demo's own photographs.

python benchmarks/demo_choice.py DATA CACHE > benchmarks/demo_choice.md

Each is calibrated to accept 95% of the 1,500 validation crops of DATA (docs/data.md), with EfficientNet-Lite0, and then
judges the photographs that other packages' wheels bring. CACHE is that of benchmarks/imagenet_crops.py, or is filled.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from davis.backbone import Backbone
from davis.bench.cache import fill
from davis.calibrate import calibrate
from davis.catalog import open_dataset
from davis.data import decode
from davis.demo.photographs import find_photographs
from davis.demo.shipped import MODEL
from davis.detector import Detector
from davis.models import adjusted, load_model, preprocessing_of
from davis.pooling import STATISTICS

SPECS = (
    "mean + energy",
    "max + energy",
    "davis(gamma=0.5) + energy",
    "max + msp",
    "max + gen",
    "max + ash_s(p=90) + energy",
    "max + scale(p=85) + energy",
    "davis(gamma=0.5) + scale(p=85) + energy",
    "mean + scale(p=85) + energy",
)


def main(data: Path, cache: Path) -> None:
    """Write the page."""
    model = load_model(MODEL)
    preprocessing = preprocessing_of(MODEL, model)
    backbone = Backbone(model)
    crops = open_dataset("imagenet_crops", adjusted(preprocessing, size=224, resize=224), data)
    crops.name = "val"
    known = fill(cache / f"imagenet-{MODEL}", backbone, crops, statistics=tuple(STATISTICS)).activations()
    photographs = find_photographs()
    pixels = torch.stack([decode(file, preprocessing) for _, file in photographs])
    seen = backbone(pixels, statistics=tuple(STATISTICS))
    shows = {kind: [each.shows == kind for each, _ in photographs] for kind in ("known", "unknown")}
    cat = [each.name for each, _ in photographs].index("chelsea")
    print("# The choice of the demo's detector\n")
    print(f"Written by `python benchmarks/demo_choice.py`: {MODEL}, thresholds that accept 95% of 1,500 WebP crops of")
    print(f"ImageNet validation images; {sum(shows['known'])} photographs that show a class of ImageNet, "
          f"{sum(shows['unknown'])} that show none.\n")  # fmt: skip
    print("| detector | known, accepted | nothing known, rejected | p-value of the cat | refuses of the known |")
    print("|---|---|---|---|---|")
    for spec in SPECS:
        detector = Detector(backbone, spec)
        calibration = calibrate(detector.score(known), tpr=0.95)
        place = detector.score(seen), seen.logits.argmax(1)
        accepted = ~calibration.is_ood(*place)
        right = int(accepted[shows["known"]].sum())
        wrong = int((~accepted[shows["unknown"]]).sum())
        refused = [each.name for (each, _), ok in zip(photographs, accepted, strict=True)
                   if each.shows == "known" and not ok]  # fmt: skip
        p = calibration.p_values(*place)[cat].item()
        print(f"| `{spec}` | {right} of {sum(shows['known'])} | {wrong} of {sum(shows['unknown'])} | {p:.3f} "
              f"| {', '.join(refused)} |")  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
