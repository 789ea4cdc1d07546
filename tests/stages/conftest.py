"""Small random data in float64 for the stages' tests: one case of rectified and one of signed features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from davis.stages import Score, Stage
from davis.statistics import NEEDS, Statistics
from davis.types import Classifier


@dataclass(frozen=True)
class Case:
    """Training and test features, and the last layer that reads them."""

    train: np.ndarray
    labels: np.ndarray
    gap: np.ndarray  # the training images' average-pooled features
    test: np.ndarray
    weight: np.ndarray
    bias: np.ndarray

    @property
    def classifier(self) -> Classifier:
        linear = nn.Linear(self.weight.shape[1], self.weight.shape[0], dtype=torch.float64)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(self.weight))
            linear.bias.copy_(torch.from_numpy(self.bias))
        return Classifier(linear)

    def logits(self, features: np.ndarray) -> np.ndarray:
        return features @ self.weight.T + self.bias

    def statistics(self, *, batch: int = 17, labelled: bool = True, capacity: int = 50_000) -> Statistics:
        statistics = Statistics(NEEDS, classes=len(self.weight), capacity=capacity)
        for start in range(0, len(self.train), batch):
            rows = slice(start, start + batch)
            features = torch.from_numpy(self.train[rows])
            logits = torch.from_numpy(self.logits(self.train[rows]))
            labels = torch.from_numpy(self.labels[rows]) if labelled else None
            statistics.update(features, logits, labels, torch.from_numpy(self.gap[rows]))
        return statistics

    def fit(self, stage: Stage, **options: int | bool) -> Stage:
        stage.fit(self.statistics(**options), self.classifier)
        return stage

    def score(self, stage: Score, features: np.ndarray | None = None) -> np.ndarray:
        """The scores of the test features (or of others) by a fitted stage."""
        features = self.test if features is None else features
        logits = torch.from_numpy(self.logits(features))
        scores: Tensor = stage(torch.from_numpy(features), logits, self.classifier)
        assert scores.dtype == torch.float64
        return scores.detach().numpy()


def make_case(kind: str, *, rows: int = 70, channels: int = 24, classes: int = 5, seed: int = 0) -> Case:
    random = np.random.default_rng(seed)
    centres = random.normal(0, 0.6, (classes, channels))
    labels = random.integers(0, classes, rows)
    labels[:classes] = np.arange(classes)
    train = centres[labels] + random.normal(0, 0.9, (rows, channels))
    test = random.normal(0, 1.3, (9, channels)) + centres[random.integers(0, classes, 9)] / 2
    weight = centres + random.normal(0, 0.3, (classes, channels))
    bias = random.normal(0, 0.3, classes) + 1
    if kind == "relu":
        train, test = np.maximum(train, 0), np.maximum(test, 0)
        train[:, 3] = 0  # a dead channel
    gap = train * random.uniform(0.2, 0.6, train.shape)
    return Case(train, labels, gap, test, weight, bias)


@pytest.fixture(params=["relu", "signed"])
def case(request: pytest.FixtureRequest) -> Case:
    case = make_case(request.param)
    predicted = case.logits(case.train).argmax(1)
    assert len(set(predicted)) == 5  # every class is predicted,
    assert (predicted != case.labels).any()  # and not always rightly, so that the two can be told apart
    return case


@pytest.fixture
def signed() -> Case:
    return make_case("signed")


@pytest.fixture
def relu() -> Case:
    return make_case("relu")


@pytest.fixture
def make() -> object:
    """The maker itself, for other sizes."""
    return make_case
