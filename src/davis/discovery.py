"""Where a classifier averages its last map, found by watching it classify noise.

In the graph of recorded calls the last layer is the call that gave the logits. The pooled vector is a
place that every path to the last layer crosses and that holds the average of a map. No table of model
names is needed.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from davis.last_layer import LINEAR_CALLS, RESHAPING, find_last_layer, owner_of
from davis.positions import PICKING, is_averaging, origin_of, why_no_map
from davis.tracing import ADVICE, BATCHES, ENTRY, Call, PerImage, Ref, Replay, Trace, TracingError, substitute
from davis.types import Images, Logits, double

IDENTITY = "(identity)"
CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of the largest value; half precision: 3e-2


@dataclass(frozen=True)
class Token:
    """Where the class token of the last block is had: ``after(output of tap)``."""

    tap: str
    after: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Adapter:
    """How a model is read: ``head(neck(mean of after(output of tap)))`` are its logits."""

    tap: str  # "" is the images themselves
    head: str  # of a joint head: its layers' names; IDENTITY where the logits themselves are the average of a map
    after: Callable[[Tensor], Tensor] | None = None
    neck: Callable[[Tensor], Tensor] | None = None
    joint: nn.Module | None = None  # the head, where it is no single module of the model
    token: Token | None = None  # then it is head(neck(token)) that are the logits, and the map stands beside

    def layer(self, model: nn.Module) -> nn.Module:
        """The model's last layer."""
        return model.get_submodule(self.head) if self.joint is None else self.joint


def named_adapter(
    model: nn.Module,
    tap: str | None,
    head: str | None,
    after: Callable[[Tensor], Tensor] | None,
    neck: Callable[[Tensor], Tensor] | None,
) -> Adapter | None:
    """How a model is read whose places are named; None where nothing is, and all is to be found."""
    if tap is None and head is None:
        if after is not None or neck is not None:
            raise ValueError("after= and neck= need tap= and head=; pass all that apply, or none to have them found")
        return None
    if tap is None or head is None:
        missing, given = ("tap", f"head={head!r}") if tap is None else ("head", f"tap={tap!r}")
        raise ValueError(f"{given} was given without {missing}=; pass both, or none to have them found")
    names = dict(model.named_modules())
    for option, name in (("tap", tap), ("head", head)):
        if not isinstance(name, str):
            raise TypeError(
                f"{option}= takes the name of a module, such as 'layer4'; a {type(name).__name__} was given"
            )
        if name not in names or (option == "head" and not name):
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "its modules are listed by model.named_modules()"
            raise ValueError(f"{option}={name!r} is no module of {type(model).__name__}; {hint}")
    return Adapter(tap, head, after, neck)


def logits_of(output: object) -> Logits:
    """The logits in what a model returned: the tensor itself, or the "logits" of a mapping."""
    logits = output.get("logits") if isinstance(output, Mapping) else output
    if isinstance(logits, Tensor):
        return logits
    given = f"a {type(output).__name__}" + (f" with {sorted(map(str, output))}" if isinstance(output, Mapping) else "")
    raise TypeError(f"the model returned {given}; it must return a tensor of logits, or a mapping with 'logits'")


def discover(model: nn.Module, images: Images) -> Adapter:
    """Find how a model in eval mode is read, for images of this shape, precision and device."""
    traces, logits = trace_twice(model, images)
    if not logits.isfinite().all():
        raise TracingError(
            "it gives NaN or infinity for noise; its weights are broken, or too large for their precision"
        )
    trace = traces[0]
    try:
        head, last, joint = find_last_layer(model, traces, logits)
    except TracingError:
        if (adapter := _averaged_logits(model, traces, logits)) is not None:
            return adapter
        raise
    pooling = _find_pooling(model, traces, last)
    tap, source = find_tap(trace, pooling.map)
    after = _after(model, traces, source, pooling)
    return Adapter(tap, head, after, _neck(model, traces, pooling.pooled, last), joint)


def _averaged_logits(model: nn.Module, traces: tuple[Trace, Trace], logits: Logits) -> Adapter | None:
    """How a model is read whose logits are the average of a map with one channel a class, as in SqueezeNet.

    A linear layer that made this map as it is could as well stand behind the average, and is taken for the head. Else
    the head changes nothing.
    """
    trace = traces[0]
    end = trace.ref(logits).index
    try:
        pooling = _find_pooling(model, traces, end)
        if _neck(model, traces, pooling.pooled, end) is not None or _ndim(trace, origin_of(trace, pooling.map)) < 3:
            return None
    except TracingError:
        return None
    maker = trace.nodes[pooling.map]
    read = [parent for parent in maker.parents if trace.nodes[parent].live]
    head = owner_of(model, trace, maker) if maker.name in LINEAR_CALLS and len(read) == 1 else None
    identity = None
    if head is None:
        identity = nn.Linear(logits.shape[1], logits.shape[1], bias=False, device=logits.device, dtype=logits.dtype)
        nn.init.eye_(identity.weight)
    else:
        axis = _ndim(trace, read[0]) - 1 if isinstance(model.get_submodule(head), nn.Linear) else 1
        pooling = _Pooling(read[0], pooling.pooled, axis)
    tap, source = find_tap(trace, pooling.map)
    if not tap and head is None:  # an average of the images themselves classifies nothing
        return None
    return Adapter(tap, head or IDENTITY, _after(model, traces, source, pooling), None, identity)


def trace_twice(model: nn.Module, images: Images, *, gradients: bool = False) -> tuple[tuple[Trace, Trace], Logits]:
    """The calls of a model on noise in two batch sizes, and the logits of the first; with gradients, in a graph."""
    (trace, logits), (twin, _) = (_trace(model, images, batch, gradients) for batch in BATCHES)
    if len(trace.nodes) != len(twin.nodes):  # some models compute a table on their first run and keep it
        trace, logits = _trace(model, images, BATCHES[0], gradients)
    return (trace, twin), logits


def _trace(model: nn.Module, images: Images, batch: int, gradients: bool) -> tuple[Trace, Logits]:
    # Normal tensors even inside inference_mode: only they count the writes to them.
    with torch.inference_mode(False), torch.set_grad_enabled(gradients):
        generator = torch.Generator("cpu").manual_seed(batch)
        noise = torch.randn((batch, *images.shape[1:]), generator=generator, device="cpu", dtype=torch.float32)
        noise = noise.to(images.device, images.dtype)
        trace, output = Trace.record(model, noise.requires_grad_().clone() if gradients else noise)
        return trace, logits_of(output)


@dataclass(frozen=True)
class _Pooling:
    map: int
    pooled: int
    channel_axis: int


def _find_pooling(model: nn.Module, traces: tuple[Trace, Trace], last: int) -> _Pooling:
    """The last map that is averaged on the way to the last layer, and its average."""
    trace = traces[0]
    path, narrow = trace.ancestors(last), trace.narrows(last)
    reasons = []
    for index in reversed(path):
        # The first place that holds the average: a later one may only look the same on noise.
        for pooled in (node for node in narrow if node > index):
            axis = _averaged_axis(traces, index, pooled)
            if axis is None or not _weighs_all(model, traces, index, pooled, axis):
                continue
            reason = why_no_map(trace, index, axis)
            if reason is None:
                return _widest(traces, _Pooling(index, pooled, axis), narrow)
            reasons.append(reason)
    raise TracingError(f"before its last layer it averages {reasons[0]}{ADVICE}" if reasons else _why_not(trace, path))


def _weighs_all(model: nn.Module, traces: tuple[Trace, Trace], index: int, pooled: int, axis: int) -> bool:
    """Whether the recorded calls take the average of anything: in a half, one token left out of many is not seen."""
    value = traces[0].nodes[index].value
    if value is None:
        return True
    generator = torch.Generator("cpu").manual_seed(0)
    probe = double(torch.randn(value.shape, generator=generator, device="cpu").to(value.device))
    try:
        average = Replay(model, traces, index, pooled)(probe).flatten(1)
    except (TracingError, RuntimeError):  # it cannot be repeated alone; what it gave on noise must do
        return True
    wanted = _mean(probe, axis)
    return bool((average - wanted).abs().max() <= 1e-5 * wanted.abs().max())


def _widest(traces: tuple[Trace, Trace], best: _Pooling, narrow: list[int]) -> _Pooling:
    """The pooling with its map taken from before any averaging in steps and any reshaping."""
    trace, index, pooled = traces[0], best.map, best.pooled
    while _weighs_alike(trace, index) or _is_rearranged(trace, index):
        read = [parent for parent in trace.nodes[index].parents if trace.nodes[parent].live]
        if len(read) != 1:
            break
        index = read[0]
        for candidate in (node for node in narrow if index < node <= pooled):
            axis = _averaged_axis(traces, index, candidate)
            wider = _ndim(trace, index) >= _ndim(trace, best.map)  # a grid says more than a list
            if axis is not None and wider and why_no_map(trace, index, axis) is None:
                best = _Pooling(index, candidate, axis)
                break
    return best


def _ndim(trace: Trace, index: int) -> int:
    value = trace.nodes[index].value
    return 0 if value is None else value.ndim


def _is_rearranged(trace: Trace, index: int) -> bool:
    """Whether a node is another only reshaped, and not shown as a module's output in this shape."""
    return trace.nodes[index].name in RESHAPING and not trace.modules_returning(index)


def _averaged_axis(traces: tuple[Trace, Trace], index: int, pooled: int) -> int | None:
    """The channel axis of a map whose average over all other axes is the pooled node, in both traces."""
    first, second = (_axes(trace, index, pooled) for trace in traces)
    return next((axis for axis in first if axis in second), None)


def _axes(trace: Trace, index: int, pooled: int) -> list[int]:
    if max(index, pooled) >= len(trace.nodes):
        return []
    values, average = trace.nodes[index].value, trace.nodes[pooled].value
    if values is None or average is None or values.ndim < 3 or average.ndim < 2 or not values.is_floating_point():
        return []
    if not len(values) == len(average) == trace.batch:  # else of windows, frames or crops that make up an image
        return []
    average = average.flatten(1)
    if values.shape[1:].numel() == average.shape[1]:
        # A map of one position equals its average, and so does much else: only an averaging call counts.
        node = trace.nodes[pooled]
        if not (is_averaging(node) and index in node.parents):
            return []
    tolerance = CLOSE.get(average.dtype, 3e-2) * average.abs().max()
    axes = [axis for axis in (1, values.ndim - 1) if values.shape[axis] == average.shape[1]]
    return [axis for axis in axes if (_mean(values, axis) - average).abs().max() <= tolerance]


def _mean(values: Tensor, channel_axis: int) -> Tensor:
    return values.movedim(channel_axis, 1).flatten(2).mean(2)


def _weighs_alike(trace: Trace, index: int) -> bool:
    """Whether a node averages with one weight for every position, so that the average of its averages is exact.

    Asked of the call itself in double precision: in a half, borders that count less are lost in the rounding.
    """
    node = trace.nodes[index]
    if not is_averaging(node) or node.call is None or len(node.parents) != 1:
        return False
    value = trace.nodes[node.parents[0]].value
    if value is None:
        return False
    with torch.inference_mode(False), torch.enable_grad():
        probe = torch.ones(value.shape, dtype=torch.float64, device=value.device, requires_grad=True)
        args, kwargs = substitute((node.call.args, node.call.kwargs), lambda _: probe, Ref)
        weights = torch.autograd.grad(node.call.function(*args, **kwargs).sum(), probe)[0]
    return bool((weights - weights.flatten()[0]).abs().max() <= 1e-9 * weights.abs().max())


def _why_not(trace: Trace, path: list[int]) -> str:
    """Why no average was found, from the calls between the last map and the last layer."""
    maps = [index for index in path if (value := trace.nodes[index].value) is not None and value.ndim >= 3]
    wide = [index for index in maps if (value := trace.nodes[index].value) is not None and min(value.shape[1:]) > 1]
    calls = [trace.nodes[index].name for index in path if wide and index > wide[-1]]
    names = ", ".join(dict.fromkeys(name.strip("_") for name in calls))
    if any("max" in name and name != "softmax" for name in calls):
        return f"it takes a maximum of its last map ({names}), not its average alone, so the average cannot be replaced"
    if any("attention" in name or name == "softmax" for name in calls):
        return f"attention picks from its last map ({names}), so there is no average that could be replaced"
    if any(name in PICKING for name in calls):
        return (
            f"its logits come from one class token ({names}): there is no map that is averaged, so there is "
            "nothing to pool; use a model with global average pooling, or ask for the patch tokens that enter its last "
            "block with tokens='class' (--tokens class), as most such models allow"
        )
    read = f", which reads the last map through {names}" if names else ""
    return f"no average of a map leads to its last layer{read}{ADVICE}"


def find_tap(trace: Trace, index: int) -> tuple[str, int]:
    """The module from whose output a map can be had, and the node of that output."""
    for source in reversed(trace.narrows(index)):
        names = [name for name in trace.modules_returning(source) if name]
        if names:
            return names[0], source
    if trace.nodes[0].overwritten:
        raise TracingError("it writes to its input, from which its last map is made; let it work on a copy")
    return "", 0


def _after(model: nn.Module, traces: tuple[Trace, Trace], source: int, pooling: _Pooling) -> Replay | None:
    """From the tap's output to the map as (batch, channel, *space)."""
    moved = Call(torch.movedim, (Ref(pooling.map), pooling.channel_axis, 1), {})
    replay = Replay(model, traces, source, pooling.map, leave=moved if pooling.channel_axis > 1 else None)
    return replay if replay.steps else None


def _neck(model: nn.Module, traces: tuple[Trace, Trace], pooled: int, last: int) -> Replay | None:
    """From the pooled features (batch, channel) to those that the last layer reads."""
    trace = traces[0]
    average, features = trace.nodes[pooled].value, trace.nodes[last].value
    if average is None or features is None:
        raise TracingError("what it computes after pooling is gone once it has run")
    names = {trace.nodes[index].name for index in trace.ancestors(last) if index > pooled}
    if names <= RESHAPING and torch.equal(average.flatten(1), features.flatten(1)):
        return None
    enter = Call(Tensor.reshape, (Ref(ENTRY), PerImage(1), *average.shape[1:]), {}) if average.ndim > 2 else None
    leave = Call(torch.flatten, (Ref(last), 1), {}) if features.ndim > 2 else None
    return Replay(model, traces, pooled, last, enter=enter, leave=leave)
