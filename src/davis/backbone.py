"""A trained classifier, seen from the side: images go in, activations come out, nothing stays on it."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from davis.batches import check_kind, check_values, placement, split_batch
from davis.class_token import discover_class_token
from davis.discovery import Adapter, discover, logits_of, named_adapter
from davis.pooling import summarise
from davis.self_check import check_logits, check_model
from davis.tracing import Replay, TracingError
from davis.types import (
    Activations,
    Classifier,
    Features,
    Images,
    Labels,
    Logits,
    Map,
    at_least_float32,
    evaluating,
    undisturbed,
)

MODEL_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)  # what a wrong shape raises
Key = tuple[torch.Size, torch.dtype, torch.device]


_LOCKS: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
"""One lock for each model: its modes and hooks are shared by all that look at it."""


def _lock_of(model: nn.Module) -> threading.RLock:
    return _LOCKS.setdefault(model, threading.RLock())


class Backbone:
    """A trained classifier, seen from the side: ``images -> Activations``.

    ``tap`` names the module whose output is the last map, ``head`` the last layer; ``after`` finishes
    the map to (batch, channel, *space), ``neck`` is what the model does between pooling and the
    last layer. Without any of them they are found by watching the model run, once per image shape.
    On every batch ``head(neck(mean))`` must give the model's own logits. ``tokens="class"`` reads a
    transformer that has no such mean: the map is the patch tokens that enter its last block, and
    ``head(neck(class token))`` must give the logits.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    >>> backbone = Backbone(model)
    >>> backbone(torch.zeros(2, 3, 6, 6)).max.shape
    torch.Size([2, 8])
    >>> backbone.describe()["tap"], backbone.describe()["head"]
    ('1', '4')
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        tap: str | None = None,
        head: str | None = None,
        after: Callable[[Tensor], Tensor] | None = None,
        neck: Callable[[Tensor], Tensor] | None = None,
        tokens: Literal["class"] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"the model must be a torch.nn.Module; a {type(model).__name__} was given")
        if isinstance(model, torch.jit.ScriptModule) or type(model).__name__ == "OptimizedModule":
            raise TypeError(
                f"a {type(model).__name__} hides its layers and takes no hooks; "
                "give the model from before torch.compile or torch.jit"
            )
        if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
            raise ValueError(f"the weights of {type(model).__name__} are on the meta device; load them first")
        self.model = model
        self.image_shape: tuple[int, ...] | None = None
        self.map_shape: tuple[int, ...] | None = None
        self._given = named_adapter(model, tap, head, after, neck)
        self._class_token = _asks_for_class_token(tokens, given=self._given is not None)
        self._adapter = self._given  # of the last images seen
        self._adapters: dict[Key, Adapter] = {}  # that passed the self-check
        self._widths: tuple[int | None, int | None] = (None, None)  # channels that reach the head, classes
        self._said_one = False
        self._writes = False  # whether the model changes the images that it is given
        self._lock = _lock_of(model)

    @classmethod
    def wrap(cls, model: nn.Module | Backbone, images: Images | None = None) -> Backbone:
        """The model as a Backbone; with images, found and checked at once."""
        backbone = model if isinstance(model, Backbone) else cls(model)
        if images is not None:
            backbone(images, statistics=())
        return backbone

    def __call__(
        self, images: Images, *, statistics: Collection[str] = ("std", "max"), gradients: bool = False
    ) -> Activations:
        """The logits and channel statistics of a batch; with gradients, differentiable in the images."""
        images = self.prepare(images)
        with self._lock, evaluating(self.model):
            if not gradients:
                with torch.no_grad():
                    return self._read(images, statistics)[1]
            with torch.inference_mode(False), torch.enable_grad():
                return self._read(images.clone() if images.is_inference() else images, statistics)[1]

    def look(self, images: Images) -> tuple[Map, Logits]:
        """The last map of a batch itself and the logits: for who asks where, not how much."""
        images = self.prepare(images)
        with self._lock, evaluating(self.model), torch.no_grad():
            activation_map, activations = self._read(images, ())
            return activation_map, activations.logits

    def stream(
        self, batches: Iterable[object], *, statistics: Collection[str] = ("std", "max")
    ) -> Iterator[tuple[Activations, Labels | None]]:
        """The activations of each batch, and its labels; a batch is images or (images, labels)."""
        if isinstance(batches, Tensor):
            raise TypeError("one tensor was given where batches are expected; give [images], or a DataLoader")
        for batch in batches:
            images, labels = split_batch(batch)
            yield self(images, statistics=statistics), labels

    def prepare(self, images: Images) -> Images:
        """The images, checked, where the model is and in its precision."""
        check_kind(images)
        images = images.to(*placement(self.model, images))
        check_values(images)  # after the cast, which may have made infinities
        return images

    def probe(self, image_shape: tuple[int, ...]) -> Activations:
        """Find and check the last map on noise of an image shape, before any image is seen; what noise gives."""
        noise = torch.randn((2, *image_shape), generator=torch.Generator().manual_seed(0))
        with self._lock, undisturbed(self.model):
            return self(noise, statistics=())

    def neck(self, pooled: Features) -> Features:
        """Carry pooled features through what the model does between pooling and its last layer."""
        neck = self._found().neck
        return pooled if neck is None else _a_tensor(neck(pooled), "neck").to(pooled.dtype)

    @property
    def classifier(self) -> Classifier:
        """The model's last layer."""
        return Classifier(self._found().layer(self.model))

    @property
    def kind(self) -> str | None:
        """What the map is: ``map``, ``tokens`` (a list of positions), or ``class token``; None before any image.

        >>> model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 4))
        >>> Backbone.wrap(model, torch.zeros(2, 3, 6)).kind
        'map'
        """
        if self._class_token:
            return "class token"
        if self.map_shape is None or self.image_shape is None:
            return None
        return "tokens" if len(self.map_shape) == 2 and len(self.image_shape) > 2 else "map"

    def describe(self) -> dict[str, object]:
        """What was found, as plain values for a report or an artifact; None where not known yet."""
        adapter, (channels, classes) = self._adapter, self._widths
        return {
            "model": type(self.model).__name__,
            "kind": self.kind,
            "tap": None if adapter is None else adapter.tap,
            "head": None if adapter is None else adapter.head,
            "after": None if adapter is None else _text(adapter.after),
            "neck": None if adapter is None else _text(adapter.neck),
            "channels": channels,
            "classes": classes,
            "image_shape": None if self.image_shape is None else list(self.image_shape),
            "map_shape": None if self.map_shape is None else list(self.map_shape),
        }

    def __repr__(self) -> str:
        found = "" if self._adapter is None else f", tap={self._adapter.tap!r}, head={self._adapter.head!r}"
        return f"Backbone({type(self.model).__name__}{found})"

    def _found(self) -> Adapter:
        if self._adapter is None:
            raise ValueError(
                "the last layer is not known before the model has seen images; "
                "call the backbone on a batch first, or use Backbone.wrap(model, images)"
            )
        return self._adapter

    def _read(self, images: Images, statistics: Collection[str]) -> tuple[Map, Activations]:
        """The last map, found and checked, and what is read from it."""
        key = (images.shape[1:], images.dtype, images.device)
        known = self._adapters.get(key)
        adapter = known or self._given or self._discover(images)
        activation_map, logits, token = self._forward(images, adapter, seen=known is not None)
        activations = summarise(activation_map, logits, statistics)
        read = activations.mean.detach() if token is None else at_least_float32(token.detach())
        features = check_logits(self.model, adapter, activation_map, read, logits.detach())
        if known is None:
            with undisturbed(self.model):
                check_model(self.model, adapter, images, logits.detach())
            self._check_neck(adapter, activations.mean.detach())
            self._widths = (features.shape[1], logits.shape[1])
            self._adapters[key] = adapter
        self._adapter = adapter
        self.image_shape, self.map_shape = tuple(images.shape[1:]), tuple(activation_map.shape[1:])
        if activation_map[0, 0].numel() == 1:
            self._say_one()
        return activation_map, activations

    def _say_one(self) -> None:
        if not self._said_one:
            self._said_one = True
            warnings.warn(
                f"the last map of {type(self.model).__name__} has one position for images of shape "
                f"{self.image_shape}: its mean, its maximum and DAVIS pooling are the same there; use larger images",
                stacklevel=4,
            )

    def _discover(self, images: Images) -> Adapter:
        name = compiled_part(self.model)
        if name is not None:
            raise ValueError(
                f"{name or type(self.model).__name__} is compiled, and its layers cannot be watched; "
                "give the model from before compile(), or pass tap= and head="
            )
        try:
            with undisturbed(self.model):
                return discover_class_token(self.model, images) if self._class_token else discover(self.model, images)
        except TracingError as error:
            raise ValueError(f"cannot find the last map of {type(self.model).__name__}: {error}") from error
        except MODEL_ERRORS as error:
            with torch.no_grad():
                self._run(images, seen=False)  # raises too if it is the images that do not fit
            raise ValueError(
                f"{type(self.model).__name__} cannot be watched on {images.dtype} noise of shape (2, ...) "
                f"and (3, ...): {_first_line(error)}. Pass tap= and head="
            ) from error

    def _run(self, images: Images, *, seen: bool) -> Logits:
        """The model's own output; an error of the model on a shape that never worked is explained."""
        given = images if seen and not self._writes else images.clone()
        try:
            output = self.model(given)
        except MODEL_ERRORS as error:
            if seen or isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            worked = "" if self.image_shape is None else f"; images of shape {self.image_shape} worked before"
            if images.ndim == 3:
                worked += "; a single image needs a batch axis: image[None]"
            raise ValueError(
                f"{type(self.model).__name__} does not take images of shape {tuple(images.shape[1:])} "
                f"in a batch of {len(images)}{worked} ({_first_line(error)})"
            ) from error
        self._writes = self._writes or (given is not images and not torch.equal(given, images))
        logits = logits_of(output)
        if not logits.is_floating_point():
            raise ValueError(f"the model returned {logits.dtype} logits; they must be real floating-point numbers")
        return logits

    def _forward(self, images: Images, adapter: Adapter, *, seen: bool) -> tuple[Map, Logits, Features | None]:
        """The map, the logits, and the class token where it is what the head reads."""
        taps = {adapter.tap} if adapter.token is None else {adapter.tap, adapter.token.tap}
        captured: dict[str, object] = {"": images}
        thread = threading.get_ident()

        def capture(name: str) -> Callable[[nn.Module, object, object], None]:
            def hook(module: nn.Module, inputs: object, output: object) -> None:
                if threading.get_ident() == thread:  # somebody else may be calling the model too
                    captured[name] = output  # the last call counts, as in discovery

            return hook

        hooks = [self.model.get_submodule(name).register_forward_hook(capture(name)) for name in taps if name]
        try:
            logits = self._run(images, seen=seen)
        finally:
            for hook in hooks:
                hook.remove()
        output = _tensor(captured, adapter.tap)
        activation_map = output if adapter.after is None else _finished(output, adapter, len(images))
        if not activation_map.is_floating_point():
            raise ValueError(
                f"the last map of {type(self.model).__name__} is {activation_map.dtype}; it must hold real "
                "floating-point numbers, which have a maximum"
            )
        if activation_map.ndim < 3 or len(activation_map) != len(images):
            raise ValueError(
                f"tap {adapter.tap!r} gives {tuple(activation_map.shape)} for {len(images)} images; the map must be "
                "(batch, channel, *space): choose the module before pooling, or reorder its output with after="
            )
        if logits.ndim != 2 or len(logits) != len(images):
            raise ValueError(
                f"the model returned logits of shape {tuple(logits.shape)} for {len(images)} images; "
                "they must be (batch, class)"
            )
        token = None if adapter.token is None else adapter.token.after(_tensor(captured, adapter.token.tap))
        return activation_map, logits, token

    def _check_neck(self, adapter: Adapter, mean: Features) -> None:
        """Activations do not say what size their images had, so the neck must not depend on it."""
        before = self._adapter
        if before is None or (before.neck is None and adapter.neck is None):
            return
        with torch.no_grad():
            old, new = (mean if each.neck is None else each.neck(mean) for each in (before, adapter))
        if old.shape != new.shape or not torch.allclose(old, new, rtol=1e-4, atol=1e-6):
            raise ValueError(
                f"what {type(self.model).__name__} does between pooling and its last layer depends on the image size; "
                f"use one Backbone for each size"
            )

    def __getstate__(self) -> dict[str, object]:
        # What was found holds torch functions that do not pickle; it is found again on the next images.
        adapter = self._given
        return {**self.__dict__, "_lock": None, "_adapter": adapter, "_adapters": {}}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = _lock_of(self.model)


def _asks_for_class_token(tokens: str | None, *, given: bool) -> bool:
    if tokens not in (None, "class"):
        raise ValueError(f"tokens={tokens!r} is not known; 'class' reads a class-token transformer, else leave it out")
    if tokens is not None and given:
        raise ValueError("tokens='class' finds its own tap and head; give it alone, or tap= and head= without it")
    return tokens is not None


def _finished(output: Tensor, adapter: Adapter, batch: int) -> Tensor:
    """The map that is made of the tap's output; calls that were watched on other batches may not fit this one."""
    assert adapter.after is not None
    try:
        return _a_tensor(adapter.after(output), "after")
    except RuntimeError as error:
        if not isinstance(adapter.after, Replay) or isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        raise ValueError(
            f"what follows {adapter.tap!r} ({adapter.after.text}) does not fit a batch of {batch} "
            f"({_first_line(error)}); pass tap= and head=, and after= and neck= where it needs them"
        ) from error


def _tensor(captured: dict[str, object], tap: str) -> Tensor:
    if tap not in captured:
        raise ValueError(f"tap {tap!r} did not run during the model's forward; choose a module that does")
    output = captured[tap]
    if not isinstance(output, Tensor):
        raise TypeError(f"tap {tap!r} returns a {type(output).__name__}; choose a module in it that returns a tensor")
    return output


def _a_tensor(value: object, option: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{option}= must return a tensor; it returned a {type(value).__name__}")
    return value


def compiled_part(model: nn.Module) -> str | None:
    """The name of the first module that torch.compile has taken over; "" is the model itself, None is none."""
    for name, module in model.named_modules():
        if getattr(module, "_compiled_call_impl", None) is not None or type(module).__name__ == "OptimizedModule":
            return str(name)
    return None


def _text(function: Callable[[Tensor], Tensor] | None) -> str | None:
    if function is None or isinstance(function, Replay):
        return None if function is None else function.text
    return str(getattr(function, "__name__", type(function).__name__))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
