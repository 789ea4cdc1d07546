"""One step: SGD against torch.optim, the plan of an epoch, what a step counts and leaves."""

from __future__ import annotations

import copy
import shutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from davis.training.pictures import Data, cut, normalised, padded
from davis.training.recipe import Recipe
from davis.training.step import Step, capture, descend, draw
from davis.zoo import build

TINY = "resnet18(width=2)"


def recipe(**changes: object) -> Recipe:
    return Recipe(**{"arch": TINY, "dataset": "cifar10", "batch": 32, "epochs": 4} | changes)  # type: ignore[arg-type]


def made(data: Data, chosen: Recipe) -> Step:
    torch.manual_seed(0)
    return Step(build(chosen.arch, classes=data.classes, head=chosen.head).train(), data.train, chosen)


def test_descent_is_that_of_torch_optim() -> None:
    torch.manual_seed(0)
    ours = [torch.randn(4, 3), torch.randn(5)]
    theirs = [torch.nn.Parameter(tensor.clone()) for tensor in ours]
    momenta = [torch.zeros_like(tensor) for tensor in ours]
    optimizer = torch.optim.SGD(theirs, lr=0.1, momentum=0.9, weight_decay=0.01)
    for rate in (0.1, 0.1, 0.01):
        gradients = [torch.randn_like(tensor) for tensor in ours]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        descend(ours, gradients, momenta, rate=torch.tensor(rate), momentum=0.9, decay=0.01)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other.detach(), rtol=1e-6, atol=1e-7)


def test_a_gradient_in_another_layout() -> None:
    """A 1x1 convolution may get its gradient in strides of its own."""
    parameter = torch.randn(4, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    gradient, momentum, before = torch.randn(4, 3, 2, 2), torch.zeros_like(parameter), parameter.clone()
    descend([parameter], [gradient.clone()], [momentum], rate=torch.tensor(0.5), momentum=0.9, decay=0.0)
    torch.testing.assert_close(parameter, before - 0.5 * gradient)
    assert parameter.is_contiguous(memory_format=torch.channels_last)


def test_an_epoch_is_what_a_plain_loop_does(data: Data) -> None:
    chosen = recipe(seed=5)
    step = made(data, chosen)
    model = copy.deepcopy(step.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    step.begin(1)
    plan, framed, losses = draw(200, chosen, 1), padded(data.train.images, 4), []
    for number in range(step.steps):
        step()
        rows = slice(32 * number, 32 * number + 32)
        order, top, left, flip = (plan[name][rows] for name in ("order", "top", "left", "flip"))
        loss = F.cross_entropy(
            model(normalised(cut(framed, order, top, left, flip, (16, 16)))), data.train.labels[order]
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert step.steps == 6  # of 200 images; 8 are left out
    assert step.outcome()[0] == pytest.approx(sum(losses) / 6, rel=1e-4)
    for own, other in zip(step.model.state_dict().values(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-5)


def test_the_plan_depends_on_seed_and_epoch_alone() -> None:
    first, again = draw(100, recipe(seed=2), 3), draw(100, recipe(seed=2), 3)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert sorted(first["order"].tolist()) == list(range(100))
    assert (int(first["top"].min()), int(first["top"].max())) == (0, 8)
    for seed, epoch in ((2, 4), (3, 3)):
        assert not torch.equal(first["order"], draw(100, recipe(seed=seed), epoch)["order"])


def test_the_similarity_of_a_godin_head_does_not_decay(data: Data) -> None:
    step = made(data, recipe(head="godin", decay=0.5, rate=1e-12))
    momenta = step.momenta
    step.begin(0)
    before = {name: parameter.clone() for name, parameter in step.model.named_parameters()}
    step()
    weight, gate = momenta["head.weight"], momenta["head.gate.0.weight"]
    assert (weight - 0.5 * before["head.weight"]).norm() > 0.5 * weight.norm()
    other = made(data, recipe(head="godin", decay=0.0, rate=1e-12))
    other.begin(0)
    other()
    torch.testing.assert_close(weight, other.momenta["head.weight"])
    torch.testing.assert_close(gate - 0.5 * before["head.gate.0.weight"], other.momenta["head.gate.0.weight"])


class Calls(TorchDispatchMode):
    """The names of all operators, those of the backward pass too."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **kwargs or {})


WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "item", "is_nonzero", "equal", "_unique2", "lift_fresh"}
WAITING |= {"randperm", "randint", "rand", "bernoulli_", "native_dropout"}


@pytest.mark.parametrize("arch", ["resnet18(width=4)", "densenet101(depth=10, growth=4)", "mobilenet_v2"])
@pytest.mark.parametrize("head", ["linear", "godin"])
def test_nothing_in_a_step_keeps_it_out_of_a_graph(data: Data, arch: str, head: str) -> None:
    """No operator waits for the device, copies from the host or draws at random, and no buffer moves."""
    step = made(data, recipe(arch=arch, head=head))
    step.begin(0)
    step()
    places = {name: tensor.data_ptr() for name, tensor in step.tensors().items()}
    places |= {name: tensor.data_ptr() for name, tensor in step._plan.items()}
    with Calls() as calls:
        step()
    assert {"convolution_backward", "index", "_foreach_mul"} <= calls.names
    assert calls.names & WAITING == set()
    step.begin(1)
    step()
    assert places == {name: tensor.data_ptr() for name, tensor in (step.tensors() | step._plan).items()}


def test_too_few_images(data: Data) -> None:
    with pytest.raises(ValueError, match="200 images do not fill one batch of 256"):
        made(data, recipe(batch=256))


def test_a_checkpoint_of_another_network_is_refused(data: Data) -> None:
    step = made(data, recipe())
    tensors = {name: tensor.clone() for name, tensor in step.tensors().items()}
    tensors.pop("momentum.head.bias")
    with pytest.raises(ValueError, match=r"another network: 'momentum\.head\.bias'"):
        step.restore(tensors)


@pytest.mark.gpu
@pytest.mark.parametrize("arch", ["resnet18", "densenet101", "mobilenet_v2"])
def test_a_captured_step_is_an_eager_one(data: Data, arch: str) -> None:
    """Up to the order in which a GPU adds; the capture itself changes nothing."""
    found = []
    for captured in (False, True):
        chosen = recipe(arch=arch, rate=0.01)
        torch.manual_seed(0)
        pictures = data.train.to(torch.device("cuda"))
        step = Step(build(arch, classes=3).cuda().train(), pictures, chosen)
        before = {name: tensor.clone() for name, tensor in step.tensors().items()}
        take = capture(step) if captured else step
        assert all(torch.equal(before[name], tensor) for name, tensor in step.tensors().items())
        step.begin(0)
        for _ in range(step.steps):
            take()
        found.append(step.outcome()[0])
    assert found[0] == pytest.approx(found[1], rel=0.05)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it compiles first
def test_a_compiled_step_is_the_same_step(data: Data) -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on a CPU: none is here")
    chosen = recipe(rate=0.01)
    plain = made(data, chosen)
    torch.manual_seed(0)
    fused = Step(build(chosen.arch, classes=data.classes).train(), data.train, chosen, compiled=True)
    for step in (plain, fused):
        step.begin(0)
        for _ in range(3):
            step()
    assert fused.outcome()[0] == pytest.approx(plain.outcome()[0], rel=1e-5)
    for name, tensor in plain.tensors().items():
        torch.testing.assert_close(fused.tensors()[name], tensor, rtol=1e-3, atol=1e-5)
