"""The decomposed head of GODIN and its score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from davis.stages import Godin, GodinHead
from davis.types import Classifier


def trained(similarity: Any) -> GodinHead:
    """A head whose batch norm has seen data, in float64 and evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = GodinHead(7, 4, similarity=similarity).double()
        if head.bias is not None:
            nn.init.normal_(head.bias)
        for _ in range(3):
            head(torch.randn(16, 7, dtype=torch.float64) * 2 + 1)
    return head.eval()


def similarities(head: GodinHead, features: np.ndarray) -> np.ndarray:
    weight = head.weight.detach().numpy()
    expected = np.zeros((len(features), len(weight)))
    for i, z in enumerate(features):
        for c, w in enumerate(weight):
            if head.similarity == "cosine":
                expected[i, c] = z @ w / (np.linalg.norm(z) + 1e-4) / (np.linalg.norm(w) + 1e-4)
            elif head.similarity == "inner":
                expected[i, c] = z @ w + head.bias[c].item()  # type: ignore[index]
            else:
                expected[i, c] = -((z - w) ** 2).mean()
    return expected


def gates(head: GodinHead, features: np.ndarray) -> np.ndarray:
    linear, norm = head.gate[0], head.gate[1]
    values = features @ linear.weight.detach().numpy()[0] + linear.bias.item()
    values = (values - norm.running_mean.item()) / np.sqrt(norm.running_var.item() + norm.eps)
    return 1 / (1 + np.exp(-(values * norm.weight.item() + norm.bias.item())))


@pytest.mark.parametrize("similarity", ["cosine", "inner", "euclid"])
def test_head_and_scores(similarity: Any) -> None:
    head = trained(similarity)
    features = np.random.default_rng(0).normal(size=(6, 7))
    h, g = similarities(head, features), gates(head, features)
    tensor = torch.from_numpy(features)
    np.testing.assert_allclose(head(tensor).detach(), h / g[:, None], rtol=1e-9, atol=1e-12)
    logits, classifier = head(tensor), Classifier(head)
    np.testing.assert_allclose(Godin()(tensor, logits, classifier).detach(), h.max(1), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(Godin(score="g")(tensor, logits, classifier).detach(), g, rtol=1e-9)


def test_zero_rows_are_finite() -> None:
    for similarity in ("cosine", "inner", "euclid"):
        assert trained(similarity)(torch.zeros(1, 7, dtype=torch.float64)).isfinite().all()


def test_scores_are_float64_whatever_the_head() -> None:
    head = trained("cosine").float()
    scores = Godin()(torch.ones(2, 7, dtype=torch.float64), torch.zeros(2, 4), Classifier(head))
    assert scores.dtype == torch.float64


def test_a_plain_classifier_is_refused() -> None:
    with pytest.raises(TypeError, match=r"GodinHead.*ends in Linear"):
        Godin()(torch.ones(2, 7), torch.zeros(2, 4), Classifier(nn.Linear(7, 4)))


def test_unknown_similarity() -> None:
    with pytest.raises(ValueError, match="cosine, inner or euclid"):
        GodinHead(7, 4, similarity="dot")  # type: ignore[arg-type]
