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
class Exhibit:
    """A photograph, the classifier's answer, and whether to trust it."""

    photograph: Photograph
    label: str
    probability: float
    explanations: Mapping[str, Explanation]  # by pooling

    def accepted(self, pool: str) -> bool:
        """Whether the detector with this pooling trusts the answer."""
        return not self.explanations[pool].is_ood

    @property
    def named_otherwise(self) -> bool:
        """Whether the classifier's answer is accepted and another than the photograph's own label."""
        label = self.photograph.label
        return label is not None and self.label != label and self.accepted("max")

    @property
    def p_text(self) -> str | None:
        """The p-value for people: the lowest that there is says that it could be lower."""
        text = self.explanations["max"].p_text
        return text and text.removeprefix("= ")

    def to_dict(self) -> dict[str, Any]:
        """One row of the table."""
        found = self.explanations["max"]
        return {
            "image": self.photograph.name,
            "shows": self.photograph.shows,
            "class": self.label,
            "probability": self.probability,
            "score": found.score,
            "p-value": found.p_value,
            "verdict": "ok" if self.accepted("max") else "OOD",
            "with mean pooling": "ok" if self.accepted("mean") else "OOD",
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
    first = found["max"]
    return Exhibit(photograph, class_names()[first.label], first.probability, found)
