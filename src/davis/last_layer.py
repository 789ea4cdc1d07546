"""The last layer of a classifier, found in the graph of its calls: one linear layer, or several that are averaged."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from davis.tracing import ADVICE, ENTRY, Call, Node, PerImage, Ref, Replay, Trace, TracingError, leaves
from davis.types import Classifier, JointHead, Logits, double

LINEAR_CALLS = {"linear", "conv1d", "conv2d", "conv3d", "matmul", "__matmul__", "mm", "addmm"}
VIEWING = {"view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze"}
ORDERING = {"permute", "transpose", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "T", "mT"}
COPYING = {"contiguous", "clone", "detach", "to", "type", "type_as", "float", "double", "half", "bfloat16"}
RESHAPING = VIEWING | ORDERING | COPYING  # they keep every value and at most move it
JOINING = {"add", "radd", "iadd", "sub", "mul", "rmul", "imul", "div", "truediv", "neg", "stack", "mean", "sum", "lerp"}
AFFINE = LINEAR_CALLS | RESHAPING | JOINING | {"batch_norm", "dropout"}  # each in what it reads first, or in both
Found = tuple[str, int, JointHead | None]


def find_last_layer(model: nn.Module, traces: tuple[Trace, Trace], logits: Logits) -> Found:
    """The name of what gave the logits, the node that it read, and the joint head where it is one."""
    trace = traces[0]
    linear = [node for node in reversed(trace.nodes) if node.name in LINEAR_CALLS]
    for node in linear:
        value = node.value
        if value is None or value.numel() != logits.numel():
            continue
        if torch.equal(value.reshape(logits.shape).to(logits.dtype), logits):
            read = [parent for parent in node.parents if trace.nodes[parent].live]
            owner = owner_of(model, trace, node)
            if len(read) != 1:
                raise TracingError(f"code that torch's calls do not show leads to its last layer{ADVICE}")
            if owner is None:
                raise TracingError(f"no nn.Linear or 1x1 convolution owns the weights of its last layer{ADVICE}")
            return owner, read[0], None
    joint = _find_joint(model, traces, logits)
    if joint is not None:
        return joint
    raise TracingError(_why_not(model, trace, logits))


def _why_not(model: nn.Module, trace: Trace, logits: Logits) -> str:
    """What the output is, where it is not that of a last linear layer."""
    path = [trace.nodes[index] for index in trace.ancestors(trace.ref(logits).index)]
    linear = [(node, owner) for node in path if node.name in LINEAR_CALLS and (owner := owner_of(model, trace, node))]
    as_large = [name for node, name in linear if node.value is not None and node.value.numel() == logits.numel()]
    owners = list(dict.fromkeys(as_large))
    if len(owners) > 1:
        return (
            f"its logits join those of several last layers ({', '.join(owners)}); "
            "they can be read where all read one average and are added"
        )
    last = owners or [name for _, name in linear[-1:]]
    bare = "" if owners else "; or it was made without a classifier (in timm num_classes=, --num-classes)"
    follows = f" (something follows {last[0]!r}: softmax, scaling, pooling{bare})" if last else ""
    return (
        f"its output is not what a last linear layer returned{follows}; "
        "let it return the logits of its last nn.Linear or 1x1 convolution"
    )


def owner_of(model: nn.Module, trace: Trace, node: Node) -> str | None:
    """The name of the linear module that made a node."""
    linear: list[tuple[str, nn.Module]] = [
        (name, module) for name, module in model.named_modules() if Classifier(module).is_linear
    ]
    for name, _ in linear:
        if name in trace.returned and trace.nodes[trace.returned[name]].identity == node.identity:
            return name
    constants, waiting = set[int](), list(node.parents)
    while waiting:  # the weight itself, or what it was before a transpose
        parent = trace.nodes[waiting.pop()]
        if not parent.live:
            constants.add(id(parent.reference()))
            waiting += parent.parents
    for name, module in linear:
        if id(module.weight) in constants:
            return name
    return None


def _find_joint(model: nn.Module, traces: tuple[Trace, Trace], logits: Logits) -> Found | None:
    """Two or more linear layers between one place that all paths cross and the logits, and nothing bent between."""
    trace = traces[0]
    end = trace.ref(logits).index
    for start in reversed(trace.narrows(end)[:-1]):
        between = [node for node in map(trace.nodes.__getitem__, trace.ancestors(end)) if node.index > start]
        heads = [node for node in between if node.name in LINEAR_CALLS]
        if not all(node.name.strip("_") in AFFINE or node.name in AFFINE for node in between):
            return None
        if not heads:
            continue
        names = [owner_of(model, trace, node) for node in heads]
        value = trace.nodes[start].value
        if len(set(names)) < 2 or None in names or value is None:
            return None
        enter = Call(Tensor.reshape, (Ref(ENTRY), PerImage(1), *value.shape[1:]), {}) if value.ndim > 2 else None
        leave = Call(torch.flatten, (Ref(end), 1), {}) if logits.ndim > 2 else None
        replay = Replay(model, traces, start, end, enter=enter, leave=leave)
        features = value.flatten(1)
        if not _is_affine(replay, features):
            return None
        return " + ".join(dict.fromkeys(map(str, names))), start, _joint(replay, features.shape[1])
    return None


def _is_affine(function: Replay, features: Tensor) -> bool:
    """Whether a function of the features keeps sums: f(x + y) - f(0) is what x and y give alone."""
    x = double(features)
    y = 3 * x.flip(0).roll(1, 1) + x.abs().mean()
    both, one, other, zero = (function(each) for each in (x + y, x, y, torch.zeros_like(x)))
    return bool(
        (both + zero - one - other).abs().max() <= (1e-9 if x.dtype == torch.float64 else 1e-4) * both.abs().max()
    )


def _joint(replay: Replay, channels: int) -> JointHead:
    owned = [leaf for leaf in replay.leaves.values() if isinstance(leaf, tuple)]
    parts = list(dict.fromkeys(module for module, _ in owned))
    numbers = [float(n) for _, call, _ in replay.steps for n in leaves((call.args, call.kwargs), (int, float))]
    loose = [float(n) for leaf in replay.leaves.values() if isinstance(leaf, Tensor) for n in leaf.flatten().tolist()]
    return JointHead(replay, channels, parts, numbers + loose)
