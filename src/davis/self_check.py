"""What must hold before a backbone is believed: the way it was read leads to the model's own logits."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from davis.discovery import IDENTITY, Adapter, logits_of
from davis.types import Classifier, Features, Images, Logits, Map

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}  # of the largest logit; half precision: 5e-2


def check_logits(model: nn.Module, adapter: Adapter, activation_map: Map, mean: Features, logits: Logits) -> Features:
    """The features that the head reads; an adapter that does not lead to the model's own logits is refused.

    On every batch: it costs one small product, and a model may change, or branch on what it sees.
    """
    bad = ~(logits.isfinite().flatten(1).all(1) & mean.isfinite().all(1))
    if bad.any():
        rows = bad.nonzero().flatten().tolist()
        raise ValueError(
            f"{type(model).__name__} gave NaN or infinity for {len(rows)} of {len(bad)} images "
            f"(first: row {rows[0]}); their values are too large for it, or its weights are broken"
        )
    where = f"tap {adapter.tap!r} and head {adapter.head!r} of {type(model).__name__}"
    layer = Classifier(adapter.layer(model))
    with torch.no_grad():
        features = mean if adapter.neck is None else adapter.neck(mean)
        if not isinstance(features, Tensor):
            raise TypeError(f"neck= must return a tensor; it returned a {type(features).__name__}")
        features = features.to(mean.dtype)
        wanted = layer.channels
        if wanted is not None and (features.ndim != 2 or features.shape[1] != wanted):
            raise ValueError(
                f"{where} do not meet: the map {tuple(activation_map.shape)} gives features of shape "
                f"{tuple(features.shape)} and the head takes {wanted} channels; pass neck=, what the model does "
                "between pooling and the head, or after= if the channels are not on axis 1"
            )
        try:
            computed = layer(features)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(
                f"{where} do not meet: the head takes no features {tuple(features.shape)} ({reason})"
            ) from None
    if computed.shape != logits.shape:
        raise ValueError(f"{where} give logits {tuple(computed.shape)}; the model gives {tuple(logits.shape)}")
    difference = (computed - logits).abs().nan_to_num(torch.inf)
    allowed = _allowed(layer, logits, activation_map.dtype)
    if float(difference.max()) > allowed:
        row, column = divmod(int(difference.argmax()), logits.shape[1])
        raise ValueError(
            f"{where} do not give the model's logits: row {row}, class {column} is {computed[row, column]:.6g} "
            f"and the model says {logits[row, column]:.6g} (largest difference {difference.max():.3g}, allowed "
            f"{allowed:.3g}; map {tuple(activation_map.shape)}, features {tuple(features.shape)}); "
            "check tap=, after= and neck=, or leave all of them out"
        )
    return features


def check_model(model: nn.Module, adapter: Adapter, images: Images, logits: Logits) -> None:
    """What is asked of a model itself, once for each shape of images."""
    check_varies(model, adapter, images, logits)
    check_alone(model, adapter, images, logits)
    if (
        adapter.head == IDENTITY or not Classifier(adapter.layer(model)).is_linear
    ):  # one that is says that they are some
        check_no_probabilities(model, logits)
    if adapter.head == IDENTITY:
        check_classes(model, logits)


def check_alone(model: nn.Module, adapter: Adapter, images: Images, logits: Logits) -> None:
    """Refuse a model that judges an image by its company in the batch, as batch norm without statistics of its own."""
    if len(images) == 1:
        with torch.no_grad():
            together = logits_of(model(torch.cat([images, unlike(images.expand(2, *images.shape[1:]))]))).detach()
        alone, beside = logits, together[:1]
    else:
        with torch.no_grad():
            try:
                alone, beside = logits_of(model(images[:1].clone())).detach(), logits[:1]
            except (RuntimeError, ValueError):  # made for batches of one size
                return
    difference = float((alone - beside).abs().max())
    # A batch of another size may run in other kernels, and in TF32: far less than what company does.
    allowed = 20 * _allowed(Classifier(adapter.layer(model)), logits, logits.dtype)
    if difference > allowed:
        with torch.no_grad():
            again = [logits_of(model(images[:1].clone())).detach() for _ in range(2)]
        if not torch.equal(*again):
            raise ValueError(
                f"{type(model).__name__} gives the same image other logits each time (up to "
                f"{float((again[0] - again[1]).abs().max()):.3g} apart): something in it draws at random in eval mode"
            )
        raise ValueError(
            f"{type(model).__name__} judges an image by the others in its batch: its logits alone are up to "
            f"{difference:.3g} from those in company; give its norm layers statistics of their own (eval mode, "
            "track_running_stats)"
        )


def check_no_probabilities(model: nn.Module, logits: Logits) -> None:
    """Refuse outputs of a softmax or its logarithm: every score would be read from rounding."""
    values = logits.double()
    if logits.shape[1] < 2:
        return
    summed = values.sum(1) if bool((values >= 0).all()) else values.logsumexp(1).exp()
    if bool(((summed - 1).abs() < 1e-2).all()):
        kind = "probabilities" if bool((values >= 0).all()) else "log-probabilities"
        raise ValueError(
            f"{type(model).__name__} returns {kind}, not logits; let it return what its last linear layer gives, "
            "or name that layer as head="
        )


def check_classes(model: nn.Module, logits: Logits) -> None:
    """Refuse a model made without a classifier where it says so, else warn: its features would pass for logits."""
    name = type(model).__name__
    if getattr(model, "num_classes", None) == 0:
        raise ValueError(f"{name} was made without a classifier (num_classes=0); its output are features, not logits")
    warnings.warn(
        f"the output of {name} is the average of its last map, with no layer behind it: right if its {logits.shape[1]} "
        "outputs are classes, wrong if they are features of a model without its classifier",
        stacklevel=2,
    )


def check_varies(model: nn.Module, adapter: Adapter, images: Images, logits: Logits) -> None:
    """Refuse a model whose logits are the same for unlike images: any way to read it would pass the check above.

    Logits that vary in the batch at hand are enough; else, as for a batch of one image, made-up images are compared.
    """
    layer = Classifier(adapter.layer(model))
    if _spread(logits) > _allowed(layer, logits, logits.dtype):
        return
    with torch.no_grad():
        logits = torch.cat([logits, logits_of(model(unlike(images))).detach()])
    spread, allowed = _spread(logits), _allowed(layer, logits, logits.dtype)
    if not spread > allowed:
        raise ValueError(
            f"{type(model).__name__} gives the same logits for unlike images (they differ by {spread:.3g}; the check "
            f"sees nothing below {allowed:.3g}), so any tap and head would pass; load trained weights"
        )


def unlike(images: Images) -> Images:
    """Images of the same shape that are like one another in nothing: noise of several strengths on several grounds."""
    generator = torch.Generator("cpu").manual_seed(0)
    noise = torch.randn(images.shape, generator=generator, device="cpu", dtype=torch.float32)
    column = torch.arange(len(images), dtype=torch.float32).view(-1, *[1] * (images.ndim - 1))
    strength, ground = 0.5 + column % 3, 1.5 - column % 4
    ramp = torch.linspace(-1, 1, images.shape[-1])
    return (strength * noise + ground * (1 + ramp)).to(images.device, images.dtype)


def _spread(logits: Logits) -> float:
    return float((logits.amax(0) - logits.amin(0)).max())


def _allowed(layer: Classifier, logits: Logits, dtype: torch.dtype) -> float:
    # Against what the features add: a large bias must not hide a wrong map.
    added = logits - layer.bias.detach().to(logits.dtype) if layer.is_linear else logits
    scale = float(added.abs().max()) + 1e-2 * float(logits.abs().max())
    return max(TOLERANCE.get(each, 5e-2) for each in (dtype, logits.dtype)) * scale
