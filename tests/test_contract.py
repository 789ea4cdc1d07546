"""What every registered stage promises; a new stage is tested by existing."""

from __future__ import annotations

import inspect
import sys
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import Tensor, nn

from davis.pooling import STATISTICS, summarise
from davis.spec import KINDS, canonical, parse
from davis.stages import REGISTRY, Fuse, GodinHead, NotFittedError, PixelScore, Stage
from davis.statistics import NEEDS, Statistics
from davis.types import Activations, Classifier

CHANNELS, CLASSES, ROWS = 24, 4, 120
FUSED = "mean + energy | max + energy | median + energy"

every_stage = pytest.mark.parametrize("name", sorted(REGISTRY))
fitted_stages = pytest.mark.parametrize("name", sorted(n for n, stage in REGISTRY.items() if stage.fitted))


class Net(nn.Module):
    """The classifier behind the stages that move images."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.conv = nn.Conv2d(3, CHANNELS, 3, padding=1)
            self.head = nn.Linear(CHANNELS, CLASSES)

    def features(self, images: Tensor) -> Tensor:
        return self.conv(images).relu().amax((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


NET = Net()


@cache
def last_layer(name: str, dtype: torch.dtype = torch.float32) -> Classifier:
    if name != "godin":
        linear = nn.Linear(CHANNELS, CLASSES)
        linear.load_state_dict(NET.head.state_dict())
        return Classifier(linear.to(dtype))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Classifier(GodinHead(CHANNELS, CLASSES).to(dtype).eval())


def random_of(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def summary(name: str, needs: frozenset[str] = NEEDS) -> Statistics:
    """The statistics of rectified training features: those that the stage says it needs, and no others."""
    features = random_of(ROWS, CHANNELS, seed=2).add(0.5).relu()
    logits = last_layer(name)(features)
    labels = torch.arange(ROWS) % CLASSES
    statistics = Statistics(needs, classes=CLASSES)
    statistics.update(features, logits, labels, features / 2)
    return statistics


def settings_of(name: str) -> dict[str, Any]:
    """A value other than the default for every setting."""
    stage = REGISTRY[name]
    hints = get_type_hints(inspect.unwrap(stage.__init__))
    return {key: other(hints[key], parameter.default) for key, parameter in stage.parameters_of().items()}


def other(hint: Any, default: Any) -> Any:
    if get_origin(hint) is Literal:
        return next(word for word in get_args(hint) if word != default)
    if hint == tuple[float, ...] | None:
        return (0.5, 0.25, 1.0)
    if get_args(hint):
        return 7  # vim's d, a number or a word
    if hint is bool:
        return not default
    return default - 1 if hint is int else default * 0.9 or 0.5


def build(name: str, **settings: Any) -> Stage:
    """The stage, by way of the language."""
    text = REGISTRY[name](**settings).text()
    if REGISTRY[name].kind == "fuse":
        fuse = parse(f"{FUSED} | {text}").fuse
        assert fuse is not None
        return fuse
    (branch,) = parse(text if REGISTRY[name].kind == "score" else f"{text} + energy")
    return next(stage for stage in branch.stages if stage.name == name)


def fit(stage: Stage, statistics: Statistics | None = None) -> Stage:
    if isinstance(stage, PixelScore):
        images = random_of(40, 3, 6, 6, seed=3)
        stage.settle(stage.observe(images, NET.features, NET.head).detach())
    elif isinstance(stage, Fuse):
        stage.rank_against(random_of(60, 3, seed=3))
    else:
        stage.fit(statistics or summary(stage.name, stage.needs), last_layer(stage.name))
    return stage


def inputs_of(stage: Stage, count: int, *, dtype: torch.dtype = torch.float32, seed: int = 4) -> Activations | Tensor:
    """Images, activations or features: what this kind of stage is called on."""
    if moves_images(stage):
        return random_of(count, 3, 6, 6, seed=seed, dtype=dtype)
    if stage.kind == "fuse":
        return random_of(count, 3, seed=seed, dtype=dtype)
    if stage.kind == "pool":
        maps = random_of(count, CHANNELS, 3, 4, seed=seed, dtype=dtype).relu()
        return summarise(maps, torch.zeros(count, CLASSES), STATISTICS)
    return random_of(count, CHANNELS, seed=seed, dtype=dtype).add(0.3).relu()


def moves_images(stage: Stage) -> bool:
    return stage.kind == "perturb" or isinstance(stage, PixelScore)


def apply(stage: Stage, inputs: Activations | Tensor, classifier: Classifier | None = None) -> Tensor:
    classifier = classifier or last_layer(stage.name)
    if stage.kind == "perturb":
        return stage(inputs, NET)
    if isinstance(stage, PixelScore):
        return stage(inputs, NET.features, NET.head)
    if stage.kind == "head":
        return stage(inputs, classifier)
    if stage.kind == "score":
        return stage(inputs, classifier(inputs), classifier)
    return stage(inputs)


def parts(inputs: Activations | Tensor) -> list[Tensor]:
    return list(inputs) if isinstance(inputs, tuple) else [inputs]


def rows(inputs: Activations | Tensor, index: slice) -> Activations | Tensor:
    return inputs.rows(index) if isinstance(inputs, Activations) else inputs[index]


# -- the text ----------------------------------------------------------------------------------------


@every_stage
def test_text_round_trip(name: str) -> None:
    fuses = REGISTRY[name].kind == "fuse"
    beginning = f"{FUSED} | " if fuses else ""
    ending = "" if fuses or REGISTRY[name].kind == "score" else " + energy"
    settings = settings_of(name)
    chosen: list[dict[str, Any]] = [{}, settings, *({key: value} for key, value in settings.items())]
    for some in chosen:
        stage = REGISTRY[name](**some)
        assert build(name, **some).settings() == stage.settings()
        assert repr(stage) == stage.text()
        text = canonical(beginning + stage.text() + ending)
        assert stage.text() in ("linear", "fisher") or stage.text() in text
        assert canonical(text) == text


@every_stage
def test_the_constructor_stores_what_it_got(name: str) -> None:
    defaults = {key: parameter.default for key, parameter in REGISTRY[name].parameters_of().items()}
    assert REGISTRY[name]().settings() == defaults
    assert REGISTRY[name]().text() == name
    settings = settings_of(name)
    stage = REGISTRY[name](**settings)
    assert stage.settings() == settings
    assert all(type(stage.settings()[key]) is type(value) for key, value in settings.items())
    assert list(stage.settings()) == list(defaults)
    if settings:
        assert all(f"{key}=" in stage.text() for key in settings)
    assert not list(stage.parameters())
    assert set(stage._buffers) == set(stage.fitted)
    assert all(p.kind is p.KEYWORD_ONLY for p in REGISTRY[name].parameters_of().values())


@every_stage
def test_the_class_describes_itself(name: str) -> None:
    stage = REGISTRY[name]
    assert stage.name == name
    assert stage.kind in KINDS
    assert stage.needs <= NEEDS
    assert (stage.__dict__.get("__doc__") or "").split("\n")[0].strip(), f"{name} has no docstring"
    if sys.version_info >= (3, 11):  # before, `final` left no mark
        assert getattr(stage, "__final__", False), f"{name} is not final"
    hints = get_type_hints(inspect.unwrap(stage.__init__))
    assert set(stage.parameters_of()) == set(hints) - {"return"}


@every_stage
def test_wrong_types_are_refused(name: str) -> None:
    for key in REGISTRY[name].parameters_of():
        with pytest.raises(ValueError, match=rf"{name}\({key}=nonsense\): {key} must be "):
            REGISTRY[name](**{key: "nonsense"})
        with pytest.raises(ValueError, match=f"{key} must be "):
            REGISTRY[name](**{key: object()})
    with pytest.raises(TypeError):
        REGISTRY[name](no_such_setting=1)


# -- fitting -----------------------------------------------------------------------------------------


@fitted_stages
def test_unfitted_stages_say_so(name: str) -> None:
    stage = build(name)
    assert not stage.is_fitted
    with pytest.raises(NotFittedError, match=f"{name} is not fitted"):
        apply(stage, inputs_of(stage, 2))
    assert fit(stage).is_fitted


@every_stage
def test_stages_without_buffers_need_no_fit(name: str) -> None:
    stage = build(name)
    assert stage.is_fitted == (not stage.fitted)
    if not stage.fitted:
        assert not stage.needs
        apply(stage, inputs_of(stage, 2))


@fitted_stages
@pytest.mark.parametrize("settings", ["default", "other"])
def test_fitting_is_a_function_of_the_statistics(name: str, settings: str) -> None:
    chosen = {} if settings == "default" else settings_of(name)
    statistics = summary(name, REGISTRY[name].needs)
    one, two = fit(build(name, **chosen), statistics), fit(build(name, **chosen), statistics)
    three = fit(build(name, **chosen))  # other statistics of the same data
    again = fit(two, statistics)  # a second fit replaces the first
    for buffer in one.fitted:
        for stage in (two, three, again):
            assert torch.equal(getattr(one, buffer), getattr(stage, buffer)), buffer


@fitted_stages
def test_fitted_buffers_are_plain_finite_tensors(name: str) -> None:
    stage = fit(build(name))
    for buffer in stage.fitted:
        tensor = getattr(stage, buffer)
        assert tensor.isfinite().all(), buffer
        assert not tensor.requires_grad, f"{name}.{buffer} holds the graph of its fit"
    assert set(stage.state_dict()) == set(stage.fitted)


@fitted_stages
def test_fitted_buffers_travel(name: str) -> None:
    stage = fit(build(name))
    inputs = inputs_of(stage, 5)
    expected = apply(stage, inputs)
    fresh = build(name)
    for buffer, tensor in stage.state_dict().items():
        setattr(fresh, buffer, tensor.clone())
    assert fresh.is_fitted
    assert torch.equal(apply(fresh, inputs), expected)
    for tensor in fresh.state_dict().values():
        tensor.zero_()
    fresh.load_state_dict(stage.state_dict())
    assert torch.equal(apply(fresh, inputs), expected)


def features_only() -> list[str]:
    return sorted(n for n, s in REGISTRY.items() if s.kind in ("shape", "head", "score") and s.needs)


@pytest.mark.parametrize("name", features_only())
@pytest.mark.parametrize("training", ["ones", "zeros", "unlabelled", "one class", "few rows"])
def test_odd_training_data(name: str, training: str) -> None:
    """Constant or dead features, no labels, a single class, fewer rows than channels."""
    count = 10 if training == "few rows" else 60
    features = random_of(count, CHANNELS, seed=2).add(0.5).relu()
    if training in ("ones", "zeros"):
        features = torch.full_like(features, training == "ones")
    classes = 1 if training == "one class" else CLASSES
    classifier = Classifier(nn.Linear(CHANNELS, classes))
    labels = None if training == "unlabelled" else torch.arange(count) % classes
    statistics = Statistics(REGISTRY[name].needs, classes=classes)
    statistics.update(features, classifier(features), labels, features / 2)
    stage = build(name, k=5) if "k" in REGISTRY[name].parameters_of() else build(name)
    if name == "optfs" and training in ("ones", "zeros"):
        with pytest.raises(ValueError, match="optfs: nearly all training features are equal"):
            stage.fit(statistics, classifier)
        return
    stage.fit(statistics, classifier)
    tests = torch.cat([features[:3], inputs_of(stage, 4), torch.zeros(1, CHANNELS)])
    assert apply(stage, tests, classifier).isfinite().all()


# -- calling -----------------------------------------------------------------------------------------


@every_stage
@pytest.mark.parametrize("settings", ["default", "other"])
def test_inputs_are_not_changed(name: str, settings: str) -> None:
    stage = fit(build(name, **({} if settings == "default" else settings_of(name))))
    inputs = inputs_of(stage, 5)
    copies = [part.clone() for part in parts(inputs)]
    buffers = {key: value.clone() for key, value in stage.state_dict().items()}
    weights = [parameter.clone() for parameter in last_layer(name).module.parameters()]
    apply(stage, inputs)
    assert all(torch.equal(part, copy) for part, copy in zip(parts(inputs), copies, strict=True))
    assert all(torch.equal(stage.state_dict()[key], value) for key, value in buffers.items())
    now = last_layer(name).module.parameters()
    assert all(torch.equal(parameter, copy) for parameter, copy in zip(now, weights, strict=True))


@every_stage
@pytest.mark.parametrize("settings", ["default", "other"])
def test_batch_equals_one_by_one(name: str, settings: str) -> None:
    stage = fit(build(name, **({} if settings == "default" else settings_of(name))))
    inputs = inputs_of(stage, 9)
    whole = apply(stage, inputs)
    assert len(whole) == 9
    single = torch.cat([apply(stage, rows(inputs, slice(i, i + 1))) for i in range(9)])
    backwards = torch.cat([apply(stage, rows(inputs, slice(i, i + 3))) for i in (6, 3, 0)])
    torch.testing.assert_close(single, whole, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(backwards.reshape(3, 3, -1).flip(0).reshape(whole.shape), whole, rtol=2e-6, atol=1e-6)


@every_stage
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    stage = fit(build(name))
    if moves_images(stage) and dtype == torch.float64:
        pytest.skip("the network is in float32")
    result = apply(stage, inputs_of(stage, 3, dtype=dtype))
    if stage.kind in ("score", "fuse"):
        assert result.dtype == torch.float64
        assert result.shape == (3,)
    else:
        assert result.dtype == dtype
        assert result.shape[0] == 3


@every_stage
def test_float32_is_near_float64(name: str) -> None:
    stage = fit(build(name))
    if moves_images(stage):
        pytest.skip("the network is in float32")
    precise = inputs_of(stage, 6, dtype=torch.float64)
    single = inputs_of(stage, 6, dtype=torch.float32)
    expected = apply(stage, precise, last_layer(name, torch.float64))
    torch.testing.assert_close(apply(stage, single).double(), expected.double(), rtol=1e-4, atol=1e-5)


@every_stage
@pytest.mark.parametrize("settings", ["default", "other"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_odd_rows_have_finite_results(name: str, settings: str, dtype: torch.dtype) -> None:
    stage = fit(build(name, **({} if settings == "default" else settings_of(name))))
    one_hot = torch.zeros(CHANNELS)
    one_hot[3] = 5
    negative, ones = -random_of(CHANNELS, seed=6).abs() - 0.1, torch.ones(CHANNELS)
    features = torch.stack([torch.zeros(CHANNELS), negative, -ones, ones, one_hot]).to(dtype)
    features = torch.cat([features, 1e4 * features, 1e-6 * features])
    if moves_images(stage):
        inputs: Activations | Tensor = torch.stack([torch.zeros(3, 6, 6), torch.ones(3, 6, 6), -torch.ones(3, 6, 6)])
    elif stage.kind == "pool":
        maps = torch.stack([features, features], 2)
        statistics = stage.statistics()
        inputs = summarise(maps.relu() if "entropy_paper" in statistics else maps, torch.zeros(15, CLASSES), statistics)
    else:
        inputs = features[:, 2:5] if stage.kind == "fuse" else features
    assert apply(stage, inputs).isfinite().all()


@every_stage
def test_results_carry_no_graph_without_grad(name: str) -> None:
    stage = fit(build(name))
    inputs = inputs_of(stage, 3)
    with torch.no_grad():
        quiet = apply(stage, inputs)
    assert not quiet.requires_grad
    torch.testing.assert_close(apply(stage, inputs), quiet, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in NET.parameters())


@pytest.mark.parametrize("name", sorted(n for n, s in REGISTRY.items() if s.kind in ("pool", "shape", "head")))
def test_gradients_reach_through(name: str) -> None:
    """ODIN and AdaSCALE differentiate everything up to the logits."""
    stage = fit(build(name))
    if stage.kind == "pool":
        maps = random_of(3, CHANNELS, 2, 2, seed=8).relu().requires_grad_()
        source, result = maps, stage(summarise(maps, torch.zeros(3, CLASSES), stage.statistics()))
    else:
        source = torch.cat([random_of(2, CHANNELS, seed=8), torch.zeros(1, CHANNELS)]).requires_grad_()
        result = apply(stage, source)
    (gradient,) = torch.autograd.grad(result.sum(), source)
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


# -- exporting ---------------------------------------------------------------------------------------


class Exported(nn.Module):
    """A stage and the classifier that it reads, as one module from tensors to a tensor."""

    def __init__(self, stage: Stage, head: nn.Module) -> None:
        super().__init__()
        self.stage = stage
        self.head = head

    def forward(self, *tensors: Tensor) -> Tensor:
        inputs = Activations(*tensors) if self.stage.kind == "pool" else tensors[0]
        return apply(self.stage, inputs, Classifier(self.head))


@pytest.mark.filterwarnings("ignore:.*get_attr.* Node")  # torch 2.6, of its own work
@pytest.mark.parametrize("name", sorted(n for n, s in REGISTRY.items() if not moves_images(s.__new__(s))))
def test_exports_with_a_dynamic_batch(name: str) -> None:
    stage = fit(build(name))
    module = Exported(stage, last_layer(name).module).eval()
    example = tuple(parts(inputs_of(stage, 3)))
    batch = torch.export.Dim("batch", max=1 << 20)  # without a limit, torch 2.6 asks whether it is the largest integer
    with torch.no_grad():
        program = torch.export.export(
            module, example, dynamic_shapes=(tuple({0: batch} for _ in example),), strict=False
        )
        for count in (1, 2, 40):
            inputs = inputs_of(stage, count, seed=9)
            result = program.module()(*parts(inputs))
            torch.testing.assert_close(result, apply(stage, inputs), rtol=1e-6, atol=1e-6)
