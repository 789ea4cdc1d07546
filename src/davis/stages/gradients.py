"""Methods that move the image along its gradient: the only code that asks for input gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

import torch
from torch import Tensor

from davis.stages.base import FeaturesOf, LogitsOf, Perturb, PixelScore
from davis.stages.confidence import energy
from davis.stages.topk import quotient
from davis.types import Features, Images, Logits, Scores, double


@final
class Odin(Perturb, name="odin"):
    """ODIN (Liang et al., 2018): a step of eps that raises the largest softmax probability at temperature t.

    ``second_pass=same`` scores the moved image with the detector's own pooling, ``gap`` with average
    pooling, as the DAVIS authors' code does (which also leaves pixels of zero gradient where they
    are; the original moves them). ``input_std`` divides the step per input channel.
    """

    def __init__(
        self,
        *,
        eps: float = 0.0014,
        t: float = 1000,
        second_pass: Literal["same", "gap"] = "same",
        input_std: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        self.eps = eps
        self.t = t
        self.second_pass = second_pass
        self.input_std = input_std
        self.check_positive("t")
        if eps < 0:
            raise self.refuse("eps", "0 or more")
        if input_std is not None and not all(part > 0 for part in input_std):
            raise self.refuse("input_std", "positive, one number per input channel")

    def forward(self, images: Images, logits_of: Callable[[Images], Logits]) -> Images:
        def confidence(moved: Images) -> Tensor:
            # The sign alone is used; without the factor 1 / t it does not underflow in half precision.
            return self.t * (double(logits_of(moved)) / self.t).log_softmax(1).amax(1)

        loss_gradient = -_input_gradient(images, confidence)
        if self.second_pass == "gap":
            direction = loss_gradient.sign()
        else:
            direction = torch.where(loss_gradient >= 0, 1.0, -1.0).to(images.dtype)
        return images.detach() - self._step(images) * direction

    def _step(self, images: Images) -> Tensor:
        if self.input_std is None:
            return torch.tensor(self.eps, dtype=images.dtype, device=images.device)
        if images.shape[1] != len(self.input_std):
            raise ValueError(f"odin: input_std has {len(self.input_std)} numbers for {images.shape[1]} input channels")
        std = torch.tensor(self.input_std, dtype=images.dtype, device=images.device)
        return self.eps / std.reshape(1, -1, *[1] * (images.ndim - 2))


class AdaScale(PixelScore):
    """What both AdaSCALE scores share: how far a small change of the image moves its features.

    The share ``o`` of pixels that matter least is moved by ``eps``; q = correction + lam * shift over
    the strongest channels (``k_correction`` and ``k_shift`` percent of them), placed in its
    distribution over in-distribution images, chooses the percentile between p_min and p_max.
    """

    images_to_fit = 5000
    quantities: Tensor  # sorted q of in-distribution images

    def __init__(
        self,
        *,
        p_min: float = 60,
        p_max: float = 85,
        k_shift: float = 1,
        k_correction: float = 5,
        lam: float = 10,
        o: float = 0.05,
        eps: float = 0.5,
    ) -> None:
        super().__init__()
        self.p_min = p_min
        self.p_max = p_max
        self.k_shift = k_shift
        self.k_correction = k_correction
        self.lam = lam
        self.o = o
        self.eps = eps
        self.check_percent("p_min", "p_max", "k_shift", "k_correction")
        if p_min > p_max:
            raise self.refuse("p_min", f"no larger than p_max={p_max}")
        if not 0 <= o <= 1:
            raise self.refuse("o", "a share of the pixels from 0 to 1")

    def observe(self, images: Images, features_of: FeaturesOf, logits_of: LogitsOf) -> Tensor:
        return self.probe(images, features_of, logits_of)[0]

    def settle(self, observations: Tensor) -> None:
        self.quantities = observations.sort().values

    def probe(self, images: Images, features_of: FeaturesOf, logits_of: LogitsOf) -> tuple[Tensor, Features]:
        """(batch,) the quantity q, and the features of the images as they are."""
        features = torch.empty(0)

        def largest_logit(moved: Images) -> Tensor:
            nonlocal features
            features = features_of(moved)
            return logits_of(features).amax(1)

        gradient = _input_gradient(images, largest_logit).flatten(1)
        features = features.detach()
        least = gradient.abs().topk(int(gradient.shape[1] * self.o), dim=1, largest=False, sorted=False).indices
        step = torch.zeros_like(gradient).scatter(1, least, self.eps * gradient.sign().gather(1, least))
        before, after = double(features), double(features_of(images + step.reshape(images.shape)))
        order = before.argsort(dim=1, descending=True, stable=True)
        channels = before.shape[1]
        strongest = order[:, : max(1, int(channels * self.k_shift / 100))]
        shift = (before - after).abs().gather(1, strongest).sum(1)
        strongest = order[:, : max(1, int(channels * self.k_correction / 100))]
        correction = after.relu().gather(1, strongest).sum(1)
        return correction + self.lam * shift, features

    def ratio(self, features: Features, quantity: Tensor, *, undefined: float) -> Tensor:
        """(batch, 1) the sum of the rectified features over their top channels, at each image's percentile."""
        share = double(torch.searchsorted(self.quantities, quantity, right=True)) / len(self.quantities)
        p = self.p_min + (1 - share) * (self.p_max - self.p_min)
        channels = features.shape[1]
        count = channels - (channels * p / 100).round().long()
        sums = double(features).relu().sort(dim=1, descending=True).values.cumsum(1)
        top = sums.gather(1, (count[:, None] - 1).clamp_min(0))  # one channel at least
        return quotient(sums[:, -1:], top, undefined=undefined)


@final
class AdaScaleA(AdaScale, name="adascale_a"):
    """AdaSCALE-A (Regmi, 2025): energy of the features times exp(r), r adapted to each image."""

    def forward(self, images: Images, features_of: FeaturesOf, logits_of: LogitsOf) -> Scores:
        quantity, features = self.probe(images, features_of, logits_of)
        scaled = double(features) * self.ratio(features, quantity, undefined=0).exp()
        return energy(logits_of(scaled.to(features.dtype)))


@final
class AdaScaleL(AdaScale, name="adascale_l"):
    """AdaSCALE-L (Regmi, 2025): energy of the logits times r^2, r adapted to each image."""

    def forward(self, images: Images, features_of: FeaturesOf, logits_of: LogitsOf) -> Scores:
        quantity, features = self.probe(images, features_of, logits_of)
        return energy(double(logits_of(features)) * self.ratio(features, quantity, undefined=1).square())


def _input_gradient(images: Images, value: Callable[[Images], Tensor]) -> Tensor:
    """The gradient of the summed value with respect to the images; leaves no gradient on anything else."""
    with torch.enable_grad():
        moved = images.detach().clone().requires_grad_()
        try:
            (gradient,) = torch.autograd.grad(value(moved).sum(), moved)
        except RuntimeError as error:
            first = str(error).splitlines()[0]
            raise ValueError(
                f"the model gives no gradient with respect to its images, which this method needs ({first})"
            ) from error
    if not gradient.isfinite().all():
        raise ValueError("the gradient with respect to the images is NaN or infinite; choose another pooling or method")
    return gradient
