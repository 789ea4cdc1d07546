"""Whether what a classifier averages are the positions of one map: over anything else a maximum means little.

An average of views, frames, experts, chosen values or other averages leads to the logits too. So the values are
followed back, through every call that reads one live tensor and keeps its positions, to the call that put them
together.
"""

from __future__ import annotations

from torch import Size

from davis.last_layer import RESHAPING
from davis.tracing import Node, Trace

JOINED = {"stack", "cat", "concat", "concatenate", "hstack", "vstack", "dstack", "column_stack", "__setitem__"}
RANKED = {"topk", "sort", "kthvalue", "msort", "gather", "take_along_dim"}
EXTREME = {"amax", "amin", "max", "min", "median", "nanmedian", "quantile", "logsumexp"}
ACROSS = ("conv", "pool", "attention", "interpolate", "upsample", "lstm", "gru", "rnn", "matmul", "mm", "einsum", "fft")
PICKING = {"__getitem__", "select", "index_select", "narrow", "unbind", "split", "chunk", "take_along_dim", "gather"}
ONE_TOKEN = "one position that it picks from many, such as a class token"


def why_no_map(trace: Trace, index: int, channel_axis: int) -> str | None:
    """What is averaged, where it does not lie side by side in one map but was put together for the average.

    Views, branches, frames or members of an ensemble that are stacked have an average too, but the maximum over them
    is none over an image. Nor is that over the largest values of a map, or over averages.
    """
    value = trace.nodes[index].value
    if value is None:
        return None
    channels = value.shape[channel_axis]
    if value.shape[1:].numel() == channels:  # one position: nothing to tell apart
        return ONE_TOKEN if _is_picked(trace, trace.nodes[origin_of(trace, index)]) else None
    spread = value.movedim(channel_axis, 1).flatten(2)
    if bool((spread == spread[..., :1]).all()) and not bool((spread == spread[:1]).all()):  # else a network is dead
        return "one value that is repeated"
    origin = trace.nodes[origin_of(trace, index)]
    made, name = origin.value, origin.name.strip("_")
    if origin.name in RANKED or (name in EXTREME and _is_smaller(trace, origin)):
        return f"chosen values of a map, such as the largest ({name})"
    if origin.name in JOINED and not _joins_channels(trace, origin, channels):
        return f"several tensors put together ({name}), not the positions of one map"
    if made is None:
        return None
    if made.shape[1:].numel() == channels and (is_averaging(origin) or "pool" in name):
        return f"what is an average already ({name}), such as that of a frame or a view"
    if len(made) != trace.batch and made.ndim > 3:
        return f"several pictures for each image ({name}), such as frames or views"
    maker = trace.nodes[origin_of(trace, index, linear=False)]
    if maker.value is not None and _splits(maker.value.shape[1:], value.shape[1:], channels):
        return f"groups of the channels that there were ({maker.name}), such as those of several experts"
    return None


def origin_of(trace: Trace, index: int, *, linear: bool = True) -> int:
    """The node that put the values together, behind calls that move them, pick some, or change each by itself."""
    while len(read := [parent for parent in trace.nodes[index].parents if trace.nodes[parent].live]) == 1:
        node = trace.nodes[index]
        if not _keeps_positions(node, trace.nodes[read[0]]) or (node.name == "linear" and not linear):
            break
        index = read[0]
    return index


def _keeps_positions(node: Node, read: Node) -> bool:
    """Whether what is at a place comes from one place of what was read."""
    if node.name in RESHAPING | {"linear", "__getitem__", "select", "narrow", "index_select"}:
        return True
    if node.name in JOINED | RANKED or any(part in node.name for part in ACROSS):
        return False
    return node.value is not None and read.value is not None and node.value.shape == read.value.shape


def _splits(before: Size, after: Size, channels: int) -> bool:
    """Whether the channels come from more of them, all kept: of fewer numbers some were picked."""
    more = (size > channels and size % channels == 0 for size in before)
    return before.numel() == after.numel() and channels not in before and any(more)


def _is_smaller(trace: Trace, node: Node) -> bool:
    """Whether a node has less than what it was made from: of two tensors a maximum takes away nothing."""
    read = [trace.nodes[parent].value for parent in node.parents if trace.nodes[parent].live]
    return node.value is not None and any(value is not None and value.numel() > node.value.numel() for value in read)


def _is_picked(trace: Trace, node: Node) -> bool:
    """Whether a node is some of the positions that there were."""
    read = [trace.nodes[parent].value for parent in node.parents if trace.nodes[parent].live]
    lengths = [value.shape[1:].numel() for value in read if value is not None]
    return node.name in PICKING and node.value is not None and max(lengths, default=0) > node.value.shape[1:].numel()


def _joins_channels(trace: Trace, node: Node, channels: int) -> bool:
    """Whether tensors were put side by side along the channels, as in DenseNet."""
    parts = [trace.nodes[parent].value for parent in node.parents if trace.nodes[parent].live]
    if node.value is None or node.name == "stack" or any(part is None for part in parts):
        return False
    shapes = [part.shape for part in parts if part is not None]
    if any(len(shape) != node.value.ndim for shape in shapes):
        return False
    along = [axis for axis in range(node.value.ndim) if any(shape[axis] != node.value.shape[axis] for shape in shapes)]
    return len(along) == 1 and node.value.shape[along[0]] == channels


def is_averaging(node: Node) -> bool:
    """Whether a call is an average, or a sum that a division may follow."""
    return "avg_pool" in node.name or node.name in {"mean", "sum"}
