"""Watching a model run: the graph of its torch calls, and parts of that graph as functions."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

BATCHES = (2, 3)  # of the two probes: an integer that follows the batch is told from one that does not
KEPT = 2**27  # elements of recent results kept alive: the last map is always recent, early ones are large
IN_PLACE, HIDDEN = -1, -2  # a tensor came from a write to the call's first argument; from code not seen
ADVICE = "; if it has one, pass tap= and head=, and after= and neck= where it needs them"
ENTRY = -1  # stands for the tensor that a replay is given


class TracingError(ValueError):
    """The model cannot be read by watching it; the message says why, of "it"."""


@dataclass(frozen=True)
class Ref:
    """Stands for a recorded tensor among the arguments of a call."""

    index: int


PLAIN = int | float | complex | str | torch.dtype | torch.device | Ref  # compared by value between two traces


@dataclass(frozen=True)
class PerImage:
    """Stands for an integer that is this many times the batch size."""

    factor: int


@dataclass(frozen=True, eq=False)
class Call:
    """One torch call; its tensors are replaced by Refs."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def name(self) -> str:
        name = str(self.function.__name__)
        if name == "__get__":  # a property such as Tensor.T
            return str(getattr(self.function, "__self__", self.function).__name__)
        return name


@dataclass(eq=False)
class Node:
    """One state of one tensor: a write in place makes a new node of the same tensor."""

    index: int
    reference: Callable[[], Tensor | None]
    identity: int  # the first node of the same tensor
    version: int
    call: Call | None  # None: not made by a recorded call
    position: int  # among the tensors that the call returned
    parents: tuple[int, ...]
    live: bool  # depends on the images
    overwritten: bool = False
    copy: Tensor | None = None  # what it held before it was overwritten

    @property
    def value(self) -> Tensor | None:
        """What it held when it was made, or None if that is gone."""
        return self.copy if self.overwritten else self.reference()

    @property
    def name(self) -> str:
        return "" if self.call is None else self.call.name


class Trace(TorchFunctionMode):
    """Every torch call of one forward pass, and which module returned what. Node 0 is the images."""

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.returned: dict[str, int] = {}  # module name -> node that its last call returned
        self._newest: dict[int, int] = {}  # id of a tensor -> its newest node
        self._recent: deque[Tensor] = deque()
        self._kept = 0
        self.batch = len(images)
        self._add(images, None, 0, ()).live = True

    @classmethod
    def record(cls, model: nn.Module, images: Tensor) -> tuple[Trace, object]:
        """The trace of a model on images, and what the model returned."""
        trace = cls(images)
        watched = {
            name: module for name, module in model.named_modules() if not isinstance(module, torch.jit.ScriptModule)
        }
        hooks = [module.register_forward_hook(trace._watch(name)) for name, module in watched.items()]
        try:
            with trace:
                return trace, model(images)
        finally:
            for hook in hooks:
                hook.remove()

    def _watch(self, name: str) -> Callable[[nn.Module, object, object], None]:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor):
                node = self.nodes[self.ref(output).index]
                if not node.live and not node.parents:  # perhaps made by code that torch's calls do not show
                    read = tuple(self.ref(tensor).index for tensor in leaves(inputs, Tensor))
                    node = self._add(output, Call(type(module), (), {}), HIDDEN, read, node.identity)
                self.returned[name] = node.index

        return hook

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        call = Call(func, substitute(args, self.ref, Tensor), substitute(kwargs, self.ref, Tensor))
        read = tuple(dict.fromkeys(ref.index for ref in leaves((call.args, call.kwargs), Ref)))
        first = args[0] if args and isinstance(args[0], Tensor) else None
        before = first.detach().clone() if first is not None and _may_write(call) else None
        result = func(*args, **kwargs)
        for node in [self.nodes[index] for index in read]:
            tensor = node.reference()
            if tensor is not None and _version(tensor) != node.version:
                node.overwritten, node.copy = True, before if tensor is first else None
                self._add(tensor, call, IN_PLACE if tensor is first else HIDDEN, read, node.identity)
        for position, tensor in enumerate(leaves(result, Tensor)):
            if self._known(tensor) is None:
                self._add(tensor, call, position, read)
        return result

    def ref(self, tensor: Tensor) -> Ref:
        """The newest node of a tensor; a new one if it was never seen, or was written to through a view."""
        node = self._known(tensor)
        if node is None:
            node = self._add(tensor, None, 0, ())
        elif node.version != _version(tensor):
            node.overwritten = True
            node = self._add(tensor, Call(Tensor.copy_, (), {}), HIDDEN, (node.index,), node.identity)
        return Ref(node.index)

    def _known(self, tensor: Tensor) -> Node | None:
        index = self._newest.get(id(tensor))
        # An id is used again once its tensor is gone, so the node must still point at this one.
        return self.nodes[index] if index is not None and self.nodes[index].reference() is tensor else None

    def _add(
        self, tensor: Tensor, call: Call | None, position: int, parents: tuple[int, ...], identity: int | None = None
    ) -> Node:
        index = len(self.nodes)
        live = any(self.nodes[parent].live for parent in parents)
        identity = index if identity is None else identity
        node = Node(index, weakref.ref(tensor), identity, _version(tensor), call, position, parents, live)
        self.nodes.append(node)
        self._newest[id(tensor)] = index
        self._recent.append(tensor)
        self._kept += tensor.numel()
        while self._kept > KEPT and len(self._recent) > 1:
            self._kept -= self._recent.popleft().numel()
        return node

    def ancestors(self, index: int) -> list[int]:
        """The nodes between the images and this one, both included, in the order they were made."""
        found, waiting = {index}, [index]
        while waiting:
            for parent in self.nodes[waiting.pop()].parents:
                if self.nodes[parent].live and parent not in found:
                    found.add(parent)
                    waiting.append(parent)
        return sorted(found)

    def narrows(self, index: int) -> list[int]:
        """The ancestors that every path from the images to this node crosses, in order.

        Nodes are numbered as they are made, so a path avoids a node exactly when one of its
        edges jumps over the node's number.
        """
        path = self.ancestors(index)
        furthest = {node: node for node in path}
        for node in path:  # in rising order: the last write is the furthest child
            furthest.update((parent, node) for parent in self.nodes[node].parents if parent in furthest)
        narrow, reach = [], 0
        for node in path:
            if reach <= node:
                narrow.append(node)
            reach = max(reach, furthest[node])
        return narrow

    def modules_returning(self, index: int) -> list[str]:
        """The modules whose output, read when the pass has ended, is this node; the outermost first."""
        node = self.nodes[index]
        if node.overwritten:
            return []
        names = [name for name, seen in self.returned.items() if self.nodes[seen].identity == node.identity]
        # Prefer the module that returned this very state to one whose output was written over later.
        return sorted(names, key=lambda name: (self.returned[name] != index, name.count(".")))


class Replay:
    """Recorded calls from one node to another as a function: parameters live, any batch size.

    ``enter`` makes the first node from the given tensor, ``leave`` finishes the last one.
    """

    def __init__(
        self,
        model: nn.Module,
        traces: tuple[Trace, Trace],
        start: int,
        end: int,
        *,
        enter: Call | None = None,
        leave: Call | None = None,
    ) -> None:
        first, second = traces
        owners = {id(tensor): place for tensor, place in _attributes(model)}
        value = first.nodes[start].reference()
        self.dtype = None if value is None else value.dtype
        self.leaves: dict[int, Tensor | tuple[nn.Module, str]] = {}
        self.steps: list[tuple[int, Call, int]] = []
        for index in _needed(first, start, end):
            node, twin = first.nodes[index], second.nodes[index]
            if node.call is None:
                tensor = node.reference()
                if tensor is None or tensor is not twin.reference():
                    raise TracingError(f"near its last layer a value comes from outside torch{ADVICE}")
                self.leaves[index] = owners.get(id(tensor), tensor)
            elif node.position == HIDDEN or twin.call is None or twin.name != node.name:
                raise TracingError(f"its call of {node.name} near the last layer cannot be repeated{ADVICE}")
            else:
                args, kwargs = merge((node.call.args, node.call.kwargs), (twin.call.args, twin.call.kwargs))
                self.steps.append((index, Call(node.call.function, args, kwargs), node.position))
        self._start = start if enter is None else ENTRY
        if enter is not None:
            self.steps.insert(0, (start, enter, 0))
        if leave is not None:
            self.steps.append((len(first.nodes), leave, 0))

    @property
    def text(self) -> str:
        """The names of the calls, in order."""
        return ", ".join(call.name.strip("_") for _, call, _ in self.steps)

    def __call__(self, tensor: Tensor) -> Tensor:
        values = {self._start: tensor}
        cast = tensor.dtype != self.dtype  # features of a half precision model are in float32
        for index, leaf in self.leaves.items():
            value = getattr(*leaf) if isinstance(leaf, tuple) else leaf
            values[index] = value.to(tensor.dtype) if cast and value.is_floating_point() else value

        def resolve(item: Ref | PerImage | torch.dtype) -> Any:
            if isinstance(item, Ref):
                return values[item.index]
            if isinstance(item, PerImage):
                return item.factor * len(tensor)
            return tensor.dtype if item == self.dtype else item

        index = self._start
        for index, call, position in self.steps:
            args = substitute(call.args, resolve, (Ref, PerImage, torch.dtype))
            kwargs = substitute(call.kwargs, resolve, (Ref, PerImage, torch.dtype))
            if position == IN_PLACE:  # what is written to may be the caller's
                args = (args[0].clone(), *args[1:])
            result = call.function(*args, **kwargs)
            values[index] = args[0] if position == IN_PLACE else list(leaves(result, Tensor))[position]
        return values[index]


def leaves(structure: Any, kind: type | tuple[type, ...]) -> Iterator[Any]:
    """The items of a kind inside nested tuples, lists and mappings, in order."""
    if isinstance(structure, kind):
        yield structure
    elif isinstance(structure, Mapping):
        yield from leaves(tuple(structure.values()), kind)
    elif isinstance(structure, tuple | list):
        for item in structure:
            yield from leaves(item, kind)
    elif isinstance(structure, slice):
        yield from leaves((structure.start, structure.stop, structure.step), kind)


def substitute(structure: Any, replace: Callable[[Any], Any], kind: type | tuple[type, ...]) -> Any:
    """The same nested structure with every item of a kind replaced."""
    if isinstance(structure, kind):
        return replace(structure)
    if isinstance(structure, dict):
        return {key: substitute(item, replace, kind) for key, item in structure.items()}
    if isinstance(structure, tuple | list):
        items = [substitute(item, replace, kind) for item in structure]
        return items if isinstance(structure, list) else tuple(items)
    if isinstance(structure, slice):
        return slice(*substitute((structure.start, structure.stop, structure.step), replace, kind))
    return structure


def merge(first: Any, second: Any) -> Any:
    """Two traces' arguments as one, with PerImage where an integer followed the batch size."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return {key: merge(item, second[key]) for key, item in first.items()}
    if isinstance(first, tuple | list) and isinstance(second, tuple | list) and len(first) == len(second):
        items = [merge(*pair) for pair in zip(first, second, strict=True)]
        return items if isinstance(first, list) else tuple(items)
    if isinstance(first, slice) and isinstance(second, slice):
        return slice(*merge((first.start, first.stop, first.step), (second.start, second.stop, second.step)))
    if first is second or (isinstance(first, PLAIN) and type(first) is type(second) and first == second):
        return first
    small, large = BATCHES
    if type(first) is int and type(second) is int and first * large == second * small:
        return PerImage(first // small)
    raise TracingError(f"an argument near the last layer changes from {first!r} to {second!r} with the images{ADVICE}")


def _needed(trace: Trace, start: int, end: int) -> list[int]:
    """The nodes to compute for ``end`` once ``start`` is known, in order."""
    found, waiting = set[int](), [end]
    while waiting:
        index = waiting.pop()
        if index != start and index not in found:
            found.add(index)
            waiting += trace.nodes[index].parents
    return sorted(found)


def _may_write(call: Call) -> bool:
    name = call.name
    writes = (name.endswith("_") and not name.endswith("__")) or name.startswith("__i") or name == "__setitem__"
    return writes or bool(call.kwargs.get("inplace")) or "out" in call.kwargs


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _attributes(model: nn.Module) -> Iterator[tuple[Tensor, tuple[nn.Module, str]]]:
    """Every parameter and buffer, and where it lives: ``model.to`` may put another in its place."""
    for module in model.modules():
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            yield tensor, (module, name)
