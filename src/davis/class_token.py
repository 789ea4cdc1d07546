"""Vision transformers that classify by one class token: only for who asks for them, never found unasked.

The last block's patch tokens do not reach the logits; those that enter it do, through its attention. They are the map,
and the class token that leaves the block shows that the norm and the head after it are the model's own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from davis.discovery import Adapter, Token, find_tap, trace_twice
from davis.last_layer import LINEAR_CALLS, find_last_layer
from davis.tracing import ENTRY, Call, Ref, Replay, Trace, TracingError
from davis.types import Features, Images, Map

WORKING = LINEAR_CALLS | {"multi_head_attention_forward", "scaled_dot_product_attention", "bmm", "einsum"}  # in a block


def discover_class_token(model: nn.Module, images: Images) -> Adapter:
    """Find how a transformer in eval mode is read, for images of this shape, precision and device."""
    traces, logits = trace_twice(model, images, gradients=True)
    trace = traces[0]
    head, last, joint = find_last_layer(model, traces, logits)
    states, token = _token_read(trace, last)
    block = _block_output(trace, states[-1], last)
    start, stop = _patches(trace, states[0], token)
    entering = _last_that_reach(trace, [state for state in states if state < block], last, start, stop)
    cut = Call(patches, (Ref(entering), start, stop), {})
    spread = Call(repeated, (Ref(ENTRY), token + 1), {})
    features = trace.nodes[last].value
    leave = Call(torch.flatten, (Ref(last), 1), {}) if features is not None and features.ndim > 2 else None
    neck = Replay(model, traces, block, last, enter=spread, leave=leave)
    _check_alone(neck, trace.nodes[block].value, token)
    tap, source = find_tap(trace, entering)
    last_tap, last_source = find_tap(trace, block)
    return Adapter(
        tap,
        head,
        Replay(model, traces, source, entering, leave=cut),
        neck,
        joint,
        Token(last_tap, Replay(model, traces, last_source, block, leave=Call(row, (Ref(block), token), {}))),
    )


def patches(tokens: Tensor, start: int, stop: int) -> Map:
    """(batch, token, channel) as a map of its patches alone, (batch, channel, patch)."""
    return tokens[:, start:stop].transpose(1, 2)


def row(tokens: Tensor, index: int) -> Features:
    """One token of each image."""
    return tokens[:, index]


def repeated(features: Features, count: int) -> Tensor:
    """(batch, channel) as so many equal tokens, from which the model may take the one that it reads."""
    return features[:, None].expand(-1, count, -1)


def _token_read(trace: Trace, last: int) -> tuple[list[int], int]:
    """The states of all tokens that every path to the last layer crosses, and which token that layer reads."""
    narrow = trace.narrows(last)
    for index in reversed(narrow):
        tokens = trace.nodes[index].value
        if tokens is None or tokens.ndim != 3 or tokens.shape[1] < 2:
            continue
        for reader in (node for node in narrow if node > index):
            value = trace.nodes[reader].value
            if value is not None and value.flatten(1).shape == tokens[:, 0].shape:
                same = (tokens == value.flatten(1)[:, None]).all(-1).all(0).nonzero().flatten().tolist()
                if len(same) == 1:
                    return [node for node in narrow if node <= index and _shape(trace, node) == tokens.shape], same[0]
        break
    raise TracingError("its logits do not come from one class token; leave tokens= out")


def _shape(trace: Trace, index: int) -> torch.Size | None:
    value = trace.nodes[index].value
    return None if value is None else value.shape


def _block_output(trace: Trace, read: int, last: int) -> int:
    """The first state of the tokens after the last block: no layer lies between it and the one that is read."""
    path = trace.ancestors(last)
    layer = max((node for node in path if node < read and trace.nodes[node].name in WORKING), default=0)
    shape = _shape(trace, read)
    return next(node for node in trace.narrows(last) if layer < node <= read and _shape(trace, node) == shape)


def _patches(trace: Trace, first: int, token: int) -> tuple[int, int]:
    """From which to which the tokens are patches: before the first block only they depend on the image."""
    value = trace.nodes[first].value
    if value is None:
        raise TracingError("its tokens are gone once it has run")
    found = (value[1:] - value[:1]).abs().amax((0, 2)).nonzero().flatten().tolist()
    if not found or token in found or found != list(range(found[0], found[-1] + 1)):
        raise TracingError("its patches cannot be told from its class token where they are put together")
    return found[0], found[-1] + 1


def _check_alone(neck: Replay, tokens: Tensor | None, token: int) -> None:
    """The head must read the class token without the patches beside it."""
    if tokens is None:
        raise TracingError("what leaves its last block is gone once it has run")
    try:
        neck(row(tokens, token))
    except RuntimeError as error:
        raise TracingError(
            f"what stands between its last block and its head ({neck.text}) takes all tokens together, not the class "
            "token alone"
        ) from error


def _last_that_reach(trace: Trace, states: list[int], last: int, start: int, stop: int) -> int:
    """The last state whose patches have a say in what the last layer reads."""
    values = {state: trace.nodes[state].reference() for state in states}
    inputs = {state: value for state, value in values.items() if value is not None}
    features = trace.nodes[last].reference()
    if features is None or not inputs:
        raise TracingError("what it computes before its last layer is gone once it has run")
    weights = torch.randn(features.shape, generator=torch.Generator("cpu").manual_seed(0))
    weights = weights.to(features.device, features.dtype)
    gradients = torch.autograd.grad(features, list(inputs.values()), weights, allow_unused=True, materialize_grads=True)
    for state, gradient in reversed(list(zip(inputs, gradients, strict=True))):
        if gradient[:, start:stop].any():
            return state
    raise TracingError("no patch token is seen to reach its class token")
