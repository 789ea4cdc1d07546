"""Single detectors and fusions on every network at hand, with intervals; and which tail serves them best.

python benchmarks/fusion.py CACHES DATA > benchmarks/fusion.md

CACHES holds a folder of cached activations for each network of ``NETWORKS`` (``davis bench --cache``, all statistics);
DATA their weights. CIFAR networks are fitted on all 50,000 training images, of which fused detectors hold out a tenth
to be ranked against. Of the 1,500 ImageNet crops 600 are fitted on, 300 ranked against and 600 tested with.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from davis import metrics
from davis.backbone import Backbone
from davis.bench.cache import Cached
from davis.detector import Detector
from davis.joint_fit import fit_from_activations
from davis.models import load_model
from davis.scoring import Scored, score_all
from davis.spec import canonical
from davis.types import Activations, Labels

FAR = ("svhn_cropped", "dtd10", "miniplaces", "lsuncats_crop")
CROPS = ("dtd", "sun5", "plantdoc")
TAILS = ("exponential", "pareto", "gaussian", "zscore")
RESAMPLES = 200


@dataclass(frozen=True)
class Network:
    """A network, its caches and its image sets."""

    title: str
    folder: str
    model: str
    weights: str
    shape: tuple[int, int, int]
    gamma: float
    id: str  # the ID test set
    fit: str | None  # None: a part of the test set
    groups: dict[str, tuple[str, ...]]


NETWORKS = {
    "C-10": Network(
        "DenseNet-101, CIFAR-10", "cifar10", "davis.zoo:cifar10_densenet101", "davis_densenet101_cifar10.pt",
        (3, 32, 32), 3, "cifar10_test", "cifar10_train", {"far": FAR, "near": ("tiny_imagenet", "cifar100_test")},
    ),
    "C-100": Network(
        "DenseNet-101, CIFAR-100", "cifar100", "davis.zoo:cifar100_densenet101", "davis_densenet101_cifar100.pt",
        (3, 32, 32), 3, "cifar100_test", "cifar100_train", {"far": FAR, "near": ("tiny_imagenet", "cifar10_test")},
    ),
    "MobileNet-v2": Network(
        "MobileNet-v2, ImageNet crops", "imagenet-mobilenet_v2", "mobilenet_v2", "mobilenet_v2_imagenet1k.pth",
        (3, 224, 224), 0.5, "val", None, {"far": CROPS},
    ),
    "EfficientNet-Lite0": Network(
        "EfficientNet-Lite0, ImageNet crops", "imagenet-efficientnet_lite0", "efficientnet_lite0", "default",
        (3, 224, 224), 0.5, "val", None, {"far": CROPS},
    ),
}  # fmt: skip

SINGLE = (
    "energy",
    "knn",
    "max + energy",
    "davis(gamma={g}) + energy",
    "max + dice + energy",
    "davis(gamma={g}) + dice + energy",
)
FUSED = (
    "max + energy | energy",
    "max + dice + energy | energy",
    "max + energy | energy | knn",
    "max + dice + energy | energy | knn",
    "max + dice + energy | max + energy | energy | knn",
    "max + dice + energy | energy | knn | fisher(weights=[1, 2, 1])",
    "max + dice + energy | energy | knn | fisher(weights=[1, 3, 1])",
    "max + dice + energy | energy | knn | stouffer",
    "max + dice + energy | energy | knn | min",
    "max + energy | energy | msp",
    "max + dice + energy | energy | msp | knn",
    "max + dice + energy | energy | fdbd",
    "max + dice + energy | energy | fdbd | max + knn",
    "max + dice + energy | max + scale + energy | energy | knn | fdbd",
)
TAILED = (
    "max + dice + energy | energy | knn",
    "max + dice + energy | energy",
    "max + dice + energy | energy | msp | knn",
)


def with_tail(spec: str, tail: str) -> str:
    return canonical(f"{spec} | fisher(tail={tail})")


def fitted(
    network: Network, caches: Path, data: Path, specs: list[str]
) -> tuple[list[Detector], Iterable[tuple[Activations, Labels | None]]]:
    """Detectors fitted on a network's fit images, and the activations of its ID test images."""
    weights = str(data / network.weights) if "." in network.weights else network.weights
    backbone = Backbone(load_model(network.model, weights=weights))
    backbone.probe(network.shape)
    folder = caches / network.folder
    detectors = [Detector(backbone, spec) for spec in specs]
    if network.fit is not None:
        fit_from_activations(detectors, opened(folder, network.fit).stream())
        return detectors, opened(folder, network.id).stream()
    everything = opened(folder, network.id).activations()
    order = torch.randperm(len(everything.logits), generator=torch.Generator().manual_seed(0))
    fit, reference, test = (everything.rows(part) for part in order.split([600, 300, 600]))
    fit_from_activations(detectors, [(fit, None)], reference=[(reference, None)])
    return detectors, [(test, None)]


def scores_of(network: Network, caches: Path, data: Path, specs: list[str]) -> dict[str, Scored]:
    """Set -> spec -> scores, the ID test set first."""
    detectors, tested = fitted(network, caches, data, specs)
    return {
        name: score_all(detectors, tested if name == network.id else opened(caches / network.folder, name).stream())
        for name in scored_sets(network)
    }


def scored_sets(network: Network) -> list[str]:
    return [network.id, *(name for names in network.groups.values() for name in names)]


def opened(folder: Path, name: str) -> Cached:
    (found,) = folder.glob(f"{name}-*")
    return Cached(found)


def measured(found: dict[str, Scored], id: str, names: tuple[str, ...], spec: str) -> np.ndarray:
    """(FPR95, AUROC) in percent, averaged over sets."""
    rows = [metrics.evaluate(found[id][spec], found[name][spec]) for name in names]
    return 100 * np.mean([(row.fpr, row.auroc) for row in rows], axis=0)


def interval(found: dict[str, Scored], id: str, names: tuple[str, ...], spec: str, base: str) -> np.ndarray:
    """(2, 2, 2): low and high of (FPR95, AUROC), of a detector and of its lead over another on the same images."""
    random = np.random.default_rng(0)
    draws = []
    for _ in range(RESAMPLES):
        picked = {name: random.integers(0, len(found[name][spec]), len(found[name][spec])) for name in (id, *names)}
        again = {name: {s: found[name][s][rows] for s in (spec, base)} for name, rows in picked.items()}
        own, other = (measured(again, id, names, s) for s in (spec, base))
        draws.append((own, own - other))
    return np.quantile(np.array(draws), [0.025, 0.975], axis=0)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    caches, data = Path(sys.argv[1]), Path(sys.argv[2])
    keep = caches / "fusion-scores"
    everything: dict[str, dict[str, Scored]] = {}
    for key, network in NETWORKS.items():
        if not (caches / network.folder).is_dir():
            continue
        specs = dict.fromkeys(canonical(spec.format(g=network.gamma)) for spec in SINGLE)
        specs |= dict.fromkeys(canonical(spec) for spec in FUSED)
        specs |= dict.fromkeys(with_tail(spec, tail) for spec in TAILED for tail in TAILS)
        everything[key] = _kept(keep / key, list(specs), lambda s, n=network: scores_of(n, caches, data, s))  # type: ignore[misc]
    columns = [(key, group) for key in everything for group in NETWORKS[key].groups]
    print(INTRODUCTION)
    print(
        "| detector |"
        + "".join(f" {key} {group} |" for key, group in columns)
        + "\n"
        + "|---" * (1 + len(columns))
        + "|"
    )
    for spec in (*SINGLE, *FUSED):
        cells = []
        for key, group in columns:
            network = NETWORKS[key]
            values = measured(
                everything[key], network.id, network.groups[group], canonical(spec.format(g=network.gamma))
            )
            cells.append(f"{values[0]:.1f} / {values[1]:.1f}")
        print(f"| `{spec.format(g='g').replace('|', chr(92) + '|')}` | {' | '.join(cells)} |")
    print(f"\n## {CHOSEN}\n".replace("|", "\\|"))
    print(LEAD)
    print("| network, sets | FPR95 | AUROC | FPR95 against davis + dice | against energy |\n|---|---|---|---|---|")
    for key, group in columns:
        network = NETWORKS[key]
        place = everything[key], network.id, network.groups[group]
        spec, rival = canonical(CHOSEN), canonical(SINGLE[-1].format(g=network.gamma))
        values = measured(*place, spec)
        over_rival, over_energy = interval(*place, spec, rival), interval(*place, spec, "mean + energy")
        leads = [values - measured(*place, other) for other in (rival, "mean + energy")]
        own = over_rival[:, 0]
        cells = [f"{values[m]:.1f} ({own[0, m]:.1f} to {own[1, m]:.1f})" for m in (0, 1)]
        cells += [
            f"{lead[0]:+.1f} ({span[0, 1, 0]:+.1f} to {span[1, 1, 0]:+.1f})"
            for lead, span in zip(leads, (over_rival, over_energy), strict=True)
        ]
        print(f"| {network.title}, {group} | {' | '.join(cells)} |")
    print(TAIL)
    print(
        "| fusion | tail |"
        + "".join(f" {key} {group} |" for key, group in columns)
        + " mean | worst against the best |"
    )
    print("|---" * (4 + len(columns)) + "|")
    for spec in TAILED:
        table = np.array([
            [measured(everything[k], NETWORKS[k].id, NETWORKS[k].groups[g], with_tail(spec, tail)) for k, g in columns]
            for tail in TAILS
        ])  # fmt: skip
        for tail, row in zip(TAILS, table, strict=True):
            cells = [f"{fpr:.1f} / {auroc:.1f}" for fpr, auroc in row]
            worst = (row[:, 0] - table[:, :, 0].min(0)).max()
            name, mean = spec.replace("|", "\\|"), row[:, 0].mean()
            print(f"| `{name}` | {tail} | {' | '.join(cells)} | {mean:.2f} | +{worst:.2f} |")


def _kept(folder: Path, specs: list[str], make: Callable[[list[str]], dict[str, Scored]]) -> dict[str, Scored]:
    """Scores from disk where an earlier run left them for the same specs."""
    known = folder / "specs.json"
    if known.is_file() and json.loads(known.read_text()) == specs:
        return {file.stem: dict(np.load(file)) for file in sorted(folder.glob("*.npz"))}
    found = make(specs)
    folder.mkdir(parents=True, exist_ok=True)
    for name, scores in found.items():
        np.savez(folder / f"{name}.npz", **scores)
    known.write_text(json.dumps(specs))
    return found


CHOSEN = "max + dice + energy | max + scale + energy | energy | knn | fdbd"

INTRODUCTION = """# Fusion

Written by `python benchmarks/fusion.py`: FPR95 / AUROC in percent, averaged over the far sets (CIFAR: svhn, dtd10,
miniplaces, lsuncats_crop; ImageNet crops: dtd, sun5, plantdoc) and the near ones (tiny_imagenet and the other CIFAR).
g is 3 on CIFAR and 0.5 on ImageNet, as in the paper. The networks: the authors' DenseNet-101, MobileNet-v2 and
EfficientNet-Lite0 with public weights.
"""

LEAD = """95% bootstrap intervals over images (200 resamples, the same images for both sides of a difference). Negative
differences are gains. The fusion was chosen on CIFAR-100 and MobileNet-v2; CIFAR-10 and EfficientNet-Lite0 had no vote,
but had been looked at before ([how](fusion_search.md)).
"""

TAIL = """
## Scores below all of the reference

FPR95 / AUROC of the same fusions with each treatment of the tail; mean FPR95 over the columns, and the most that a
tail loses in a column against the best tail there.
"""

if __name__ == "__main__":
    main()
