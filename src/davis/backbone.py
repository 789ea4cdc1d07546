"""A trained classifier, seen from the side: images go in, activations come out, nothing stays on it."""

from __future__ import annotations

import difflib
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator

import torch
from torch import Tensor, nn

from davis.discovery import Adapter, discover, logits_of
from davis.pooling import summarise
from davis.tracing import Replay, TracingError
from davis.types import Activations, Classifier, Features, Images, Labels, Logits, Map, evaluating

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}  # of the largest logit; half precision: 5e-2
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
    On the first images of each shape ``head(neck(mean))`` must give the model's own logits.

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
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"the model must be a torch.nn.Module; a {type(model).__name__} was given")
        if isinstance(model, torch.jit.ScriptModule) or type(model).__name__ == "OptimizedModule":
            raise TypeError(
                f"a {type(model).__name__} hides its layers and takes no hooks; "
                "give the model from before torch.compile or torch.jit"
            )
        self.model = model
        self.image_shape: tuple[int, ...] | None = None
        self.map_shape: tuple[int, ...] | None = None
        self._given = _given_adapter(model, tap, head, after, neck)
        self._adapter = self._given  # of the last images seen
        self._adapters: dict[Key, Adapter] = {}  # that passed the self-check
        self._widths: tuple[int | None, int | None] = (None, None)  # channels that reach the head, classes
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
                    return self._read(images, statistics)
            with torch.inference_mode(False), torch.enable_grad():
                return self._read(images.clone() if images.is_inference() else images, statistics)

    def look(self, images: Images) -> tuple[Map, Logits]:
        """The last map of a batch itself and the logits: for who asks where, not how much."""
        images = self.prepare(images)
        with self._lock, evaluating(self.model), torch.no_grad():
            self._read(images, ())  # found and checked
            return self._forward(images, self._found(), seen=True)

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
        _check_kind(images)
        images = images.to(*_placement(self.model, images))
        _check_values(images)  # after the cast, which may have made infinities
        return images

    def probe(self, image_shape: tuple[int, ...]) -> None:
        """Find and check the last map on noise of an image shape, before any image is seen."""
        noise = torch.randn((2, *image_shape), generator=torch.Generator().manual_seed(0))
        self(noise, statistics=())

    def neck(self, pooled: Features) -> Features:
        """Carry pooled features through what the model does between pooling and its last layer."""
        neck = self._found().neck
        return pooled if neck is None else neck(pooled).to(pooled.dtype)

    @property
    def classifier(self) -> Classifier:
        """The model's last layer."""
        return Classifier(self.model.get_submodule(self._found().head))

    def describe(self) -> dict[str, object]:
        """What was found, as plain values for a report or an artifact; None where not known yet."""
        adapter, (channels, classes) = self._adapter, self._widths
        return {
            "model": type(self.model).__name__,
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

    def _read(self, images: Images, statistics: Collection[str]) -> Activations:
        key = (images.shape[1:], images.dtype, images.device)
        known = self._adapters.get(key)
        adapter = known or self._given or self._discover(images)
        activation_map, logits = self._forward(images, adapter, seen=known is not None)
        activations = summarise(activation_map, logits, statistics)
        features = self._check(adapter, activation_map, activations.mean.detach(), logits.detach())
        if known is None:
            self._check_neck(adapter, activations.mean.detach())
            self._widths = (features.shape[1], logits.shape[1])
            self._adapters[key] = adapter
        self._adapter = adapter
        self.image_shape, self.map_shape = tuple(images.shape[1:]), tuple(activation_map.shape[1:])
        return activations

    def _discover(self, images: Images) -> Adapter:
        try:
            return discover(self.model, images)
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
        try:
            output = self.model(images)
        except MODEL_ERRORS as error:
            if seen or isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            worked = "" if self.image_shape is None else f"; images of shape {self.image_shape} worked before"
            raise ValueError(
                f"{type(self.model).__name__} does not take images of shape {tuple(images.shape[1:])} "
                f"in a batch of {len(images)}{worked} ({_first_line(error)})"
            ) from error
        return logits_of(output)

    def _forward(self, images: Images, adapter: Adapter, *, seen: bool) -> tuple[Map, Logits]:
        captured: list[object] = [images] if adapter.tap == "" else []
        thread = threading.get_ident()

        def capture(module: nn.Module, inputs: object, output: object) -> None:
            if threading.get_ident() == thread:  # somebody else may be calling the model too
                captured[:] = [output]  # the last call counts, as in discovery

        hooks = [] if adapter.tap == "" else [self.model.get_submodule(adapter.tap).register_forward_hook(capture)]
        try:
            logits = self._run(images, seen=seen)
        finally:
            for hook in hooks:
                hook.remove()
        if not captured:
            raise ValueError(f"tap {adapter.tap!r} did not run during the model's forward; choose a module that does")
        output = captured[0]
        if not isinstance(output, Tensor):
            raise TypeError(
                f"tap {adapter.tap!r} returns a {type(output).__name__}; choose a module in it that returns a tensor"
            )
        activation_map = output if adapter.after is None else adapter.after(output)
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
        return activation_map, logits

    def _check(self, adapter: Adapter, activation_map: Map, mean: Features, logits: Logits) -> Features:
        """The features that the head reads; an adapter that does not lead to the model's own logits is refused.

        On every batch: it costs one small product, and a model may change, or branch on what it sees.
        """
        bad = ~(logits.isfinite().flatten(1).all(1) & mean.isfinite().all(1))
        if bad.any():
            rows = bad.nonzero().flatten().tolist()
            raise ValueError(
                f"{type(self.model).__name__} gave NaN or infinity for {len(rows)} of {len(bad)} images "
                f"(first: row {rows[0]}); their values are too large for it, or its weights are broken"
            )
        where = f"tap {adapter.tap!r} and head {adapter.head!r} of {type(self.model).__name__}"
        layer = Classifier(self.model.get_submodule(adapter.head))
        with torch.no_grad():
            features = mean if adapter.neck is None else adapter.neck(mean).to(mean.dtype)
            wanted = layer.weight.shape[1] if layer.is_linear else None
            if wanted is not None and (features.ndim != 2 or features.shape[1] != wanted):
                raise ValueError(
                    f"{where} do not meet: the map {tuple(activation_map.shape)} gives features of shape "
                    f"{tuple(features.shape)} and the head takes {wanted} channels; pass neck=, what the model does "
                    "between pooling and the head, or after= if the channels are not on axis 1"
                )
            computed = layer(features)
        if computed.shape != logits.shape:
            raise ValueError(f"{where} give logits {tuple(computed.shape)}; the model gives {tuple(logits.shape)}")
        difference = (computed - logits).abs().nan_to_num(torch.inf)
        # Against what the features add: a large bias must not hide a wrong map.
        added = logits - layer.bias.detach().to(logits.dtype) if layer.is_linear else logits
        scale = float(added.abs().max()) + 1e-2 * float(logits.abs().max())
        allowed = _tolerance(activation_map.dtype, logits.dtype) * scale
        if float(difference.max()) > allowed:
            row, column = divmod(int(difference.argmax()), logits.shape[1])
            raise ValueError(
                f"{where} do not give the model's logits: row {row}, class {column} is {computed[row, column]:.6g} "
                f"and the model says {logits[row, column]:.6g} (largest difference {difference.max():.3g}, allowed "
                f"{allowed:.3g}; map {tuple(activation_map.shape)}, features {tuple(features.shape)}); "
                "check tap=, after= and neck=, or leave all of them out"
            )
        return features

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


def _given_adapter(
    model: nn.Module,
    tap: str | None,
    head: str | None,
    after: Callable[[Tensor], Tensor] | None,
    neck: Callable[[Tensor], Tensor] | None,
) -> Adapter | None:
    if tap is None and head is None:
        if after is not None or neck is not None:
            raise ValueError("after= and neck= need tap= and head=; pass all that apply, or none to have them found")
        return None
    if tap is None or head is None:
        missing, given = ("tap", f"head={head!r}") if tap is None else ("head", f"tap={tap!r}")
        raise ValueError(f"{given} was given without {missing}=; pass both, or none to have them found")
    names = dict(model.named_modules())
    for option, name in (("tap", tap), ("head", head)):
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "its modules are listed by model.named_modules()"
            raise ValueError(f"{option}={name!r} is no module of {type(model).__name__}; {hint}")
    return Adapter(tap, head, after, neck)


def _check_kind(images: object) -> None:
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a tensor (batch, ...); a {type(images).__name__} was given")
    if images.ndim < 2 or images.numel() == 0:
        raise ValueError(f"images must be a batch (batch, ...) with at least one image; given {tuple(images.shape)}")
    if not images.is_floating_point():
        raise ValueError(f"images are {images.dtype}; convert to float and normalise as the model expects")


def _check_values(images: Images) -> None:
    if not torch.isfinite(images.detach()).all():
        rows = (~torch.isfinite(images.detach()).flatten(1).all(1)).nonzero().flatten().tolist()
        more = ", ..." if len(rows) > 5 else ""
        raise ValueError(
            f"images hold NaN or inf in {len(rows)} of {len(images)} rows ({', '.join(map(str, rows[:5]))}{more}); "
            "repair or drop them"
        )


def split_batch(batch: object) -> tuple[Images, Labels | None]:
    """Images and labels of a batch: images, [images], or (images, labels) where labels may be None."""
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, tuple | list) and len(batch) in (1, 2) and isinstance(batch[0], Tensor):
        images, given = batch[0], batch[1] if len(batch) == 2 else None
        return images, None if given is None else _labels(given, images)
    size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
    raise TypeError(f"a batch must be images or (images, labels); a {type(batch).__name__}{size} was given")


def _labels(given: object, images: Images) -> Labels:
    try:
        labels = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"labels must be integers, one per image; a {type(given).__name__} was given") from None
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"a batch of {len(images)} images came with labels of shape {tuple(labels.shape)}; give one per image "
            "(a dataset that is not batched goes into a DataLoader first)"
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, one per image; they are {labels.dtype}")
    return labels.to(torch.int64)


def _placement(model: nn.Module, images: Images) -> tuple[torch.device, torch.dtype]:
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return images.device, images.dtype


def _tolerance(*dtypes: torch.dtype) -> float:
    return max(TOLERANCE.get(dtype, 5e-2) for dtype in dtypes)


def _text(function: Callable[[Tensor], Tensor] | None) -> str | None:
    if function is None or isinstance(function, Replay):
        return None if function is None else function.text
    return str(getattr(function, "__name__", type(function).__name__))


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
