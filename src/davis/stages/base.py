"""Stage: one step of a method. Its six kinds, and the registry that the spec language reads."""

from __future__ import annotations

import functools
import inspect
import logging
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from davis.statistics import Statistics
from davis.types import Activations, Classifier, Features, Images, Logits, Scores, double

_log = logging.getLogger(__name__)

Value: TypeAlias = "bool | int | float | str | tuple[float, ...] | None"

Tail: TypeAlias = Literal["exponential", "gaussian", "pareto", "zscore"]
FeaturesOf: TypeAlias = Callable[[Images], Features]
LogitsOf: TypeAlias = Callable[[Features], Logits]

REGISTRY: dict[str, type[Stage]] = {}
"""Every stage by its name in the spec language; filled by the class statements themselves."""


_listener: ContextVar[Callable[[Stage, str], None] | None] = ContextVar("listener", default=None)


class NotFittedError(ValueError):
    """A stage, or a detector, was used before it was fitted."""


class Stage(nn.Module):
    """One step of a method.

    A final class says ``class React(Shape, name="react")`` and is then part of the language. Its
    constructor stores its keyword arguments under their own names and nothing else; what is learnt
    from data are the tensors that its class body annotates (``clip: Tensor``), missing until ``fit``.
    Type checks, repr, spec text and the artifact follow from that rule with no code per class.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset()  # the parts of Statistics that fit() reads
    fitted: ClassVar[tuple[str, ...]] = ()  # the buffers that fit() fills
    experimental: ClassVar[bool] = False

    def __init_subclass__(cls, name: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if name is None:
            return
        if name in REGISTRY:
            raise TypeError(f"two stages are named {name!r}: {REGISTRY[name].__name__} and {cls.__name__}")
        cls.name = name
        hints = {k: hint for base in reversed(cls.__mro__) for k, hint in inspect.get_annotations(base).items()}
        cls.fitted = tuple(k for k, hint in hints.items() if hint in ("Tensor", Tensor))
        cls.__init__ = _checking_types(cls.__init__)  # type: ignore[method-assign]
        REGISTRY[name] = cls

    def __init__(self) -> None:
        super().__init__()
        for buffer in self.fitted:
            self.register_buffer(buffer, None)

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        """Fill the fitted buffers from a summary of in-distribution features."""

    def __call__(self, *inputs: Any) -> Any:
        if not self.is_fitted:
            raise NotFittedError(f"{self.name} is not fitted; call fit with in-distribution images first")
        return super().__call__(*inputs)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Stage:
        """Move fitted values between devices; ``half()`` and the like leave their precision alone."""
        for name in self.fitted:
            buffer = self._buffers[name]
            self._buffers[name] = None if buffer is None else buffer.to(fn(buffer.new_empty(0)).device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take in fitted values of any shape, also into a stage that is not fitted yet."""
        for name in self.fitted:
            if isinstance(value := state_dict.get(prefix + name), Tensor):
                self._buffers[name] = value.clone()
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @property
    def is_fitted(self) -> bool:
        return all(self._buffers[buffer] is not None for buffer in self.fitted)

    @classmethod
    def parameters_of(cls) -> dict[str, inspect.Parameter]:
        """The constructor's keyword arguments, in order."""
        signature = inspect.signature(cls.__init__)
        return {name: parameter for name, parameter in signature.parameters.items() if name != "self"}

    def settings(self) -> dict[str, Value]:
        """The hyper-parameters, in order, as they were given."""
        return {name: getattr(self, name) for name in self.parameters_of()}

    def text(self) -> str:
        """This stage in the spec language, without what stands at its default."""
        defaults = self.parameters_of()
        shown = [f"{k}={write(v)}" for k, v in self.settings().items() if v != defaults[k].default]
        return f"{self.name}({', '.join(shown)})" if shown else self.name

    def __repr__(self) -> str:
        return self.text()

    def refuse(self, name: str, rule: str) -> ValueError:
        """The error for a hyper-parameter outside its range."""
        return ValueError(f"{self.name}({name}={write(getattr(self, name))}): {name} must be {rule}")

    def warn(self, message: str) -> None:
        """Say that this stage cannot do its job on these data: to who listens, else to the log."""
        listener, text = _listener.get(), f"{self.name}: {message}"
        if listener is None:
            _log.warning("%s", text)
        else:
            listener(self, text)

    def check_percent(self, *names: str) -> None:
        for name in names:
            if not 0 <= getattr(self, name) <= 100:
                raise self.refuse(name, "a percent from 0 to 100")

    def check_positive(self, *names: str) -> None:
        for name in names:
            if not getattr(self, name) > 0:
                raise self.refuse(name, "greater than 0")


@contextmanager
def listening(listener: Callable[[Stage, str], None]) -> Iterator[None]:
    """Inside, warnings of stages go to the listener, which learns whose they are, and not to the log."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


class Perturb(Stage):
    """Moves the images before the detector looks at them."""

    kind = "perturb"

    def forward(self, images: Images, logits_of: Callable[[Images], Logits]) -> Images:
        raise NotImplementedError


class Pool(Stage):
    """Turns the statistics of a map into one feature per channel."""

    kind = "pool"
    reads: ClassVar[frozenset[str]] = frozenset()  # the fields of Activations beside the mean

    def statistics(self) -> frozenset[str]:
        """The fields of Activations that this pool reads with its present settings."""
        return self.reads

    def forward(self, activations: Activations) -> Features:
        raise NotImplementedError


class Shape(Stage):
    """Changes features before the last layer."""

    kind = "shape"

    def forward(self, features: Features) -> Features:
        raise NotImplementedError


class Head(Stage):
    """Turns features into logits."""

    kind = "head"

    def forward(self, features: Features, classifier: Classifier) -> Logits:
        raise NotImplementedError


class Score(Stage):
    """One number per image, higher = more in-distribution, from the features and logits that reach it."""

    kind = "score"

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        raise NotImplementedError

    def compared(self, features: Features) -> tuple[Features, Features] | None:
        """The rows of the bank and the features where distances between them are taken; None without a bank."""
        return None


class NeighbourScore(Score):
    """A score of the nearest rows of a bank; scores on equal banks can share one search."""

    k: int
    bank: Tensor

    def search(self, features: Features, k: int) -> Tensor:
        """(batch, k) float64 squared distances to the nearest rows of the bank, nearest first."""
        raise NotImplementedError

    def from_neighbours(self, features: Features, squares: Tensor) -> Scores:
        """The score, given the squared distances to the k nearest."""
        raise NotImplementedError

    def forward(self, features: Features, logits: Logits, classifier: Classifier) -> Scores:
        return self.from_neighbours(features, self.search(features, self.k))


class PixelScore(Stage):
    """A score that moves the images itself: it is handed them, and the differentiable branch before it.

    ``features_of`` maps images to the features that reach the score, ``logits_of`` those to logits.
    Its fit reads images as well: ``observe`` is called on each batch and ``settle`` at the end.
    """

    kind = "score"
    images_to_fit: ClassVar[int]

    def observe(self, images: Images, features_of: FeaturesOf, logits_of: LogitsOf) -> Tensor:
        """(batch,) what is to be remembered of each in-distribution image."""
        raise NotImplementedError

    def settle(self, observations: Tensor) -> None:
        """Fill the fitted buffers from the observations of all images."""
        raise NotImplementedError

    def forward(self, images: Images, features_of: FeaturesOf, logits_of: LogitsOf) -> Scores:
        raise NotImplementedError


class Fuse(Stage):
    """Makes one score of those of several detectors; fitted on their scores of held-out in-distribution images."""

    kind = "fuse"
    reference: Tensor  # (detector, image) float64, ascending

    def __init__(self, *, weights: tuple[float, ...] | None = None, tail: Tail = "exponential") -> None:
        super().__init__()
        self.weights = weights  # of each detector; equal where none are given
        self.tail: Tail = tail  # beyond the lowest of the reference
        if weights is not None and not all(1e-6 <= weight <= 1e6 for weight in weights):
            raise self.refuse("weights", "greater than 0, from 1e-6 to 1e6, one for each detector")

    def rank_against(self, scores: Tensor) -> None:
        """Keep the held-out scores (image, detector) that others are ranked against."""
        self.reference = double(scores).T.sort(1).values.contiguous()

    def shares(self, scores: Tensor) -> Tensor:
        """(detector,) the weights, 1 on average."""
        given = (1.0,) * scores.shape[1] if self.weights is None else self.weights
        weights = double(torch.tensor(given, device=scores.device))
        return weights / weights.mean()

    def forward(self, scores: Tensor) -> Scores:
        raise NotImplementedError


def stages_of(kind: str) -> Iterator[type[Stage]]:
    """The registered stages of a kind, in the order of their definition."""
    return (stage for stage in REGISTRY.values() if stage.kind == kind)


def write(value: Value) -> str:
    """A hyper-parameter as the spec language writes it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(write(part) for part in value)}]"
    return str(value)


def _checking_types(init: Callable[..., None]) -> Callable[..., None]:
    """The constructor, refusing values that are not of their declared type or not a declared word."""
    hints = get_type_hints(init)

    @functools.wraps(init)
    def checked(self: Stage, **settings: Value) -> None:
        for name, value in settings.items():
            if name in hints and not _allowed(value, hints[name]):
                given = write(value)[:100]
                raise ValueError(f"{self.name}({name}={given}): {name} must be {_describe(hints[name])}")
        init(self, **settings)
        missing = [name for name in self.parameters_of() if name not in self.__dict__]
        if missing:
            raise TypeError(f"{type(self).__name__} must store its setting {missing[0]!r} as self.{missing[0]}")

    return checked


def _choices(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _allowed(value: Value, hint: Any) -> bool:
    for choice in _choices(hint):
        if get_origin(choice) is Literal:
            if isinstance(value, str) and value in get_args(choice):
                return True
        elif choice is float:
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf"):
                return True
        elif choice is int:
            if isinstance(value, int) and not isinstance(value, bool):
                return True
        elif choice is bool or choice is type(None):
            if isinstance(value, choice):
                return True
        elif isinstance(value, tuple | list) and value and all(_allowed(part, float) for part in value):
            return True
    return False


def _describe(hint: Any) -> str:
    names = {float: "a number", int: "a whole number", bool: "true or false", type(None): "none"}
    parts: list[str] = []
    for choice in _choices(hint):
        if get_origin(choice) is Literal:
            parts += get_args(choice)
        else:
            parts.append(names.get(choice, "a list of numbers such as [0.5, 0.5]"))
    return " or ".join(parts)
