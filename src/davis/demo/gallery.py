"""What both detectors say about photographs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from davis.demo.photographs import Photograph
from davis.demo.shipped import Shipped, class_names, p_value
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
            "class": self.label,
            "probability": self.probability,
            "score": verdict.score,
            "p-value": verdict.p,
            "verdict": "ok" if verdict.accepted else "OOD",
            "with mean pooling": "ok" if plain.accepted else "OOD",
        }


def judge(photograph: Photograph, file: Path, shipped: Mapping[str, Shipped]) -> Exhibit:
    """A photograph through every detector, explained."""
    found = {pool: explain(each.detector, file) for pool, each in shipped.items()}
    verdicts = {pool: _verdict(shipped[pool], explanation.score) for pool, explanation in found.items()}
    first = found["max"]
    return Exhibit(photograph, class_names()[first.label], first.probability, verdicts, found)


def _verdict(shipped: Shipped, score: float) -> Verdict:
    threshold = shipped.detector.threshold
    if threshold is None:
        raise ValueError(f"the shipped {shipped.detector.spec!r} has no threshold; make it anew")
    return Verdict(score=score, p=p_value(score, shipped.scores), accepted=score >= threshold)
