"""The self-check on models that it cannot check, and on maps where pooling cannot matter."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from davis.backbone import Backbone
from davis.self_check import unlike


def net(weight: float = 1.0, size: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, size), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    ).eval()
    with torch.no_grad():
        model[4].weight.mul_(weight)
    return model


def images(batch: int = 3) -> Tensor:
    return torch.randn((batch, 3, 8, 8), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("options", [{}, {"tap": "1", "head": "4"}, {"tap": "0", "head": "4"}])
@pytest.mark.parametrize("batch", [1, 3])
def test_constant_logits_are_refused(options, batch):
    with pytest.raises(ValueError, match="Sequential gives the same logits for unlike images") as caught:
        Backbone(net(weight=0.0), **options)(images(batch))
    assert "\n" not in str(caught.value)
    assert "load trained weights" in str(caught.value)


def test_dead_channels_are_refused():
    model = net()
    with torch.no_grad():
        model[0].bias.fill_(-1e3)  # no ReLU ever opens
    with pytest.raises(ValueError, match="gives the same logits"):
        Backbone(model)(images())
    with torch.no_grad():
        model[0].bias.fill_(1e4)  # every image drowns in the bias
        model[4].bias.zero_()
    with pytest.raises(ValueError, match="gives the same logits"):
        Backbone(model)(images())


def test_a_bias_that_hides_the_features_is_refused():
    with pytest.raises(ValueError, match="gives the same logits"):
        Backbone(net(weight=1e-6))(images())  # any tap would pass: its bias is all there is


def test_logits_may_be_small_and_images_alike():
    small = net(weight=1e-6)
    nn.init.zeros_(small[4].bias)
    Backbone(small)(images())
    Backbone(net())(torch.zeros(4, 3, 8, 8))  # alike themselves, so unlike ones are made
    Backbone(net())(images(1))


def test_batches_that_vary_cost_no_further_pass():
    model, calls = net(), []
    Backbone(model, tap="1", head="4")(images())
    model.register_forward_hook(lambda *_: calls.append(1))
    Backbone(model, tap="1", head="4")(images())
    assert len(calls) == 1
    Backbone(model, tap="1", head="4")(images(1))
    assert len(calls) == 3


def test_made_up_images_are_unlike():
    made = unlike(torch.zeros(8, 3, 8, 8, dtype=torch.float64))
    assert made.shape == (8, 3, 8, 8)
    assert made.dtype == torch.float64
    statistics = torch.stack([made.flatten(1).mean(1), made.flatten(1).std(1)], 1)
    assert torch.cdist(statistics, statistics).fill_diagonal_(9).min() > 0.05
    assert torch.equal(made, unlike(torch.ones(8, 3, 8, 8, dtype=torch.float64)))


def test_a_map_of_one_position_is_said_once():
    backbone = Backbone(net(size=8))
    with pytest.warns(UserWarning, match=r"Sequential has one position for images of shape \(3, 8, 8\)") as caught:
        backbone(images())
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backbone(images())
        backbone(torch.randn(2, 3, 9, 9))
        Backbone(net())(images())
