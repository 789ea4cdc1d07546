"""The graph of a model's calls, and parts of it as functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from davis.tracing import BATCHES, PerImage, Ref, Replay, Trace, TracingError, leaves, merge, substitute


class Function(nn.Module):
    """A module around a function of its one linear layer and the images."""

    def __init__(self, function: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.function = function

    def forward(self, images: Tensor) -> Tensor:
        return self.function(self.layer, images)


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def traced(function: Callable[[nn.Linear, Tensor], Tensor]) -> tuple[Function, tuple[Trace, Trace], int]:
    model = Function(function)
    (first, output), (second, _) = (Trace.record(model, noise(batch, 6)) for batch in BATCHES)
    assert isinstance(output, Tensor)
    return model, (first, second), first.ref(output).index


REPLAYED = {
    "parameters": lambda layer, x: layer(x),
    "two paths": lambda layer, x: layer(x).tanh() * x + x,
    "in place": lambda layer, x: layer(x).relu_().add_(1),
    "in place by operator": lambda layer, x: x.clone().__iadd__(layer(x)),
    "in place by keyword": lambda layer, x: F.relu(layer(x), inplace=True) * 2,
    "batch size in a view": lambda layer, x: layer(x).view(x.shape[0], 2, 3).transpose(1, 2).reshape(len(x) * 3, 2),
    "several outputs": lambda layer, x: torch.cat(layer(x).chunk(3, dim=1)[::-1], dim=1),
    "named outputs": lambda layer, x: layer(x).max(dim=1, keepdim=True).values + x,
    "made inside": lambda layer, x: x + torch.ones(len(x), 6) * torch.arange(6),
    "weights transformed": lambda layer, x: x @ F.normalize(layer.weight).T,
    "index": lambda layer, x: layer(x)[:, 1:4],
    "index by batch": lambda layer, x: layer(x)[: x.size(0)] + 1,
}


@pytest.mark.parametrize("function", REPLAYED.values(), ids=REPLAYED.keys())
@pytest.mark.parametrize("batch", [1, 2, 5])
def test_replay_repeats_the_calls_for_any_batch(function, batch):
    model, traces, end = traced(function)
    replay = Replay(model, traces, 0, end)
    images = noise(batch, 6) + 3
    kept = images.clone()
    torch.testing.assert_close(replay(images), model(images), rtol=0, atol=0)
    assert torch.equal(images, kept)


def test_replay_reads_parameters_as_they_are_now():
    model, traces, end = traced(lambda layer, x: layer(x) * 2)
    replay = Replay(model, traces, 0, end)
    model.layer.weight.data.mul_(3)
    model.layer.bias = nn.Parameter(torch.ones(6))
    assert torch.equal(replay(noise(4, 6)), model(noise(4, 6)))
    model.double()
    assert torch.equal(replay(noise(4, 6).double()), model(noise(4, 6).double()))


def test_replay_is_differentiable():
    model, traces, end = traced(lambda layer, x: layer(x).relu_().square())
    images = noise(3, 6).requires_grad_()
    (replayed,) = torch.autograd.grad(Replay(model, traces, 0, end)(images).sum(), images)
    (expected,) = torch.autograd.grad(model(images).sum(), images)
    assert torch.equal(replayed, expected)


def test_replay_refuses_what_depends_on_the_images_out_of_sight():
    model, traces, end = traced(lambda layer, x: x * float(x.sum()))
    with pytest.raises(TracingError, match="changes from"):
        Replay(model, traces, 0, end)
    model, traces, end = traced(lambda layer, x: layer(x) + torch.frombuffer(bytearray(24), dtype=torch.float32))
    with pytest.raises(TracingError, match="outside torch"):
        Replay(model, traces, 0, end)


def test_narrows_are_what_every_path_crosses():
    def function(layer, x):
        stem = layer(x)
        left, right = stem.relu(), stem.tanh()
        return (left + right).exp()

    _, (trace, _), end = traced(function)
    assert [trace.nodes[index].name for index in trace.narrows(end)] == ["", "linear", "add", "exp"]
    assert [trace.nodes[index].name for index in trace.ancestors(end)] == ["", "linear", "relu", "tanh", "add", "exp"]


def test_a_write_in_place_is_a_new_state_and_the_old_value_is_kept():
    _, (trace, _), end = traced(lambda layer, x: layer(x).relu_())
    before, after = (trace.nodes[index] for index in trace.ancestors(end)[1:])
    assert before.identity == after.identity
    assert before.overwritten
    assert before.value.min() < 0 <= after.value.min()
    assert trace.modules_returning(after.index) == ["", "layer"]  # read at the end, the layer's output is this too
    assert trace.modules_returning(before.index) == []


def test_recording_leaves_no_hook_even_when_the_model_fails():
    def fail(layer, x):
        raise RuntimeError("no")

    model = Function(fail)
    with pytest.raises(RuntimeError, match="no"):
        Trace.record(model, noise(2, 6))
    assert not any(module._forward_hooks for module in model.modules())


def test_merge_tells_what_follows_the_batch():
    assert merge((2, 7, [4, "a"], {"k": None}), (3, 7, [6, "a"], {"k": None})) == (
        PerImage(1),
        7,
        [PerImage(2), "a"],
        {"k": None},
    )
    assert merge(slice(None, 2), slice(None, 3)) == slice(None, PerImage(1))
    for pair in [(2, 4), (0.5, 0.25), (True, False), ((1,), (1, 1)), (2, 3.0)]:
        with pytest.raises(TracingError):
            merge(*pair)


def test_structures():
    nested = {"a": (1, [Ref(2)]), "b": slice(Ref(0), None)}
    assert list(leaves(nested, Ref)) == [Ref(2), Ref(0)]
    assert substitute(nested, lambda ref: ref.index, Ref) == {"a": (1, [2]), "b": slice(0, None)}
