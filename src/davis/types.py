"""The values that move through the library, and the shapes that their names stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Images: TypeAlias = Tensor  # (batch, ...) as the classifier takes them
Map: TypeAlias = Tensor  # (batch, channel, *space): the last activation map
Features: TypeAlias = Tensor  # (batch, channel)
Logits: TypeAlias = Tensor  # (batch, class)
Labels: TypeAlias = Tensor  # (batch,) integer
Scores: TypeAlias = Tensor  # (batch,) float64, higher = more in-distribution


class Activations(NamedTuple):
    """What one pass over a batch leaves behind: a few numbers per channel, and the model's logits.

    Every field has the batch first. A statistic that nobody asked for is ``None``.
    """

    logits: Logits
    positions: Tensor  # (batch,) how many positions the map had
    mean: Features
    std: Features | None = None  # unbiased; 0 on a map of one position
    max: Features | None = None
    median: Features | None = None  # the lower of two middle values
    median_mean: Features | None = None  # the average of two middle values
    entropy: Features | None = None  # of the softmax over positions
    entropy_paper: Features | None = None  # of map / sum(map), for non-negative maps
    min: Features | None = None

    def rows(self, index: slice | Tensor) -> Activations:
        """The same activations for some of the images."""
        required, optional = self[:3], self[3:]
        kept = (None if field is None else field[index] for field in optional)
        return Activations(*(field[index] for field in required), *kept)


class Output(NamedTuple):
    """What a detector says about a batch."""

    logits: Logits  # the classifier's own, untouched
    score: Scores
    p_value: Tensor | None  # (batch,) float64, how likely an ID image scores as low; None until calibrated
    is_ood: Tensor | None  # (batch,) bool; None until the detector is calibrated


class JointHead(nn.Module):
    """Several linear layers that read the same features and are averaged, as one linear layer.

    ``function`` is what the model itself computes from the features to the logits, with its parameters live. It is
    affine, so its value at zero is the bias and its values at the unit vectors are the weights: both are taken anew
    each time they are asked for. ``parts`` own its parameters; ``constants`` are its other numbers.
    """

    constants: Tensor

    def __init__(
        self,
        function: Callable[[Features], Logits],
        channels: int,
        parts: Sequence[nn.Module],
        constants: Sequence[float],
    ) -> None:
        super().__init__()
        self.function, self.channels = function, channels
        self.parts = nn.ModuleList(parts)
        self.register_buffer("constants", torch.tensor(constants, dtype=torch.float64))

    @property
    def weight(self) -> Tensor:
        """(class, channel), computed in float64: a large bias must not eat the digits of a small weight."""
        parameter = next(self.parts.parameters())
        units = double(torch.eye(self.channels, dtype=parameter.dtype, device=parameter.device))
        return (self.function(units) - self.function(torch.zeros_like(units[:1]))).T.to(
            at_least_float32(parameter).dtype
        )

    @property
    def bias(self) -> Tensor:
        parameter = next(self.parts.parameters())
        zero = double(torch.zeros(1, self.channels, dtype=parameter.dtype, device=parameter.device))
        return self.function(zero)[0].to(at_least_float32(parameter).dtype)

    def forward(self, features: Features) -> Logits:
        return self.function(features)


class Classifier:
    """The model's last layer as ``features -> logits``: live, never copied, in the features' precision.

    Models in half precision are scored in float32: their pooled features are float32, and so is
    this view of their weights.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @property
    def is_linear(self) -> bool:
        if isinstance(self.module, JointHead):
            return True
        weight = getattr(self.module, "weight", None)
        linear = isinstance(self.module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
        return linear and isinstance(weight, Tensor) and weight[0, 0].numel() == 1

    @property
    def weight(self) -> Tensor:
        """(class, channel), in float32 or better."""
        if not self.is_linear:
            raise TypeError(
                f"this method reads the weights of a linear last layer, and the model's is a "
                f"{type(self.module).__name__}; use a score that needs only logits or features"
            )
        return at_least_float32(self._tensor("weight").flatten(1))

    @property
    def channels(self) -> int | None:
        """How many features it reads; None where it has no weight matrix to say so."""
        if isinstance(self.module, JointHead):
            return self.module.channels
        return self.weight.shape[1] if self.is_linear else None

    @property
    def bias(self) -> Tensor:
        """(class,), zeros where the layer has none."""
        if self.module.bias is None:
            return torch.zeros_like(self.weight[:, 0])
        return at_least_float32(self._tensor("bias"))

    def __call__(self, features: Features) -> Logits:
        if isinstance(self.module, JointHead):
            joined: Logits = self.module(features)
            return joined
        if self.is_linear:
            return F.linear(features, self.weight.to(features.dtype), self.bias.to(features.dtype))
        parameter = next(self.module.parameters())
        with evaluating(self.module):
            logits: Logits = self.module(features.to(parameter.dtype))
        return logits.to(features.dtype)

    def _tensor(self, name: str) -> Tensor:
        with evaluating(self.module):  # a spectral norm takes a step each time it is read in training mode
            value = getattr(self.module, name)
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} of the model's last layer is a {type(value).__name__}, not a tensor")
        return value


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, every module's own mode again after."""
    modes = [(module, module.training) for module in model.modules()]
    if not any(training for _, training in modes):
        yield
        return
    try:
        model.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Buffers that the model writes inside, such as running averages, are again as they were after."""
    kept = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for module, name, buffer, before in kept:
            module._buffers[name] = buffer  # the model may have put another in its place
            if not torch.equal(buffer, before):
                with torch.no_grad():
                    buffer.copy_(before)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor itself, or its float32 copy where it is in half precision."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def double(tensor: Tensor) -> Tensor:
    """The tensor in float64, or in float32 on devices that have no float64."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def length(vectors: Tensor) -> Tensor:
    """(batch,) the Euclidean norm of each row."""
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=1)
    return norms
