"""Heads: the classifier's own, and DICE against an explicit mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from davis.stages import Dice, Linear
from davis.types import Classifier


def test_linear(case: Any) -> None:
    logits = Linear()(torch.from_numpy(case.test), case.classifier).detach()
    np.testing.assert_allclose(logits, case.test @ case.weight.T + case.bias, rtol=1e-12)


@pytest.mark.parametrize("contribution", ["gap", "pooled"])
@pytest.mark.parametrize("p", [0, 10, 70, 90, 100])
def test_dice(case: Any, p: float, contribution: Any) -> None:
    stage = case.fit(Dice(p=p, contribution=contribution))
    mean = (case.gap if contribution == "gap" else case.train).mean(0)
    scores = np.array([[w * m for w, m in zip(row, mean, strict=True)] for row in case.weight])
    threshold = np.percentile(scores, p)
    masked = np.where(scores > threshold, case.weight, 0)
    logits = stage(torch.from_numpy(case.test), case.classifier).detach()
    np.testing.assert_allclose(logits, case.test @ masked.T + case.bias, rtol=1e-9, atol=1e-12)


def test_dice_drops_what_equals_the_threshold(make: Any) -> None:
    case = make("relu", channels=6, classes=2)
    case.gap[:] = 0.0  # every contribution is 0 and so is the threshold
    logits = case.fit(Dice(p=50))(torch.from_numpy(case.test), case.classifier).detach()
    np.testing.assert_array_equal(logits, np.broadcast_to(case.bias, logits.shape))


def test_dice_follows_the_classifier_and_stores_only_its_mask(signed: Any) -> None:
    stage = signed.fit(Dice())
    assert stage.mask.dtype == torch.bool
    double = nn.Linear(24, 5, dtype=torch.float64)
    with torch.no_grad():
        double.weight.copy_(2 * torch.from_numpy(signed.weight))
        double.bias.copy_(torch.from_numpy(signed.bias))
    features = torch.from_numpy(signed.test)
    before, after = stage(features, signed.classifier), stage(features, Classifier(double))
    bias = torch.from_numpy(signed.bias)
    torch.testing.assert_close(after - bias, 2 * (before - bias))


def test_dice_needs_a_linear_classifier(signed: Any) -> None:
    with pytest.raises(TypeError, match="linear last layer"):
        Dice().fit(signed.statistics(), Classifier(nn.Sequential(nn.Linear(24, 5))))


def test_heads_work_without_bias_and_on_1x1_convolutions(signed: Any) -> None:
    convolution = nn.Conv2d(24, 5, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        convolution.weight.copy_(torch.from_numpy(signed.weight)[:, :, None, None])
    classifier = Classifier(convolution)
    assert classifier.bias.tolist() == [0] * 5
    for stage in (Linear(), Dice(p=0, contribution="pooled")):
        stage.fit(signed.statistics(), classifier)
        logits = stage(torch.from_numpy(signed.test), classifier).detach()
        kept = signed.weight.copy()
        if stage.name == "dice":  # p=0: the smallest contribution is the threshold, and falls
            kept.flat[(signed.weight * signed.train.mean(0)).argmin()] = 0
        np.testing.assert_allclose(logits, signed.test @ kept.T, rtol=1e-9, atol=1e-12)


def test_half_precision_weights_are_read_in_float32() -> None:
    linear = nn.Linear(4, 3).half()
    logits = Linear()(torch.ones(2, 4), Classifier(linear))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits[0], linear.weight.float().sum(1) + linear.bias.float())
