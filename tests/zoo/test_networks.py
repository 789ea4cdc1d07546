"""The five architectures: their size, their shapes, their names, and that davis can read them."""

from __future__ import annotations

import pytest
import torch
from models import settled
from torch import nn

import davis
from davis import zoo
from davis.models import load_model
from davis.stages import GodinHead

# Published where they are: DenseNet-BC 100/12 0.8M (Huang et al., 2017), WRN-28-10 36.5M (Zagoruyko, Komodakis, 2016).
PARAMETERS = {
    "densenet101": 769_162,
    "resnet18": 11_173_962,
    "resnet34": 21_282_122,
    "wrn28_10": 36_479_194,
}
CHANNELS = {"densenet101": 342, "resnet18": 512, "resnet34": 512, "wrn28_10": 640, "mobilenet_v2": 512}
SIDES = {"densenet101": 8, "resnet18": 4, "resnet34": 4, "wrn28_10": 8, "mobilenet_v2": 4}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def noise(images: int = 2) -> torch.Tensor:
    return torch.randn((images, 3, 32, 32), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("name", "expected"), PARAMETERS.items())
def test_parameters(name: str, expected: int) -> None:
    assert count(zoo.build(name, classes=10)) == expected
    assert count(zoo.build(name, classes=100)) == expected + 90 * (CHANNELS[name] + 1)


def test_parameters_of_mobilenet() -> None:
    """Layer by layer from the table of Sandler et al., with stride 1 in the stem and 512 channels at the end."""
    expected = 3 * 9 * 32 + 2 * 32
    channels = 32
    for t, c, n in ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1)):
        for _ in range(n):
            hidden = t * channels
            expected += (channels * hidden + 2 * hidden) * (t > 1) + 9 * hidden + 2 * hidden + hidden * c + 2 * c
            channels = c
    expected += 320 * 512 + 2 * 512 + 512 * 10 + 10
    assert count(zoo.build("mobilenet_v2", classes=10)) == expected


@pytest.mark.parametrize("name", [name for name in zoo.ARCHS if name != "wrn28_10"])
@pytest.mark.parametrize("act", [None, "silu"])
def test_davis_reads_every_network(name: str, act: str | None) -> None:
    torch.manual_seed(0)
    model = zoo.build(name if act is None else f"{name}(act={act})", classes=10)
    assert_read(model, name)


@pytest.mark.slow
def test_davis_reads_the_wide_network() -> None:
    torch.manual_seed(0)
    assert_read(zoo.build("wrn28_10", classes=10), "wrn28_10")


def assert_read(model: nn.Module, name: str) -> None:
    backbone = davis.Backbone(settled(model, *noise().shape[1:]))
    activations = backbone(noise())
    found = backbone.describe()
    assert found["head"] == "head"
    assert found["map_shape"] == [CHANNELS[name], SIDES[name], SIDES[name]]
    assert torch.equal(activations.logits, model(noise()))
    detector = davis.Detector(backbone, "davis(gamma=3) + energy")
    assert detector(noise()).score.isfinite().all()


@pytest.mark.parametrize("act", zoo.ACTIVATIONS)
def test_the_activation_is_the_one_asked_for(act: str) -> None:
    """The last map of a ResNet comes straight out of it."""
    torch.manual_seed(0)
    model = zoo.build(f"resnet18(act={act}, width=4)", classes=3).eval()
    images = 20 * noise()
    last = davis.Backbone(model, tap="blocks", head="head")(images, statistics=("max",))
    with torch.no_grad():
        maps = model.blocks(model.act(model.norm(model.stem(images))))
    low, high = float(maps.min()), float(maps.max())
    assert last.max.amax() == high
    bounds = {"relu": (0, None), "relu6": (0, 6), "silu": (-0.2785, None), "gelu": (-0.17, None), "tanh": (-1, 1)}[act]
    assert low >= bounds[0] - 1e-3
    assert (low < 0) == (act in ("silu", "gelu", "tanh"))
    assert bounds[1] is None or high <= bounds[1]


@pytest.mark.parametrize(
    ("given", "name", "spelled"),
    [
        ("resnet18", "resnet18", "resnet18"),
        (" resnet18( act = silu ) ", "resnet18(act=silu)", "resnet18_silu"),
        ("resnet18(act=relu)", "resnet18", "resnet18"),
        ("mobilenet_v2(act=relu)", "mobilenet_v2(act=relu)", "mobilenet_v2_relu"),
        ("densenet101(depth=10, growth=4)", "densenet101(depth=10, growth=4)", "densenet101_depth10_growth4"),
    ],
)
def test_names(given: str, name: str, spelled: str) -> None:
    assert zoo.canonical(given) == name
    assert zoo.canonical(name) == name
    assert zoo.slug(given) == spelled


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet19", "unknown network 'resnet19'; did you mean 'resnet18'?"),
        ("vgg", "known: densenet101, resnet18"),
        ("resnet18(act=selu)", "unknown activation 'selu' of resnet18"),
        ("resnet18(growth=4)", "resnet18 takes act=relu, width=64, not 'growth=4'"),
        ("densenet101(growth=193)", "growth of densenet101 must be at most 192, got 193"),
        ("resnet18(width=0)", "width of resnet18 must be a whole number from 1"),
        ("resnet18(act)", "not 'act'"),
        ("densenet101(depth=7, growth=1)", "depth of densenet101 must be 10, 16, 22 or another 6n + 4"),
        ("densenet101(depth=4)", "depth of densenet101 must be 10, 16, 22"),
        ("resnet18[act=silu]", "cannot read the network"),
    ],
)
def test_bad_names_are_answered_in_one_line(name: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        zoo.build(name, classes=10)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_factories_are_model_names() -> None:
    assert isinstance(load_model("davis.zoo:cifar10_densenet101", weights="none"), zoo.DenseNet)
    model = load_model("davis.zoo:cifar100_resnet18_silu", weights="none")
    assert isinstance(model, zoo.ResNet)
    assert model.head.out_features == 100
    assert model.act is torch.nn.functional.silu
    assert load_model("davis.zoo:cifar10_resnet18", weights="none", classes=7).head.out_features == 7  # type: ignore[union-attr]
    assert isinstance(load_model("davis.zoo:cifar10_resnet18_godin", weights="none").head, GodinHead)
    with pytest.raises(ValueError, match="has no 'cifar10_vgg'"):
        load_model("davis.zoo:cifar10_vgg", weights="none")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("cifar10_resnet18_tanh", "`davis train 'resnet18(act=tanh)' cifar10`"),
        ("cifar100_wrn28_10_godin", "`davis train wrn28_10 cifar100 --head godin`"),
    ],
)
def test_a_factory_whose_weights_do_not_ship_is_not_taken_at_random(name: str, command: str) -> None:
    with pytest.raises(FileNotFoundError) as error:
        load_model(f"davis.zoo:{name}")
    assert f"train them with {command} and give its folder" in str(error.value)
    assert "\n" not in str(error.value)


def test_same_seed_same_weights() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(zoo.build("resnet18(width=4)", classes=5).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_convolutions_begin_with_the_variance_of_he() -> None:
    torch.manual_seed(0)
    weight = zoo.build("resnet18", classes=10).blocks[-1].conv2.weight  # type: ignore[union-attr, index]
    assert weight.var().item() == pytest.approx(2 / (512 * 9), rel=0.01)
    assert weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["resnet18(width=4)", "densenet101(depth=10)", "wrn28_10(factor=1)", "mobilenet_v2"])
def test_a_godin_head_is_scored(name: str) -> None:
    torch.manual_seed(0)
    model = zoo.build(name, classes=7, head="godin").eval()
    assert isinstance(model.head, GodinHead)
    if name.startswith("resnet"):
        backbone = davis.Backbone(model, tap="blocks", head="head")
    else:
        backbone = davis.Backbone(model, tap="norm", head="head", after=model.act)
    output = davis.Detector(backbone, "godin")(noise(4))
    assert output.logits.shape == (4, 7)
    assert ((output.score >= -1) & (output.score <= 1)).all()  # a cosine
    with pytest.raises(ValueError, match="unknown head 'cosine'; known: linear, godin"):
        zoo.build("resnet18", classes=7, head="cosine")  # type: ignore[arg-type]
