"""ODIN and AdaSCALE against single images and plain autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.special import logsumexp
from torch import Tensor, nn

from davis.stages import AdaScaleA, AdaScaleL, Odin


class Net(nn.Module):
    """A small convolutional classifier; ``pool`` is what its features are made of."""

    def __init__(self, activation: Callable[[Tensor], Tensor], pool: str = "mean") -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, 30, 3, stride=2, padding=1, dtype=torch.float64)
            self.head = nn.Linear(30, 4, dtype=torch.float64)
        self.activation = activation
        self.pool = pool

    def features(self, images: Tensor) -> Tensor:
        maps = self.activation(self.conv(images))
        return maps.amax((2, 3)) if self.pool == "max" else maps.mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


@pytest.fixture(params=[("relu", "mean"), ("relu", "max"), ("gelu", "max")], ids="-".join)
def net(request: pytest.FixtureRequest) -> Net:
    activation, pool = request.param
    return Net(torch.relu if activation == "relu" else F.gelu, pool)


@pytest.fixture
def images() -> Tensor:
    return torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def loss_gradient(net: Net, image: Tensor, t: float) -> Tensor:
    image = image[None].clone().requires_grad_()
    logits = net(image)
    F.cross_entropy(logits / t, logits.argmax(1)).backward()
    net.zero_grad()
    assert image.grad is not None
    return image.grad[0]


@pytest.mark.parametrize("input_std", [None, (0.5, 0.25, 2.0)])
@pytest.mark.parametrize("second_pass", ["same", "gap"])
@pytest.mark.parametrize(("eps", "t"), [(0.0014, 1000), (0.02, 1), (0, 10)])
def test_odin(net: Net, images: Tensor, eps: float, t: float, second_pass: Any, input_std: Any) -> None:
    expected = []
    for image in images:
        gradient = loss_gradient(net, image, t)
        sign = gradient.sign()
        if second_pass == "same":  # zero moves as a positive gradient does
            sign = torch.where(gradient == 0, 1.0, sign)
        std = torch.ones(3) if input_std is None else torch.tensor(input_std)
        expected.append(image - eps * sign / std.double()[:, None, None])
    moved = Odin(eps=eps, t=t, second_pass=second_pass, input_std=input_std)(images, net)
    torch.testing.assert_close(moved, torch.stack(expected), rtol=0, atol=1e-15)


def test_zero_gradients_tell_the_two_rules_apart(images: Tensor) -> None:
    net = Net(torch.relu, "max")
    same, gap = Odin()(images, net), Odin(second_pass="gap")(images, net)
    still = gap == images
    assert still.any()  # max pooling sees few positions
    torch.testing.assert_close(same[still], images[still] - 0.0014, rtol=0, atol=1e-15)
    assert torch.equal(same[~still], gap[~still])


def test_odin_raises_the_confidence(images: Tensor) -> None:
    net = Net(F.gelu)
    before = net(images).softmax(1).amax(1)
    assert (net(Odin(eps=0.01)(images, net)).softmax(1).amax(1) > before).all()


@pytest.mark.parametrize("stage", [Odin(), Odin(input_std=(1.0, 2.0, 3.0))])
def test_odin_under_no_grad_leaves_nothing_behind(net: Net, images: Tensor, stage: Odin) -> None:
    net.conv.weight.grad = torch.full_like(net.conv.weight, 7.0)
    copy = images.clone()
    with torch.no_grad():
        moved = stage(images, net)
    assert torch.equal(images, copy)
    assert not images.requires_grad
    assert images.grad is None
    assert not moved.requires_grad
    assert (net.conv.weight.grad == 7).all()
    assert net.head.weight.grad is None


def test_odin_in_single_precision(images: Tensor) -> None:
    net = Net(F.gelu).float()
    for second_pass in ("same", "gap"):
        assert Odin(second_pass=second_pass)(images.float(), net).dtype == torch.float32


def test_odin_batches_do_not_matter(net: Net, images: Tensor) -> None:
    whole = Odin()(images, net)
    for i in range(len(images)):
        assert torch.equal(whole[i : i + 1], Odin()(images[i : i + 1], net))


def test_odin_settings_are_checked(images: Tensor) -> None:
    with pytest.raises(ValueError, match="eps must be 0 or more"):
        Odin(eps=-1)
    with pytest.raises(ValueError, match="t must be greater than 0"):
        Odin(t=0)
    with pytest.raises(ValueError, match="input_std must be positive"):
        Odin(input_std=(0.5, 0.0, 0.5))
    with pytest.raises(ValueError, match="input_std has 2 numbers for 3 input channels"):
        Odin(input_std=(0.5, 0.5))(images, Net(torch.relu))


SETTINGS: list[dict[str, float]] = [
    {},
    {"p_min": 20, "p_max": 95, "k_shift": 5, "k_correction": 10, "lam": 3, "o": 0.3, "eps": 0.1},
    {"k_shift": 100, "k_correction": 50, "o": 1},
    {"o": 0},
]
DEFAULTS = {"p_min": 60, "p_max": 85, "k_shift": 1, "k_correction": 5, "lam": 10, "o": 0.05, "eps": 0.5}


def quantity(net: Net, image: Tensor, s: dict[str, float]) -> float:
    """AdaSCALE's q of one image, by its description."""
    moving = image[None].clone().requires_grad_()
    net(moving).max().backward()
    net.zero_grad()
    assert moving.grad is not None
    gradient = moving.grad.flatten().numpy()
    least = np.argsort(np.abs(gradient), kind="stable")[: int(len(gradient) * s["o"])]
    moved = image.flatten().numpy().copy()
    moved[least] += s["eps"] * np.sign(gradient[least])
    with torch.no_grad():
        h = net.features(image[None])[0].numpy()
        after = net.features(torch.from_numpy(moved).reshape(1, *image.shape))[0].numpy()
    order = np.argsort(-h, kind="stable")
    shift = np.abs(h - after)[order[: max(1, int(len(h) * s["k_shift"] / 100))]].sum()
    correction = np.maximum(after, 0)[order[: max(1, int(len(h) * s["k_correction"] / 100))]].sum()
    return correction + s["lam"] * shift


def adascale(net: Net, image: Tensor, s: dict[str, float], seen: np.ndarray) -> tuple[float, float]:
    """Both scores of one image."""
    share = (seen <= quantity(net, image, s)).mean()
    p = s["p_min"] + (1 - share) * (s["p_max"] - s["p_min"])
    with torch.no_grad():
        h = net.features(image[None])[0].numpy()
        weight, bias = net.head.weight.numpy(), net.head.bias.numpy()
    count = len(h) - int(np.round(len(h) * p / 100))
    positive = np.maximum(h, 0)
    r = positive.sum() / np.sort(positive)[::-1][:count].sum()
    return logsumexp(weight @ (h * np.exp(r)) + bias), logsumexp(r**2 * (weight @ h + bias))


@pytest.mark.parametrize("settings", SETTINGS, ids=["defaults", "others", "all", "none"])
def test_adascale(net: Net, images: Tensor, settings: dict[str, float]) -> None:
    full = {**DEFAULTS, **settings}
    training = torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    seen = np.array([quantity(net, image, full) for image in training])
    expected = np.array([adascale(net, image, full, seen) for image in images])
    for column, kind in enumerate((AdaScaleA, AdaScaleL)):
        stage = kind(**settings)
        batches = [stage.observe(batch, net.features, net.head) for batch in training.split(7)]
        np.testing.assert_allclose(torch.cat(batches).detach(), seen, rtol=1e-9)
        stage.settle(torch.cat(batches).detach())
        scores = stage(images, net.features, net.head)
        assert scores.dtype == torch.float64
        np.testing.assert_allclose(scores.detach(), expected[:, column], rtol=1e-9)


@pytest.mark.parametrize(
    ("quantity", "p"), [(0.5, 80), (1, 75), (1.5, 75), (2, 70), (4, 60), (9, 60)]
)  # p_min + (1 - share of those seen that are no larger) (p_max - p_min)
def test_adascale_places_an_image_among_those_seen(quantity: float, p: float) -> None:
    stage = AdaScaleL(p_min=60, p_max=80)
    stage.settle(torch.tensor([3.0, 1.0, 4.0, 2.0], dtype=torch.float64))
    h = torch.arange(40, dtype=torch.float64)[None] - 3
    expected = h.relu().sum() / h.sort(descending=True).values[0, : 40 - round(40 * p / 100)].sum()
    ratio = stage.ratio(h, torch.tensor([quantity], dtype=torch.float64), undefined=1)
    assert ratio.item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("kind", [AdaScaleA, AdaScaleL])
def test_adascale_leaves_nothing_behind(net: Net, images: Tensor, kind: Any) -> None:
    stage = kind(o=0.5)
    copy = images.clone()
    with torch.no_grad():
        observed = stage.observe(images, net.features, net.head)
        stage.settle(observed)
        scores = stage(images, net.features, net.head)
        single = [stage(image[None], net.features, net.head) for image in images]
    assert torch.equal(images, copy)
    assert not observed.requires_grad
    assert not scores.requires_grad
    assert all(parameter.grad is None for parameter in net.parameters())
    torch.testing.assert_close(scores, torch.cat(single), rtol=1e-10, atol=0)


@pytest.mark.parametrize("kind", [AdaScaleA, AdaScaleL])
def test_adascale_of_dead_features_is_finite(images: Tensor, kind: Any) -> None:
    net = Net(torch.relu)
    with torch.no_grad():
        net.conv.bias.fill_(-100)
    stage = kind()
    stage.settle(stage.observe(images, net.features, net.head))
    scores = stage(images, net.features, net.head)
    expected = torch.logsumexp(net.head.bias, 0).expand(5)
    torch.testing.assert_close(scores, expected)


def test_adascale_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="p_min must be no larger than p_max"):
        AdaScaleA(p_min=90)
    with pytest.raises(ValueError, match="p_max must be a percent"):
        AdaScaleL(p_max=101)
    with pytest.raises(ValueError, match="o must be a share of the pixels"):
        AdaScaleA(o=1.5)
