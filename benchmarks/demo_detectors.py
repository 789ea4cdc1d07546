"""Makes the detectors that the demo ships, from the cached activations of the ImageNet crops.

python benchmarks/imagenet_crops.py DATA CACHE
python benchmarks/demo_detectors.py CACHE

Energy learns nothing, so all 1,500 validation crops set the threshold. What is written is their sorted scores.
"""

from __future__ import annotations

import sys
from pathlib import Path

from davis.artifact import save
from davis.backbone import Backbone
from davis.bench.cache import Cached
from davis.calibrate import calibrate
from davis.demo.shipped import MODEL, SPECS, folder_of
from davis.detector import Detector
from davis.models import load_model, preprocessing_of


def main(cache: Path) -> None:
    """Write both artifacts into the package."""
    (folder,) = (cache / f"imagenet-{MODEL}").glob("val-*")
    activations = Cached(folder).activations()
    model = load_model(MODEL)
    preprocessing = preprocessing_of(MODEL, model)  # of photographs; the crops had it done to them before
    backbone = Backbone(model)
    backbone.probe(preprocessing.shape)
    for pool, spec in SPECS.items():
        detector = Detector(backbone, spec)
        scores = detector.score(activations)
        detector.calibration = calibrate(scores, tpr=0.95)
        detector.preprocessing = preprocessing.to_dict()
        save(detector, folder_of(pool))
        print(f"{spec}: threshold {detector.threshold:.4f} from {len(scores)} crops, {folder_of(pool)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
