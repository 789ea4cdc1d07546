"""One test for each bug that was found in other libraries: none of them may come back here.

The numbers are those of the list; 10 is a matter of data (test_data.py: fit and holdout are disjoint).
"""

from __future__ import annotations

import importlib.metadata
from contextlib import suppress
from typing import Any

import models
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import davis
from davis import metrics, stages
from davis.pooling import summarise
from davis.statistics import Statistics, quantile
from davis.types import Classifier

FIT = [models.photos(60, 1)]
TEST = models.photos(6, 2)


def test_1_fpr_names_its_direction() -> None:
    ids, oods = np.arange(100.0), np.arange(100.0) * 2 - 120
    assert metrics.fpr_at_tpr(ids, oods) != metrics.fpr_at_tpr(ids, oods, convention="openood")


def test_2_half_precision_msp_does_not_tie() -> None:
    model = models.map_net()
    with torch.no_grad():
        model.head.weight.mul_(60)
    images = models.maps(300, 5)
    half = model(images).half().softmax(1).amax(1)
    scores = davis.Detector(model.half(), "msp")(images).score
    assert len(half.unique()) < 200 < 290 < len(scores.unique())


def test_3_detectors_do_not_disturb_one_another_or_the_model() -> None:
    model = models.small_net()
    logits = model(TEST)
    first = davis.Detector(model, "react(p=50) + energy").fit(FIT)
    before = first(TEST).score
    davis.Detector(model, "max + react(p=99) + energy").fit([models.photos(60, 9)])(TEST)
    assert torch.equal(first(TEST).score, before)
    assert torch.equal(model(TEST), logits)
    with torch.no_grad():
        model.conv.weight.mul_(1.5)
    assert not torch.equal(first(TEST).score, before)


def test_4_channels_last_no_graph_mode_restored() -> None:
    model = models.small_net().train().to(memory_format=torch.channels_last)
    output = davis.Detector(model, "scale + energy")(TEST.to(memory_format=torch.channels_last))
    assert output.score.grad_fn is None
    assert output.logits.grad_fn is None
    assert model.training


@pytest.mark.parametrize(
    "shape", [stages.AshS(), stages.AshP(), stages.AshB(), stages.Scale(), stages.Scale(rule="quantile_higher")]
)
def test_5_shapes_on_dead_and_negative_rows_leave_their_input(shape: nn.Module) -> None:
    rows = torch.cat([torch.zeros(1, 24), -torch.rand(1, 24), torch.randn(1, 24)])
    before = rows.clone()
    shaped = shape(rows)
    assert shaped.isfinite().all()
    assert torch.equal(shaped[0], torch.zeros(24))
    assert torch.equal(rows, before)


def test_6_a_zero_row_has_zero_direction() -> None:
    detector = davis.Detector(models.map_net(), "knn(k=1)").fit([models.maps(30, 1)])
    assert detector(torch.zeros(1, models.CHANNELS, 3, 3)).score.item() == pytest.approx(-1)


def test_7_std_of_a_single_position_and_ddof() -> None:
    one = summarise(torch.rand(2, 5, 1, 1), torch.zeros(2, 3), {"std"})
    assert torch.equal(one.std, torch.zeros(2, 5))
    four = summarise(torch.rand(2, 5, 2, 2), torch.zeros(2, 3), {"std"})
    unbiased, biased = stages.Davis(gamma=1)(four) - four.mean, stages.Davis(gamma=1, ddof=0)(four) - four.mean
    torch.testing.assert_close(unbiased / biased, torch.full((2, 5), (4 / 3) ** 0.5))


def test_8_quantiles_of_more_than_sixteen_million_values() -> None:
    values = torch.arange(2**24 + 9, dtype=torch.float32)
    with suppress(RuntimeError):  # what it raises up to torch 2.13
        assert values.quantile(0.9).item() == pytest.approx(0.9 * (len(values) - 1), rel=1e-6)
    assert quantile(values, 0.9).item() == pytest.approx(0.9 * (len(values) - 1), rel=1e-7)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("text", ["dice + energy", "fdbd", "mahalanobis", "gradnorm", "nci", "cadref", "optfs"])
def test_9_no_array_of_batch_times_classes_times_channels(text: str) -> None:
    from davis.spec import parse

    batch, classes, channels = 32, 60, 48
    classifier = Classifier(nn.Linear(channels, classes))
    features = torch.rand(200, channels)
    (branch,) = parse(text)
    with Largest() as fitting, torch.no_grad():
        statistics = Statistics(branch.needs, classes=classes)
        statistics.update(features, classifier(features), None, features)
        branch.fit(statistics, classifier)
    with Largest() as scoring, torch.no_grad():
        shaped = branch.shape(features[:batch])
        branch.score(shaped, branch.logits(shaped, classifier), classifier)
    bound = max(200 * classes, classes * channels, channels * channels)
    assert fitting.elements <= bound
    assert scoring.elements <= max(batch * classes, classes * channels, channels * channels)


def test_11_no_upper_pin_on_torch_or_numpy() -> None:
    requires = importlib.metadata.requires("davis-ood") or []
    core = [line.partition(";")[0] for line in requires if "extra ==" not in line]
    assert any(line.startswith("numpy") for line in core)
    assert not any("<" in line or "==" in line for line in core)
