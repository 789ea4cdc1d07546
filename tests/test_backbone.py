"""Backbone: found on many models, read without a trace left behind, and refused with a reason."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from models import settled
from torch import Tensor, nn

import davis
from davis.backbone import Backbone
from davis.torchvision_ops import declare_missing_operators
from davis.types import Activations

CLASSES = 7


def images(batch: int = 4, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn((batch, *(shape or (3, 64, 64))), generator=torch.Generator().manual_seed(seed))


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """A model whose batch norms have seen something, so that no two layers look alike by their initial values."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.8, 1.2)
    return model.eval()


def assert_untouched(model: nn.Module) -> None:
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def assert_read(model: nn.Module, batch: Tensor) -> tuple[Backbone, Activations]:
    """What must hold for every model: own logits, logits again from the mean, any batch size, nothing left."""
    backbone = Backbone(model)
    activations = backbone(batch)
    with torch.no_grad():
        output = model.eval()(batch)
    logits = output if isinstance(output, Tensor) else output["logits"]
    assert torch.equal(activations.logits, logits)
    single = backbone(batch[:1])
    assert torch.equal(backbone(batch).logits, logits)
    # Convolutions of another batch size round otherwise.
    scale = float(activations.mean.abs().max())
    torch.testing.assert_close(single.mean, activations.mean[:1], rtol=1e-3, atol=1e-3 * scale)
    half = logits.dtype == torch.bfloat16
    again = backbone.classifier(backbone.neck(activations.mean))
    torch.testing.assert_close(
        again, logits.to(again.dtype), rtol=0, atol=(5e-2 if half else 1e-4) * float(logits.abs().max())
    )
    assert activations.std is not None
    assert activations.max is not None
    assert (activations.std >= 0).all()
    assert (activations.max >= activations.mean - 1e-5).all()
    description = backbone.describe()
    assert json.loads(json.dumps(description)) == description
    assert description["map_shape"][0] == activations.mean.shape[1]
    assert_untouched(model)
    return backbone, activations


def assert_statistics_of(activations: Activations, activation_map: Tensor) -> None:
    """Compare with numbers taken from the map itself, (batch, channel, *space)."""
    values = activation_map.double().flatten(2).numpy()
    for statistic, expected in [
        (activations.mean, values.mean(2)),
        (activations.std, values.std(2, ddof=1) if values.shape[2] > 1 else values[..., 0] * 0),
        (activations.max, values.max(2)),
    ]:
        torch.testing.assert_close(statistic.double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-5)


# Model zoos. The map is taken in each library's own way where it has one.

TORCHVISION: dict[str, tuple[int, tuple[str, str], Callable[[nn.Module, Tensor], Tensor] | None]] = {
    "resnet18": (64, ("layer4", "fc"), None),
    "densenet121": (64, ("features", "classifier"), lambda m, x: F.relu(m.features(x))),
    "mobilenet_v2": (64, ("features", "classifier.1"), lambda m, x: m.features(x)),
    "mobilenet_v3_small": (64, ("features", "classifier.3"), lambda m, x: m.features(x)),
    "efficientnet_b0": (64, ("features", "classifier.1"), lambda m, x: m.features(x)),
    "convnext_tiny": (64, ("features", "classifier.2"), lambda m, x: m.features(x)),
    "swin_t": (64, ("permute", "head"), lambda m, x: m.norm(m.features(x)).permute(0, 3, 1, 2)),
    "regnet_y_400mf": (64, ("trunk_output", "fc"), lambda m, x: m.trunk_output(m.stem(x))),
    "shufflenet_v2_x0_5": (64, ("conv5", "fc"), None),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name):
    declare_missing_operators()
    models = pytest.importorskip("torchvision.models")
    size, (tap, head), map_of = TORCHVISION[name]
    model = settled(seeded(lambda: models.get_model(name, weights=None, num_classes=CLASSES)), 3, size, size)
    backbone, activations = assert_read(model, images(3, 3, size, size))
    assert (backbone.describe()["tap"], backbone.describe()["head"]) == (tap, head)
    if map_of is not None:
        with torch.no_grad():
            assert_statistics_of(activations, map_of(model, images(3, 3, size, size)))
    larger = backbone(images(2, 3, size + 32, size + 32))
    assert larger.positions[0] > activations.positions[0]


@pytest.mark.filterwarnings("ignore:the last map")
def test_torchvision_map_of_one_position():
    declare_missing_operators()
    models = pytest.importorskip("torchvision.models")
    # At 32 pixels a transition averages 2x2 to 1x1 before the last block: that is not the last map.
    backbone, activations = assert_read(seeded(lambda: models.densenet121(num_classes=CLASSES)), images(2, 3, 32, 32))
    assert backbone.describe()["tap"] == "features"
    assert backbone.describe()["map_shape"] == [1024, 1, 1]
    assert torch.equal(activations.mean, activations.max)
    assert not activations.std.any()


TIMM = {
    "resnet18": 64,
    "densenet121": 64,
    "mobilenetv2_050": 64,
    "mobilenetv3_small_050": 64,
    "efficientnet_b0": 64,
    "convnext_atto": 64,
    "swin_tiny_patch4_window7_224": 224,
    "regnety_002": 64,
    "tiny_vit_5m_224": 224,  # keeps a table from its first run: two runs differ
    "hgnetv2_b0": 64,  # a convolution between pooling and the last layer
    "inception_next_atto": 64,  # an MLP there
}


@pytest.mark.parametrize("name", TIMM)
def test_timm(name):
    declare_missing_operators()
    timm = pytest.importorskip("timm")
    model = seeded(lambda: timm.create_model(name, pretrained=False, num_classes=CLASSES))
    model = settled(model, 3, TIMM[name], TIMM[name])
    batch = images(2, 3, TIMM[name], TIMM[name])
    _, activations = assert_read(model, batch)
    with torch.no_grad():
        features = model.forward_features(batch)
    # timm's forward_features ends with the map, channels last for Swin.
    assert_statistics_of(activations, features.movedim(-1, 1) if "swin" in name else features)


def tiny_transformers() -> dict[str, Callable[[object], tuple[object, object]]]:
    small = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_labels": CLASSES}
    swin = {"embed_dim": 12, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4, "num_labels": CLASSES}
    return {
        "ResNet": lambda t: t.ResNetConfig(embedding_size=8, **small),
        "MobileNetV2": lambda t: t.MobileNetV2Config(depth_multiplier=0.35, num_labels=CLASSES),
        "EfficientNet": lambda t: t.EfficientNetConfig(
            width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320, num_labels=CLASSES
        ),
        "ConvNext": lambda t: t.ConvNextConfig(**small),
        "ConvNextV2": lambda t: t.ConvNextV2Config(**small),
        "Swin": lambda t: t.SwinConfig(image_size=64, **swin),
        "RegNet": lambda t: t.RegNetConfig(embedding_size=8, groups_width=8, **small),
    }


@pytest.mark.parametrize("name", tiny_transformers())
def test_transformers(name):
    transformers = pytest.importorskip("transformers")
    config = tiny_transformers()[name](transformers)
    model = settled(seeded(lambda: getattr(transformers, f"{name}ForImageClassification")(config)), 3, 64, 64)
    backbone, activations = assert_read(model, images())
    with torch.no_grad():
        features = getattr(model, model.base_model_prefix)(images()).last_hidden_state
    assert_statistics_of(activations, features.movedim(-1, 1) if name == "Swin" else features)
    assert backbone(images(2, 3, 96, 96)).positions[0] > activations.positions[0]


PAPER = {
    "torchvision": ("swin_b", "convnext_base", "resnet50", "efficientnet_b0", "densenet121", "mobilenet_v2"),
    "timm": (
        *("swin_base_patch4_window7_224", "convnext_base", "resnet50", "efficientnet_b0", "densenet121"),
        "mobilenetv2_100",
    ),
    "transformers": ("Swin", "ConvNext", "ResNet", "EfficientNet", "MobileNetV2"),  # it has no DenseNet of its own
}


def paper_network(library: str, name: str) -> nn.Module:
    """One of the paper's six ImageNet networks, as large as there and untrained."""
    declare_missing_operators()
    module = pytest.importorskip("torchvision.models" if library == "torchvision" else library)
    if library == "torchvision":
        return module.get_model(name, weights=None)
    if library == "timm":
        return module.create_model(name)
    sizes = {
        "Swin": {"embed_dim": 128, "depths": [2, 2, 18, 2], "num_heads": [4, 8, 16, 32]},
        "ConvNext": {"hidden_sizes": [128, 256, 512, 1024], "depths": [3, 3, 27, 3]},
        "EfficientNet": {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280},
    }
    config = getattr(module, f"{name}Config")(num_labels=1000, **sizes.get(name, {}))
    return getattr(module, f"{name}ForImageClassification")(config)


@pytest.mark.heavy
@pytest.mark.parametrize(("library", "name"), [(library, name) for library in PAPER for name in PAPER[library]])
def test_the_papers_networks(library, name):
    model = settled(seeded(lambda: paper_network(library, name)), 3, 224, 224)
    backbone, _ = assert_read(model, images(2, 3, 224, 224))
    assert backbone.describe()["channels"] in (1024, 1280, 2048)
    assert backbone.describe()["classes"] == 1000


# Models as people write them.


class Net(nn.Module):
    """Two convolutions with functional ReLUs, then ``pool`` and the last layer."""

    def __init__(self, pool: Callable[[Tensor], Tensor] = lambda x: x.mean((2, 3)), *, bias: bool = True) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, stride=2)
        self.body = nn.Conv2d(12, 24, 3, stride=2)
        self.head = nn.Linear(24, CLASSES, bias=bias)
        self.pool = pool

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.body(F.relu(self.stem(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.features(x)))


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda x: x.mean((2, 3)),
    "mean of rows of means": lambda x: x.mean(3).mean(2),
    "mean of a list": lambda x: x.flatten(2).mean(-1),
    "mean of tokens": lambda x: x.flatten(2).transpose(1, 2).mean(1),
    "sum by count": lambda x: x.sum((2, 3)) / 49,
    "einsum": lambda x: torch.einsum("bchw->bc", x) / 49,
    "avg_pool": lambda x: F.avg_pool2d(x, 7).flatten(1),
    "avg_pool in two steps": lambda x: F.adaptive_avg_pool2d(F.adaptive_avg_pool2d(x, (7, 1)), 1)[:, :, 0, 0],
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1).view(x.size(0), -1),
    "adaptive then mean": lambda x: F.adaptive_avg_pool2d(x, 1).mean([2, 3]),
    "squeezed": lambda x: F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1),
    "channels last": lambda x: x.permute(0, 2, 3, 1).mean((1, 2)),
    "list of channels": lambda x: F.adaptive_avg_pool1d(x.flatten(2), 1).flatten(1),
    "clamped after": lambda x: x.mean((2, 3)).clamp(max=1e6),
    "in place after": lambda x: x.mean((2, 3)).mul_(2),
    "normalised after": lambda x: F.normalize(x.mean((2, 3))) * 5,
    "in place before": lambda x: F.hardtanh(x, 0, 6, inplace=True).mean((2, 3)),
    "shift and scale": lambda x: (x * 2 + 1).mean((2, 3)),
    "dropout": lambda x: F.dropout(F.dropout2d(x, 0.5, False).mean((2, 3)), 0.5, False),
}


@pytest.mark.parametrize("name", POOLS)
def test_ways_to_average(name):
    model = seeded(lambda: Net(POOLS[name]))
    batch = images(5, 3, 31, 31)
    backbone, activations = assert_read(model, batch)
    with torch.no_grad():
        features = model.features(batch)
    features = features * 2 + 1 if name == "shift and scale" else features
    assert_statistics_of(activations, features)
    assert backbone.describe()["tap"] == "body"
    assert backbone.describe()["map_shape"] == [24, 7, 7]
    assert backbone.describe()["after"].startswith("relu")


@pytest.mark.filterwarnings("ignore:the last map")
@pytest.mark.parametrize("bias", [True, False])
def test_image_sizes_and_bias(bias):
    model = seeded(lambda: Net(bias=bias))
    backbone = Backbone(model)
    for size in (31, 47, 40, 31, 7):  # 7: a map of one position
        activations = backbone(images(2, 3, size, size + 8))
        with torch.no_grad():
            assert_statistics_of(activations, model.features(images(2, 3, size, size + 8)))
        assert backbone.image_shape == (3, size, size + 8)
    assert backbone.describe()["classes"] == CLASSES


def squeeze_excite() -> nn.Module:
    class SqueezeExcite(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(24, 24)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.gate(x.mean((2, 3))).sigmoid()[:, :, None, None]

    return nn.Sequential(
        nn.Conv2d(3, 24, 3), SqueezeExcite(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, CLASSES)
    )


class NoBody(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.mean((2, 3)))


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 16)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.permute(0, 2, 3, 1)).relu().mean((1, 2)))


class SharedActivation(nn.Module):
    """One ReLU module for every layer, in place, as many people write it; and a residual sum in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        x = self.relu(self.second(x) + x)
        return {"logits": self.head(x.mean((2, 3)))}


class FreeWeight(nn.Module):
    """A last layer whose module never runs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 16, 3)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.head.bias, self.body(x).mean((2, 3)), self.head.weight.T)


NETS: dict[str, Callable[[], nn.Module]] = {
    "squeeze and excite": squeeze_excite,
    "no body": NoBody,
    "identity body": lambda: nn.Sequential(nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES)),
    "channels last": ChannelsLast,
    "shared activation": SharedActivation,
    "free weight": FreeWeight,
    "convolutional head": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(16, CLASSES, 1), nn.Flatten()
    ),
    "map of one position": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 16),
        nn.BatchNorm2d(16),
        nn.Identity(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    ),
    "two layers after pooling": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 32),
        nn.Hardswish(inplace=True),
        nn.BatchNorm1d(32),
        nn.Dropout(0.5, inplace=True),
        nn.Linear(32, 24),
        nn.ReLU(inplace=True),
        nn.Linear(24, CLASSES),
    ),
}


@pytest.mark.filterwarnings("ignore:the last map")
@pytest.mark.parametrize("name", NETS)
def test_nets(name):
    model = seeded(NETS[name])
    assert_read(model, images(3, 3, 16, 16))
    assert_read(model.double(), images(3, 3, 16, 16).double())


class Hidden(nn.Module):
    """An activation that torch's calls do not show."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(np.tanh(x.numpy()))


def test_code_that_is_not_seen_is_tapped_and_not_replayed():
    pooling = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = seeded(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), Hidden(), *pooling, nn.Linear(8, CLASSES)))
    backbone, activations = assert_read(model, images())
    assert backbone.describe()["tap"] == "1"
    with torch.no_grad():
        assert_statistics_of(activations, model[0](images()).tanh())
    with pytest.raises(ValueError, match=r"its call of Hidden near the last layer cannot be repeated; .*tap="):
        Backbone(nn.Sequential(nn.Conv2d(3, 8, 3), *pooling, Hidden(), nn.Linear(8, 4)))(images())


def of_axes(axes: int) -> nn.Module:
    """A small network over sound (1), pictures (2) or volumes (3), with functional ReLU and mean."""
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1]

    class Axes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(conv(2, 8, 3, stride=2), norm(8), nn.ReLU(inplace=True))
            self.body = conv(8, 12, 3, padding=1)
            self.head = nn.Linear(12, CLASSES)

        def features(self, x: Tensor) -> Tensor:
            return F.gelu(self.body(self.stem(x)))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.features(x).flatten(2).mean(2))

    return Axes()


@pytest.mark.parametrize(
    ("axes", "shape", "larger"), [(1, (41,), (63,)), (2, (11, 9), (13, 17)), (3, (9, 7, 11), (7, 9, 13))]
)
def test_sound_pictures_and_volumes(axes, shape, larger):
    model = seeded(lambda: of_axes(axes))
    backbone, activations = assert_read(model, images(3, 2, *shape))
    with torch.no_grad():
        features = model.features(images(3, 2, *shape))
        assert_statistics_of(activations, features)
        assert_statistics_of(backbone(images(2, 2, *larger)), model.features(images(2, 2, *larger)))
    assert activations.positions.tolist() == [features[0, 0].numel()] * 3
    backbone(images(2, 2, *shape))
    assert backbone.describe()["map_shape"] == list(features.shape[1:])
    assert backbone.kind == "map"
    batch = images(2, 2, *shape).requires_grad_()
    (gradient,) = torch.autograd.grad(backbone(batch, gradients=True).std.sum(), batch)
    assert gradient.any()


@pytest.mark.parametrize("axes", [1, 3])
def test_detectors_on_sound_and_volumes(axes, tmp_path):
    model, shape = seeded(lambda: of_axes(axes)), (2, *(15,) * axes)
    detector = davis.Detector(model, "davis(gamma=0.5) + react(p=90) + energy")
    detector.fit([images(12, *shape)])
    again = davis.load(davis.save(detector, tmp_path / "saved"), model)
    scores = again.score_images(images(3, *shape, seed=1))
    with torch.no_grad():  # the same by hand
        flat = model.features(images(12, *shape)).double().flatten(2)
        clip = np.percentile((flat.mean(2) + 0.5 * flat.std(2)).numpy(), 90)
        flat = model.features(images(3, *shape, seed=1)).double().flatten(2)
        shaped = (flat.mean(2) + 0.5 * flat.std(2)).clamp(max=clip)
        expected = (shaped @ model.head.weight.double().T + model.head.bias.double()).logsumexp(1)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-5)


def test_kinds_of_maps():
    assert Backbone.wrap(seeded(Net), images()).kind == "map"
    assert Backbone(seeded(Net)).kind is None
    assert Backbone.wrap(seeded(lambda: Net(POOLS["mean of tokens"])), images()).kind == "map"  # a grid before

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm, self.head = nn.Conv2d(3, 8, 4, 4), nn.LayerNorm(8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.embed(x).flatten(2).transpose(1, 2)).mean(1))

    backbone, _ = assert_read(seeded(Tokens), images(3, 3, 16, 16))
    assert (backbone.kind, backbone.describe()["map_shape"]) == ("tokens", [8, 16])


@pytest.mark.parametrize("name", ["two layers after pooling", "squeeze and excite", "convolutional head"])
def test_half_precision_is_summarised_in_float32(name):
    model = seeded(NETS[name]).bfloat16()
    _, activations = assert_read(model, images(3, 3, 16, 16).bfloat16())
    assert activations.mean.dtype == torch.float32
    assert activations.logits.dtype == torch.bfloat16


def test_double_input_is_moved_to_the_model():
    model = seeded(Net)
    assert torch.equal(Backbone(model)(images(2).double()).logits, Backbone(model)(images(2)).logits)


def test_memory_format_of_the_images_is_kept():
    assert_read(seeded(Net), images().to(memory_format=torch.channels_last))


def test_mode_and_running_statistics_survive():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(8, 4)
    ).train()
    model[1].eval()  # a mixture, as when fine-tuning with frozen norms
    modes = [module.training for module in model.modules()]
    state = copy.deepcopy(model.state_dict())
    generator_state = torch.get_rng_state()
    logits = Backbone(model)(images()).logits
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator_state)
    with pytest.raises(ValueError):
        Backbone(model)(images(2, 5, 8, 8))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(logits, model.eval()(images()))
    assert_untouched(model)


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_gradients_reach_the_images_and_no_parameter(name):
    declare_missing_operators()
    models = pytest.importorskip("torchvision.models")
    model = seeded(lambda: models.get_model(name, weights=None, num_classes=CLASSES))
    backbone = Backbone.wrap(model, images(2))
    with torch.no_grad():  # ODIN must work for a caller who is not training
        batch = images(2).requires_grad_()
        activations = backbone(batch, gradients=True)
        with torch.enable_grad():
            for features in (activations.max, activations.std, activations.mean):
                logits = backbone.classifier(backbone.neck(features))
                (gradient,) = torch.autograd.grad(logits.logsumexp(1).sum(), batch, retain_graph=True)
                assert gradient.isfinite().all()
                assert gradient.any()
    assert not backbone(batch).mean.requires_grad
    assert_untouched(model)


def test_gradients_on_constant_maps_and_inside_inference_mode():
    model = seeded(Net)
    batch = torch.zeros(2, 3, 31, 31).requires_grad_()  # every channel constant: std is 0 there
    backbone = Backbone(model)
    with torch.inference_mode():
        activations = backbone(batch, gradients=True)
    (gradient,) = torch.autograd.grad(activations.std.sum() + activations.max.sum(), batch)
    assert gradient.isfinite().all()
    with torch.inference_mode():
        assert torch.equal(backbone(batch.detach().clone()).logits, activations.logits)
        assert Backbone(model)(images(2, 3, 31, 31)).mean.shape == (2, 24)


def test_stream():
    backbone = Backbone(seeded(Net))
    batches = [images(2), (images(3, seed=1), torch.tensor([1, 2, 3])), [images(1), [5]]]
    streamed = list(backbone.stream(batches, statistics=("median",)))
    assert [len(activations.mean) for activations, _ in streamed] == [2, 3, 1]
    assert streamed[0][1] is None
    assert streamed[1][1].tolist() == [1, 2, 3]
    assert streamed[2][1].tolist() == [5]
    assert streamed[0][0].std is None
    assert streamed[0][0].median is not None
    with pytest.raises(ValueError, match="one per image"):
        list(backbone.stream([(images(3), torch.tensor([1]))]))
    with pytest.raises(TypeError, match="a dict was given"):
        list(backbone.stream([{"pixel_values": images(3)}]))


def test_wrap():
    backbone = Backbone(seeded(Net))
    assert Backbone.wrap(backbone) is backbone
    assert backbone.describe()["tap"] is None
    with pytest.raises(ValueError, match="has seen images"):
        _ = backbone.classifier
    with pytest.raises(ValueError, match="has seen images"):
        backbone.neck(torch.zeros(1, 24))
    assert Backbone.wrap(backbone, images(2)).describe()["head"] == "head"
    assert Backbone.wrap(backbone.model, images(2)).image_shape == (3, 64, 64)


def test_copies_find_their_own_way():
    backbone = Backbone.wrap(seeded(NETS["two layers after pooling"]), images(2))
    for other in (copy.deepcopy(backbone), pickle.loads(pickle.dumps(backbone))):
        assert torch.equal(other(images(2)).logits, backbone(images(2)).logits)


def test_threads_do_not_mix_their_maps():
    backbone = Backbone.wrap(seeded(Net), images(2))
    expected = [backbone(images(2, seed=seed)).max for seed in range(4)]
    wrong: list[int] = []

    def read(seed: int) -> None:
        wrong.extend(seed for _ in range(10) if not torch.equal(backbone(images(2, seed=seed)).max, expected[seed]))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Adapters given by hand.


def test_explicit_adapter():
    model = seeded(Net)
    backbone = Backbone(model, tap="body", head="head", after=F.relu)
    assert torch.equal(backbone(images()).max, Backbone(model)(images()).max)
    assert backbone.describe()["after"] == "relu"
    assert backbone.describe()["neck"] is None
    assert_untouched(model)
    deep = seeded(NETS["two layers after pooling"])
    by_hand = Backbone(deep, tap="0", head="9", neck=deep[3:9])
    assert torch.equal(by_hand(images()).std, Backbone(deep)(images()).std)
    assert by_hand.describe()["neck"] == "Sequential"
    assert by_hand.describe()["channels"] == 24


def test_explicit_adapter_around_a_head_of_another_kind():
    class Cosine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.directions = nn.Parameter(torch.eye(CLASSES, 24))

        def forward(self, x: Tensor) -> Tensor:
            return F.normalize(x) @ self.directions.T

    model = seeded(Net)
    model.head = Cosine()
    backbone = Backbone(model, tap="body", head="head", after=F.relu)
    activations = backbone(images())
    assert torch.allclose(backbone.classifier(activations.mean), activations.logits, atol=1e-6)
    with pytest.raises(ValueError, match=r"owns the weights.*tap= and head="):
        Backbone(model)(images())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tap": "body"}, "without head="),
        ({"head": "head"}, "without tap="),
        ({"neck": F.relu}, "need tap= and head="),
        ({"tap": "boddy", "head": "head"}, "tap='boddy' is no module of Net; did you mean 'body'?"),
        ({"tap": "body", "head": "xyz"}, "head='xyz' is no module of Net; its modules"),
    ],
)
def test_adapters_that_name_nothing(options, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        Backbone(seeded(Net), **options)


def test_adapters_that_are_wrong():
    model = seeded(Net)
    with pytest.raises(ValueError, match=r"tap 'body' and head 'head' of Net do not give the model's logits: row \d"):
        Backbone(model, tap="body", head="head")(images())  # the ReLU is missing
    with pytest.raises(ValueError, match=r"do not meet.*features of shape \(4, 12\).*takes 24 channels; pass neck="):
        Backbone(model, tap="stem", head="head")(images())
    with pytest.raises(ValueError, match="the module before pooling"):
        Backbone(model, tap="head", head="head")(images())
    model.unused = nn.Identity()
    with pytest.raises(ValueError, match="'unused' did not run"):
        Backbone(model, tap="unused", head="head")(images())
    assert_untouched(model)


# Models that cannot be read, and images that cannot be classified.


def raised_by(model: nn.Module, batch: Tensor) -> str:
    with pytest.raises(ValueError) as caught:
        Backbone(model.eval())(batch)
    assert_untouched(model)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_class_tokens_have_nothing_to_pool():
    declare_missing_operators()
    models, timm = pytest.importorskip("torchvision.models"), pytest.importorskip("timm")
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=32, hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    for model, size in [
        (models.VisionTransformer(32, 16, 1, 2, 24, 32), 32),
        (models.vit_b_16(weights=None, image_size=32), 32),
        (timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=32), 32),
        (transformers.ViTForImageClassification(config), 32),
    ]:
        message = raised_by(model, images(2, 3, size, size))
        assert "one class token" in message
        assert "nothing to pool" in message


def test_averaged_tokens_work():
    timm = pytest.importorskip("timm")
    model = timm.create_model(
        "vit_tiny_patch16_224", pretrained=False, img_size=32, global_pool="avg", num_classes=CLASSES
    )
    backbone, _ = assert_read(model.eval(), images(2, 3, 32, 32))
    assert backbone.describe()["map_shape"] == [192, 4]
    assert backbone.describe()["kind"] == "tokens"


UNREADABLE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "max": (lambda: Net(lambda x: x.amax((2, 3))), "takes a maximum of its last map"),
    "max and mean": (lambda: Net(lambda x: x.amax((2, 3)) + x.mean((2, 3))), "takes a maximum of its last map"),
    "flatten": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 62 * 62, 5)),
        "no average of a map leads to its last layer, which reads the last map through flatten",
    ),
    "softmax": (lambda: nn.Sequential(Net(), nn.Softmax(1)), "something follows '0.head'"),
    "temperature": (lambda: nn.Sequential(Net(), nn.Sigmoid()), "its output is not what a last linear layer returned"),
    "no linear layer": (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), "its output is not"),
    "hidden": (
        lambda: Net(lambda x: torch.from_numpy(x.numpy().mean((2, 3)))),
        "code that torch's calls do not show leads to its last layer; .* pass tap= and head=",
    ),
    "one batch size": (lambda: Net(lambda x: x.mean((2, 3)).view(4, 24)), "cannot be watched .* Pass tap= and head="),
}


class Views(Net):
    """An average over an image and its mirror image."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.stack([super(Views, self).features(v).mean((2, 3)) for v in (x, x.flip(-1))], 1).mean(1))


class Frames(Net):
    """An average over the frames of (batch, frame, 3, height, width), each averaged before."""

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.features(x.flatten(0, 1)).mean((2, 3))
        return self.head(pooled.view(*x.shape[:2], 24).mean(1))


class Ensemble(Net):
    """An average over the logits of three members."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList([Net() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x) for member in self.members], 1).mean(1)


class Crops(Net):
    """An average over the logits of the crops (batch, crop, 3, height, width)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.flatten(0, 1)).view(*x.shape[:2], CLASSES).mean(1)


UNREADABLE |= {
    "maximum beside mean": (
        lambda: Net(lambda x: torch.stack([x.amax((2, 3)), x.mean((2, 3))], 1).mean(1)),
        r"it averages several tensors put together \(stack\), not the positions of one map",
    ),
    "maximum joined to mean": (
        lambda: Net(lambda x: torch.cat([x.amax((2, 3)), x.mean((2, 3))], 1).view(-1, 2, 24).mean(1)),
        r"it averages several tensors put together \(cat\), not the positions of one map",
    ),
    "largest values": (
        lambda: Net(lambda x: x.flatten(2).topk(5).values.mean(2)),
        r"it averages chosen values of a map, such as the largest \(topk\)",
    ),
    "pyramid": (
        lambda: Net(lambda x: torch.cat([F.adaptive_avg_pool2d(x, n).flatten(2) for n in (1, 2, 4)], 2).mean(2)),
        r"it averages several tensors put together \(cat\)",
    ),
    "views": (Views, r"it averages several tensors put together \(stack\)"),
    "ensemble": (Ensemble, r"its logits join those of several last layers \(members.0.head, members.1.head"),
}


def twice(x: Tensor) -> Tensor:
    return torch.stack([x.mean((2, 3)), x.flip(-1).square().mean((2, 3))], 1)


def written(x: Tensor) -> Tensor:
    both = torch.zeros(len(x), 2, 24)
    both[:, 0], both[:, 1] = x.mean((2, 3)), x.square().mean((2, 3))
    return both


def pyramid(x: Tensor) -> Tensor:
    return torch.cat([F.adaptive_avg_pool2d(x, n).flatten(2) for n in (1, 2, 3)], 2)


# One more call, and another that has never been seen before a mean, must not hide what is averaged.
DISGUISED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "leaky": (lambda x: F.leaky_relu(twice(x)).mean(1), r"several tensors put together \(stack\)"),
    "doubled": (lambda x: (twice(x) * 2).mean(1), r"several tensors put together \(stack\)"),
    "clamped": (lambda x: twice(x).clamp(0, 6).mean(1), r"several tensors put together \(stack\)"),
    "written": (lambda x: written(x).mean(1), r"several tensors put together \(setitem\)"),
    "some of the sorted": (lambda x: x.flatten(2).sort(-1).values[..., -5:].mean(2), r"such as the largest \(sort\)"),
    "largest, scaled": (lambda x: (x.flatten(2).topk(5).values * 1.5).mean(2), r"such as the largest \(topk\)"),
    "gathered": (
        lambda x: x.flatten(2).gather(2, x.flatten(2).topk(5).indices).mean(2),
        r"such as the largest \(gather\)",
    ),
    "largest of each row": (lambda x: x.amax(3).mean(2), r"such as the largest \(amax\)"),
    "pyramid, scaled": (lambda x: (pyramid(x) * 1.5).mean(2), r"several tensors put together \(cat\)"),
    "pyramid, cut": (lambda x: F.relu6(pyramid(x))[..., 1:].mean(2), r"several tensors put together \(cat\)"),
}


@pytest.mark.parametrize("name", DISGUISED)
def test_a_further_call_hides_nothing(name):
    pool, message = DISGUISED[name]
    with pytest.raises(ValueError, match=f"it averages .*{message}"):
        Backbone(seeded(lambda: Net(pool)))(images(4))


class Folded(Net):
    """Frames or views (batch, view, 3, height, width) in one batch, and what is made of their features."""

    def __init__(self, join: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.join = join

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.join(self.features(x.flatten(0, 1)), x.shape[1]))


FOLDED: dict[str, tuple[Callable[[Tensor, int], Tensor], str]] = {
    "a bend": (lambda x, n: F.elu(x.mean((2, 3))).view(-1, n, 24).mean(1), r"an average already \(mean\)"),
    "unit vectors": (lambda x, n: F.normalize(x.mean((2, 3))).view(-1, n, 24).mean(1), r"an average already \(mean\)"),
    "maxima": (lambda x, n: x.amax((2, 3)).view(-1, n, 24).mean(1), r"such as the largest \(amax\)"),
    "power means": (
        lambda x, n: x.clamp(1e-6).pow(3).mean((2, 3)).pow(1 / 3).view(-1, n, 24).mean(1),
        r"an average already \(mean\)",
    ),
    "all at once": (
        lambda x, n: x.view(-1, n, *x.shape[1:]).transpose(1, 2).mean((2, 3, 4)),
        r"several pictures for each image \(",
    ),
}


@pytest.mark.parametrize("name", FOLDED)
def test_views_folded_into_the_batch_are_no_positions(name):
    join, message = FOLDED[name]
    with pytest.raises(ValueError, match=f"it averages .*{message}"):
        Backbone(seeded(lambda: Folded(join)))(images(4, 2, 3, 31, 31))


def test_groups_of_channels_are_no_positions():
    """They are averaged as positions are, position by position: the map is what comes out."""

    class Groups(Net):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Conv2d(24, 96, 1)

        def map(self, x: Tensor) -> Tensor:
            return self.wide(self.features(x)).unflatten(1, (24, 4)).mean(2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.map(x).mean((2, 3)))

    model = seeded(Groups)
    _, activations = assert_read(model, images(4, 3, 31, 31))
    with torch.no_grad():
        assert_statistics_of(activations, model.map(images(4, 3, 31, 31)))


def test_some_of_the_channels_are_a_map():
    class Half(Net):
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.Conv2d(24, 48, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.wide(self.features(x))[:, :24].mean((2, 3)))

    model = seeded(Half)
    _, activations = assert_read(model, images(4, 3, 31, 31))
    with torch.no_grad():
        assert_statistics_of(activations, model.wide(model.features(images(4, 3, 31, 31)))[:, :24])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_token_left_out_of_many_is_seen(dtype):
    class AllButOne(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = self.features(x).flatten(2)
            return self.head((x.sum(2) - x[..., 0]) / (x.shape[2] - 1))

    model = seeded(AllButOne).to(dtype)
    with pytest.raises(ValueError, match=r"cannot find the last map|do not give the model's logits"):
        Backbone(model)(images(2, 3, 121, 121).to(dtype))  # 900 positions


@pytest.mark.parametrize(
    ("build", "message"),
    [(Frames, r"it averages what is an average already \(mean\)"), (Crops, "its output is not what")],
)
def test_averages_over_frames_and_crops_are_no_maps(build, message):
    with pytest.raises(ValueError, match=message):
        Backbone(build().eval())(images(4, 5, 3, 31, 31))


SPREAD: dict[str, Callable[[Tensor], Tensor]] = {
    "an average spread out": lambda x: F.interpolate(F.adaptive_avg_pool2d(x, 1), size=x.shape[2:]).mean((2, 3)),
    "an average expanded": lambda x: x.mean((2, 3), keepdim=True).expand_as(x).mean((2, 3)),
    "two branches": lambda x: torch.stack([x.relu(), x.relu()], -1).mean(-1).mean((2, 3)),
}


@pytest.mark.parametrize("name", SPREAD)
def test_the_map_is_the_one_that_has_positions(name):
    model = seeded(lambda: Net(SPREAD[name]))
    backbone, activations = assert_read(model, images(4, 3, 31, 31))
    with torch.no_grad():
        assert_statistics_of(activations, model.features(images(4, 3, 31, 31)))
    assert backbone.describe()["map_shape"] == [24, 7, 7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_pooling_that_weighs_borders_less_belongs_to_the_map(dtype):
    """The mean of what it gives is nearly that of its input: too near for a half to tell."""
    model = seeded(lambda: Net(lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False).mean((2, 3)))).to(dtype)
    backbone = Backbone(model)
    backbone(images(4, 3, 31, 31).to(dtype))
    assert backbone.describe()["after"] == "relu, avg_pool2d"


def test_watching_a_model_leaves_its_state_alone():
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("average", torch.zeros(3))

        def forward(self, x: Tensor) -> Tensor:
            self.seen += len(x)
            self.average = 0.9 * self.average + 0.1 * x.mean((0, 2, 3))
            return x

    counting = Counting()
    model = seeded(lambda: nn.Sequential(counting, Net()))
    backbone = Backbone(model)
    backbone.probe((3, 31, 31))
    assert (float(counting.seen), counting.average.tolist()) == (0, [0, 0, 0])
    backbone(images(4, 3, 40, 40))
    assert float(counting.seen) == 4  # as if the model had been called once


@pytest.mark.parametrize("name", UNREADABLE)
def test_models_that_cannot_be_read(name):
    build, message = UNREADABLE[name]
    model = build()
    with pytest.raises(ValueError, match=message):
        Backbone(model.eval())(images(4))


def test_model_outputs_that_hold_no_logits():
    class Tuple(Net):
        def forward(self, x):
            return super().forward(x), x

    class Named(Net):
        def forward(self, x):
            return {"out": super().forward(x)}

    with pytest.raises(TypeError, match="the model returned a tuple; it must return"):
        Backbone(Tuple())(images())
    with pytest.raises(TypeError, match=r"a dict with \['out'\]"):
        Backbone(Named(), tap="body", head="head")(images())


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([1, 2], TypeError, "a list was given"),
        (torch.zeros(0, 3, 8, 8), ValueError, r"at least one image; given \(0, 3, 8, 8\)"),
        (torch.zeros(3), ValueError, "must be a batch"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), ValueError, "convert to float and normalise as the model expects"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.bool), ValueError, "convert to float"),
        (torch.full((7, 3, 8, 8), torch.nan), ValueError, r"7 of 7 rows \(0, 1, 2, 3, 4, ...\)"),
        (torch.tensor([[1.0], [torch.inf]]), ValueError, r"1 of 2 rows \(1\)"),
    ],
)
def test_images_that_are_refused(batch, error, message):
    with pytest.raises(error, match=message):
        Backbone(seeded(Net))(batch)


@pytest.mark.parametrize("options", [{}, {"tap": "body", "head": "head", "after": F.relu}])
def test_images_of_a_wrong_shape(options):
    backbone = Backbone(seeded(Net), **options)
    with pytest.raises(ValueError, match=r"Net does not take images of shape \(1, 64, 64\) in a batch of 2 \("):
        backbone(images(2, 1, 64, 64))
    backbone(images(2))
    with pytest.raises(ValueError, match=r"\(1, 64, 64\).*images of shape \(3, 64, 64\) worked before") as caught:
        backbone(images(2, 1, 64, 64))
    assert caught.value.__cause__ is not None
    assert backbone.image_shape == (3, 64, 64)
    assert_untouched(backbone.model)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*")  # deprecated
def test_models_that_are_none():
    with pytest.raises(TypeError, match="a function was given"):
        Backbone(lambda x: x)
    with pytest.raises(TypeError, match="hides its layers"):
        Backbone(torch.jit.script(nn.Sequential(nn.Flatten())))
    with pytest.raises(TypeError, match="a OptimizedModule hides its layers"):
        Backbone(torch.compile(Net(), backend="eager"))


def test_logits_that_are_not_finite():
    model = seeded(Net)
    model.head.bias.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="gave NaN or infinity for 4 of 4 images"):
        Backbone(model, tap="body", head="head", after=F.relu)(images())


def test_declaring_operators_again_is_harmless():
    declare_missing_operators()
    declare_missing_operators()
    assert pytest.importorskip("torchvision").__version__


def test_a_single_image_is_told_from_a_batch():
    class Unpacking(Net):
        def forward(self, x: Tensor) -> Tensor:
            batch, _, _, _ = x.shape
            return super().forward(x).view(batch, -1)

    with pytest.raises(ValueError, match=r"a single image needs a batch axis: image\[None\]"):
        Backbone(seeded(Unpacking))(images(2, 3, 31, 31)[0])
