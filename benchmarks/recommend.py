"""What `davis.recommend` picks, and how good the choice is on real OOD sets that it never saw.

python benchmarks/recommend.py CACHES DATA > benchmarks/recommend.md

The authors' DenseNet-101. The choice is made on the first 3,000 test images alone; the chosen detector is then fitted
on the 50,000 training images and tested on the other 7,000 against the real sets, beside plain energy, the paper's best
row and the fusion of benchmarks/fusion.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from fusion import CHOSEN, NETWORKS, measured, opened

from davis.backbone import Backbone
from davis.bench import describe
from davis.data import Preprocessing
from davis.detector import Detector
from davis.joint_fit import fit_from_activations
from davis.models import load_model
from davis.scoring import score_all
from davis.spec import canonical
from davis.tuning import recommend

CHOICE = 3000


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    caches, data = Path(sys.argv[1]), Path(sys.argv[2])
    print(INTRODUCTION)
    for key in ("C-10", "C-100"):
        network = NETWORKS[key]
        description, folder = describe.read(f"paper-{network.folder}-densenet101")
        built = describe.build(description, folder, data=data)
        backbone = Backbone(load_model(network.model, weights=str(data / network.weights)))
        backbone.probe(network.shape)
        batches = [images for images, _, _ in built.test.batches(0, 500)][: CHOICE // 500]
        advice = recommend(backbone, batches, preprocessing=Preprocessing(**description["preprocessing"]))
        specs = [advice.spec, "mean + energy", "davis(gamma=3) + dice + energy", canonical(CHOSEN)]
        detectors = [Detector(backbone, spec) for spec in dict.fromkeys(specs)]
        fit_from_activations(detectors, opened(caches / network.folder, network.fit or "").stream())
        held = opened(caches / network.folder, network.id).activations(slice(CHOICE, None))
        found = {network.id: score_all(detectors, [(held, None)])}
        for names in network.groups.values():
            found |= {name: score_all(detectors, opened(caches / network.folder, name).stream()) for name in names}
        print(f"## {network.title}\n\n> {advice.why}\n\n| detector | far | near |\n|---|---|---|")
        for detector in detectors:
            cells = [measured(found, network.id, network.groups[group], detector.spec) for group in ("far", "near")]
            mark = " (chosen)" if detector.spec == advice.spec else ""
            text = detector.spec.replace("|", "\\|")
            print(
                f"| `{text}`{mark} | " + " | ".join(f"{fpr:.1f} / {auroc:.1f}" for fpr, auroc in np.array(cells)) + " |"
            )
        print(flush=True)


INTRODUCTION = """# What is recommended, and how good it is

Written by `python benchmarks/recommend.py`: FPR95 / AUROC on real sets that had no part in the choice. Far: svhn,
dtd10, miniplaces, lsuncats_crop; near: tiny_imagenet and the other CIFAR.
"""

if __name__ == "__main__":
    main()
