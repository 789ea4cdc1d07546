"""A benchmark run that never happened, for what reads runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from davis.bench.results import Group, Results, compare, load, save, save_arrays

SPECS = [
    "max + energy",
    "mean + energy",
    "davis(gamma=3) + energy",
    "mean + ash_s(p=77) + energy",
    "max + dice + energy",
]
GROUPS: dict[str, Group] = {"svhn": "far", "cifar100_test": "near", "dtd10": "far", "tiny_imagenet": "near"}


def made(
    folder: Path,
    specs: list[str],
    groups: dict[str, Group],
    *,
    images: int,
    channels: int,
    sampled: int = 40,
    thresholds: dict[str, float | None] | None = None,
    **changes: Any,
) -> Results:
    """Random scores, some detectors better than others."""
    random = np.random.default_rng(7)
    skill = random.uniform(0.5, 3, len(specs))
    rows, id_scores = [], {}
    for name in ("cifar10_test", *groups):
        shift = 0.0 if name == "cifar10_test" else 0.8 if groups[name] == "far" else 0.5
        scores = {spec: random.normal(-shift * each, 1, images) for spec, each in zip(specs, skill, strict=True)}
        save_arrays(folder / "scores" / f"{name}.npz", scores)
        sample = {key: random.gamma(2, 1 - shift / 3, (sampled, channels)) for key in ("mean", "std", "max")}
        arrays = {key: values.mean(axis=0) for key, values in sample.items()}
        arrays |= {f"sample_{key}": values for key, values in sample.items()}
        save_arrays(folder / "units" / f"{name}.npz", {key: each.astype(np.float32) for key, each in arrays.items()})
        if name == "cifar10_test":
            id_scores = scores
        else:
            rows += compare(id_scores, name, groups[name], scores, thresholds=thresholds)
    head = {"weight": random.normal(0.01, 0.1, (10, channels)), "bias": np.zeros(10)}
    save_arrays(folder / "head.npz", head)
    fields: dict[str, Any] = {
        "paper": ("cifar10", "densenet101"),
        "facts": {"device": "cpu", "images": {"svhn": images}},
    }
    fields |= {"accuracy": 0.9361, "gamma": 3.0, "id": "cifar10_test", "model": "DenseNet-101"} | changes
    save(Results(name="a <b>made up</b> run", groups=groups, specs=specs, rows=rows, **fields), folder)
    return load(folder)
