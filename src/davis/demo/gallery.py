"""What both detectors say about photographs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from davis.demo.photographs import Photograph
from davis.demo.shipped import class_names
from davis.detector import Detector
from davis.explaining import Explanation, explain


@dataclass(frozen=True)
class Verdict:
    """What one detector says."""

    score: float
    p: float
    accepted: bool


@dataclass(frozen=True)
class Exhibit:
    """A photograph, the classifier's answer, and whether to trust it."""

    photograph: Photograph
    label: str
    probability: float
    verdicts: Mapping[str, Verdict]  # by pooling
    explanations: Mapping[str, Explanation]

    def to_dict(self) -> dict[str, Any]:
        """One row of the table."""
        verdict, plain = self.verdicts["max"], self.verdicts["mean"]
        return {
            "image": self.photograph.name,
            "shows": self.photograph.shows,
            "class": self.label,
            "probability": self.probability,
            "score": verdict.score,
            "p-value": verdict.p,
            "verdict": "ok" if verdict.accepted else "OOD",
            "with mean pooling": "ok" if plain.accepted else "OOD",
        }


@contextmanager
def one_thread() -> Iterator[None]:
    """One picture at a time gains little from threads, and where the cores are busy they wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def judge(photograph: Photograph, file: Path, detectors: Mapping[str, Detector]) -> Exhibit:
    """A photograph through every detector, explained."""
    found = {pool: explain(detector, file).decisive for pool, detector in detectors.items()}
    verdicts = {pool: _verdict(detectors[pool], explanation) for pool, explanation in found.items()}
    first = found["max"]
    return Exhibit(photograph, class_names()[first.label], first.probability, verdicts, found)


def _verdict(detector: Detector, explanation: Explanation) -> Verdict:
    if detector.calibration is None:
        raise ValueError(f"the detector {detector.spec!r} is not calibrated; make it anew")
    place = torch.tensor([explanation.score], dtype=torch.float64), torch.tensor([explanation.label])
    p, is_ood = detector.calibration.p_values(*place), detector.calibration.is_ood(*place)
    return Verdict(score=explanation.score, p=p.item(), accepted=not is_ood.item())
