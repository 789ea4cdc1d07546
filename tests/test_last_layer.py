"""Heads of more than one layer: found, live, and the same numbers as a single layer would give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import davis
from davis.artifact import head_sha256
from davis.backbone import Backbone
from davis.torchvision_ops import declare_missing_operators
from davis.types import JointHead

CLASSES, CHANNELS = 4, 12


def images(batch: int = 3, seed: int = 0) -> Tensor:
    return torch.randn((batch, 3, 16, 16), generator=torch.Generator().manual_seed(seed))


class TwoHeads(nn.Module):
    """Two linear layers on the same pooled features, each behind its own norm, and a way to join them."""

    def __init__(self, join: Callable[[Tensor, Tensor], Tensor] = lambda a, b: (a + b) / 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(3, CHANNELS, 3)
        self.norms = nn.ModuleList(nn.BatchNorm1d(CHANNELS) for _ in range(2))
        self.heads = nn.ModuleList(nn.Linear(CHANNELS, CLASSES) for _ in range(2))
        self.join = join
        for norm in self.norms:
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.body(x).relu().mean((2, 3))
        return self.join(*(head(norm(pooled)) for head, norm in zip(self.heads, self.norms, strict=True)))


def effective(model: TwoHeads, shares: tuple[float, float] = (0.5, 0.5)) -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias by hand, in NumPy."""
    weight, bias = np.zeros((CLASSES, CHANNELS)), np.zeros(CLASSES)
    for norm, head, share in zip(model.norms, model.heads, shares, strict=True):
        scale, shift, mean, var, w, b = (
            t.detach().double().numpy()
            for t in (norm.weight, norm.bias, norm.running_mean, norm.running_var, head.weight, head.bias)
        )
        slope = scale / np.sqrt(var + norm.eps)
        weight += share * w * slope
        bias += share * (w @ (shift - mean * slope) + b)
    return weight, bias


def assert_head(backbone: Backbone, weight: np.ndarray, bias: np.ndarray) -> None:
    np.testing.assert_allclose(backbone.classifier.weight.detach().numpy(), weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(backbone.classifier.bias.detach().numpy(), bias, rtol=1e-5, atol=1e-6)


JOINS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[float, float]]] = {
    "average": (lambda a, b: (a + b) / 2, (0.5, 0.5)),
    "in place": (lambda a, b: a.add_(b).mul_(0.5), (0.5, 0.5)),
    "stacked": (lambda a, b: torch.stack([a, b]).mean(0), (0.5, 0.5)),
    "sum": (lambda a, b: a + b, (1.0, 1.0)),
    "unequal": (lambda a, b: 0.3 * a + b * 0.7, (0.3, 0.7)),
    "difference": (lambda a, b: a - b, (1.0, -1.0)),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.25), (0.75, 0.25)),
}


@pytest.mark.parametrize("name", JOINS)
def test_ways_to_join(name):
    join, shares = JOINS[name]
    model = TwoHeads(join)
    backbone = Backbone(model)
    activations = backbone(images())
    with torch.no_grad():
        assert torch.equal(activations.logits, model(images()))
        pooled = model.body(images()).relu().mean((2, 3))
    torch.testing.assert_close(activations.mean, pooled)
    assert_head(backbone, *effective(model, shares))
    torch.testing.assert_close(backbone.classifier(pooled), activations.logits)
    assert backbone.describe()["head"] == "heads.0 + heads.1"
    assert (backbone.describe()["channels"], backbone.describe()["classes"]) == (CHANNELS, CLASSES)
    assert not any(module._forward_hooks for module in model.modules())


def test_the_head_is_live():
    model = TwoHeads()
    backbone = Backbone.wrap(model, images())
    before = head_sha256(backbone)
    assert head_sha256(backbone) == head_sha256(Backbone.wrap(TwoHeads(), images()))  # of the numbers, not the object
    with torch.no_grad():
        model.heads[1].weight.mul_(3)
        model.norms[0].running_mean.add_(1)
    assert_head(backbone, *effective(model))
    backbone(images())
    assert head_sha256(backbone) != before
    model.double()
    assert backbone.classifier.weight.dtype == torch.float64
    assert_head(backbone, *effective(model))


def test_the_shares_are_in_the_fingerprint():
    even, odd = (Backbone.wrap(TwoHeads(JOINS[name][0]), images()) for name in ("average", "sum"))
    assert head_sha256(even) != head_sha256(odd)


def test_a_changed_join_is_caught():
    model = TwoHeads()
    backbone = Backbone.wrap(model, images())
    model.join = lambda a, b: a
    with pytest.raises(ValueError, match=r"'heads.0 \+ heads.1' of TwoHeads do not give the model's logits"):
        backbone(images())


def test_small_weights_beside_a_large_bias():
    model = TwoHeads()
    with torch.no_grad():
        for head in model.heads:
            head.weight.mul_(1e-3)
            head.bias.fill_(1e3)
    joint = JointHead(
        lambda x: sum(h(x) if x.dtype == torch.float32 else h.double()(x) for h in model.heads),
        CHANNELS,
        model.heads,
        [],
    )
    expected = sum(head.weight.detach().double() for head in model.heads)
    torch.testing.assert_close(joint.weight.detach().double(), expected, rtol=1e-6, atol=0)


def test_half_precision():
    model = TwoHeads().bfloat16()
    backbone = Backbone(model)
    activations = backbone(images().bfloat16())
    assert activations.mean.dtype == backbone.classifier.weight.dtype == torch.float32
    assert_head(backbone, *effective(model))


def test_one_layer_read_twice_and_bent_joins_are_refused():
    for join in (
        lambda a, b: (a + b).relu(),
        torch.maximum,
        lambda a, b: a * b,
        lambda a, b: (a + b).softmax(1),
        lambda a, b: a / (b * b + 1),
    ):
        with pytest.raises(ValueError, match=r"its output is not what a last|its logits join those of several"):
            Backbone(TwoHeads(join))(images())


@pytest.mark.parametrize("spec", ["davis(gamma=0.5) + react(p=90) + energy", "dice(p=40) + energy", "vim", "fdbd"])
def test_detectors_are_fitted_saved_and_loaded(spec, tmp_path):
    model = TwoHeads()
    detector = davis.Detector(model, spec)
    detector.fit([images(40, seed=1)])
    folder = davis.save(detector, tmp_path / "saved")
    expected = detector.score_images(images())
    torch.testing.assert_close(davis.load(folder, TwoHeads()).score_images(images()), expected)
    other = TwoHeads()
    with torch.no_grad():
        other.norms[1].bias.add_(0.1)
    with pytest.raises(ValueError, match="the classifier's last layer is not the one"):
        davis.load(folder, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "head"),
    [
        ("efficientformer_l1", 224, "head + head_dist"),
        ("efficientformerv2_s0", 224, "head + head_dist"),
        ("levit_128s", 224, "head.linear + head_dist.linear"),
        ("repvit_m1_0", 64, "head.head.l + head.head_dist.l"),
        ("swiftformer_xs", 64, "head + head_dist"),
    ],
)
def test_distilled_models(name, size, head):
    declare_missing_operators()
    timm = pytest.importorskip("timm")
    from models import settled

    torch.manual_seed(0)
    model = settled(timm.create_model(name, num_classes=CLASSES), 3, size, size)
    batch = torch.randn((2, 3, size, size), generator=torch.Generator().manual_seed(1))
    backbone = Backbone(model)
    activations = backbone(batch)
    assert backbone.describe()["head"] == head
    with torch.no_grad():
        features = model.forward_features(batch)
        pooled = features.mean(1) if features.ndim == 3 else features.mean((2, 3))
    torch.testing.assert_close(activations.mean, pooled, rtol=1e-4, atol=1e-5)
    again = pooled @ backbone.classifier.weight.T + backbone.classifier.bias
    torch.testing.assert_close(again, activations.logits, rtol=1e-3, atol=1e-4)


class ClassMaps(nn.Module):
    """A map with one channel a class, whose average are the logits."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Conv2d(3, CHANNELS, 3)
        self.head = nn.Linear(CHANNELS, CLASSES) if kind == "linear" else nn.Conv2d(CHANNELS, CLASSES, 1)
        self.kind = kind
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        maps = self.body(x).relu()
        if self.kind == "linear":
            return self.head(maps.permute(0, 2, 3, 1)).mean((1, 2))
        maps = self.head(maps)
        if self.kind == "relu":
            maps = maps.relu()
        logits = maps.mean((2, 3))
        return logits.softmax(1) if self.kind == "softmax" else logits


@pytest.mark.parametrize("kind", ["linear", "convolution"])
def test_a_linear_layer_in_front_of_the_average_is_the_head(kind: str) -> None:
    model = ClassMaps(kind)
    backbone = Backbone(model)
    found = backbone(images())
    expected = model.body(images()).relu()
    torch.testing.assert_close(found.max, expected.amax((2, 3)).detach())
    torch.testing.assert_close(found.mean, expected.mean((2, 3)).detach())
    assert backbone.describe()["head"] == "head"
    assert backbone.classifier.channels == CHANNELS


@pytest.mark.filterwarnings("ignore:the output of ClassMaps is the average of its last map")
def test_class_maps_that_are_bent_are_the_features(tmp_path: Path) -> None:
    """As in SqueezeNet: the head that changes nothing stands behind them."""
    model = ClassMaps("relu")
    backbone = Backbone(model)
    found = backbone(images())
    expected = model.head(model.body(images()).relu()).relu().amax((2, 3)).detach()
    torch.testing.assert_close(found.max, expected)
    torch.testing.assert_close(backbone.classifier.weight, torch.eye(CLASSES))
    detector = davis.Detector(backbone, "max + energy")
    torch.testing.assert_close(detector(images()).score, expected.double().logsumexp(1), rtol=1e-5, atol=1e-6)
    again = davis.load(davis.save(detector, tmp_path / "d"), ClassMaps("relu"))
    assert torch.equal(again(images()).score, detector(images()).score)


def test_class_maps_before_a_softmax_are_refused() -> None:
    with pytest.raises(ValueError, match="something follows 'head'"):
        Backbone(ClassMaps("softmax"))(images())


def test_features_that_may_pass_for_logits_are_said() -> None:
    with pytest.warns(UserWarning, match="wrong if they are features of a model without its classifier"):
        Backbone(ClassMaps("relu"))(images())
    model = ClassMaps("relu")
    model.num_classes = 0  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"made without a classifier \(num_classes=0\)"):
        Backbone(model)(images())


def test_averaged_probabilities_are_refused() -> None:
    class Probabilities(ClassMaps):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).relu()).softmax(1).mean((2, 3))

    with pytest.raises(ValueError, match="returns probabilities, not logits"):
        Backbone(Probabilities("convolution"))(images())
