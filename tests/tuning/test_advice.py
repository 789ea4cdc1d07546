"""The recommendation: from one reading of in-distribution images, and with its reasons."""

from __future__ import annotations

import models
import pytest
import torch
from torch import Tensor, nn

import davis
from davis.data import Preprocessing
from davis.tuning.advice import candidates

PLAIN = Preprocessing(size=12, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def pictures(count: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    colours, texture = torch.rand((count, 3, 1, 1), generator=random), torch.rand((count, 3, 12, 12), generator=random)
    return 0.7 * colours + 0.3 * texture


class LayerNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.norm(self.conv(images).flatten(2).transpose(1, 2))
        return self.head(tokens.mean(1))


def test_one_reading_is_enough() -> None:
    batches = (pictures(40, seed) for seed in range(5))
    found = davis.recommend(models.small_net(), batches, preprocessing=PLAIN)
    images = found.tuning.images
    assert images["fit"] + images["holdout"] == 200
    assert 40 < images["holdout"] < 80
    assert found.tuning.proxies == ["mix", "blur", "colour"]
    assert images["holdout"] == images["blur"] == images["mix"]
    assert found.spec in {row.spec for row in found.tuning.rows}
    assert found.why.count(". ") == 1  # two sentences
    assert repr(found.spec) in found.why
    davis.Detector(models.small_net(), found.spec).fit([pictures(40, 9)])


def test_the_seed_decides() -> None:
    batches = [pictures(40, seed) for seed in range(3)]
    first, again = (davis.recommend(models.small_net(), batches, preprocessing=PLAIN, seed=2) for _ in range(2))
    assert first == again
    assert first.to_dict()["spec"] == first.spec


def test_networks_with_layer_norm_are_not_shaped() -> None:
    signed, positive = candidates(LayerNet()), candidates(models.small_net())
    assert "knn" in signed[0]
    assert not any(name in spec for spec in signed for name in ("dice", "react", "ash", "scale"))
    assert any("dice" in spec for spec in positive)
    assert set(signed) < set(positive)
    found = davis.recommend(LayerNet().eval(), [pictures(60, 1)], preprocessing=PLAIN)
    assert "normalises by layer" in found.why


@pytest.mark.parametrize(("model", "below_zero"), [(LayerNet(), True), (models.small_net(), False)])
def test_signed_pools_are_tried_where_channels_go_below_zero(model: nn.Module, below_zero: bool) -> None:
    rows = davis.recommend(model.eval(), [pictures(60, 1)], preprocessing=PLAIN).tuning.rows
    assert any("signed=true" in row.spec for row in rows) == below_zero


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="between 0 and 1, got 1"):
        davis.recommend(models.small_net(), [pictures(5, 1)], preprocessing=PLAIN, share=1)
    with pytest.raises(ValueError, match=r"too few images to hold out a share of 0\.3"):
        davis.recommend(models.small_net(), [], preprocessing=PLAIN)
