"""Detector: a classifier, a spec and a threshold, put together. It orders calls and does no maths."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from davis import calibrate as calibration
from davis import spec as language
from davis.backbone import Backbone
from davis.batches import Batches, pairs
from davis.branch import Branch
from davis.data import Preprocessing
from davis.fitting import no_graph
from davis.joint_fit import fit_together
from davis.sketch import Sketch
from davis.stages import NotFittedError, PixelScore, Pool, Stage
from davis.statistics import CAPACITY
from davis.types import Activations, Features, Images, Logits, Output, Scores

_ROWS = 2048  # activations scored at a time: bounds the memory of neighbour searches


class Detector(nn.Module):
    """Scores images as a spec says, beside a classifier whose own logits stay untouched.

    >>> body = [nn.Conv2d(3, 8, 3), nn.ReLU()]
    >>> model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    >>> detector = Detector(model, "davis(gamma=0.5) + react(p=85) + energy")
    >>> photos, held_out = [torch.rand(20, 3, 16, 16)], [torch.rand(30, 3, 16, 16)]
    >>> output = detector.fit(photos).calibrate(held_out, tpr=0.9)(photos[0][:4])
    >>> output.score.shape, output.p_value.dtype, output.is_ood.dtype
    (torch.Size([4]), torch.float64, torch.bool)
    """

    def __init__(self, model: nn.Module | Backbone, spec: object) -> None:
        super().__init__()
        self.backbone = Backbone.wrap(model)
        self.composition = language.parse(str(spec) if not isinstance(spec, str) else spec)
        self.branches = nn.ModuleList(self.composition.branches)
        self.fuse = self.composition.fuse
        self.calibration: calibration.Calibration | None = None
        self.images_seen = 0
        self.class_counts: Tensor | None = None  # (class,) how often the fit pass saw each predicted
        self.sketch = Sketch()  # of the images of the fit
        self._preprocessing: Preprocessing | None = None

    @property
    def preprocessing(self) -> dict[str, object] | None:
        """How pictures became tensors, as plain values; set it to a ``davis.data.Preprocessing``, or to such values."""
        return None if self._preprocessing is None else self._preprocessing.to_dict()

    @preprocessing.setter
    def preprocessing(self, given: Preprocessing | Mapping[str, Any] | None) -> None:
        self._preprocessing = Preprocessing.from_dict(given) if isinstance(given, Mapping) else given

    @property
    def spec(self) -> str:
        """The canonical text: the key in tables, files and logs."""
        return self.composition.text()

    @property
    def threshold(self) -> float | None:
        """Scores below it are OOD; None until the detector is calibrated, or where classes have their own."""
        return None if self.calibration is None else self.calibration.threshold

    @property
    def is_fitted(self) -> bool:
        return all(stage.is_fitted for stage in self.stages)

    @property
    def stages(self) -> list[Stage]:
        """Every stage, in the order of the spec."""
        return self.composition.stages

    @property
    def reads(self) -> frozenset[str]:
        """The channel statistics to ask the backbone for when scoring from activations."""
        return frozenset[str]().union(*(branch.reads for branch in self.composition))

    @property
    def reads_pixels_to_fit(self) -> bool:
        """Whether a score of this detector wants a pass of its own over the images."""
        return any(isinstance(branch.score, PixelScore) for branch in self.composition)

    @property
    def needs_pixels(self) -> bool:
        """Whether this method moves images and so cannot score activations."""
        return any(branch.needs_pixels for branch in self.composition)

    def fit(
        self, batches: Batches, *, capacity: int = CAPACITY, seed: int = 0, reference: Batches | None = None
    ) -> Detector:
        """Fit every stage in one pass over in-distribution images, labelled or not; no pass if none needs it.

        Fused detectors are ranked against ``reference``, other in-distribution images, or else a tenth of these.
        """
        fit_together([self], batches, capacity=capacity, seed=seed, reference=reference)
        return self

    def calibrate(
        self,
        batches: Batches,
        *,
        tpr: float = 0.95,
        kind: calibration.Kind = "marginal",
        delta: float = 0.05,
        by_class: bool = False,
    ) -> Detector:
        """Set the threshold that accepts a share ``tpr`` of images like these, held out from the fit.

        ``kind`` names the promise (davis.calibrate); ``by_class`` makes it in each predicted class, rare ones pooled.
        """
        scores, classes, again = [], [], []
        for images, _ in pairs(batches):
            output = self(images) if by_class else None
            scores.append(self.score_images(images) if output is None else output.score)
            classes += [] if output is None else [output.logits.argmax(1)]
            again += [share for share in [self.sketch.share(images)] if share is not None]
        if not scores:
            raise ValueError("no images were seen: the calibration data are empty")
        groups = self._groups(sum(map(len, scores)), tpr, kind, delta) if by_class else None
        self.calibration = calibration.calibrate(
            torch.cat(scores),
            tpr=tpr,
            kind=kind,
            delta=delta,
            classes=torch.cat(classes) if by_class else None,
            groups=groups,
        )
        if any(again):
            warnings.warn(
                f"about {100 * sum(again) / len(again):.0f}% of these images were fitted on; the promise holds only "
                "for a threshold that is set on images which the fit has not seen",
                stacklevel=2,
            )
        return self

    def forward(self, images: Images) -> Output:
        with no_graph():
            self._check_fitted(self.stages)
            activations = self.backbone(images, statistics=self.reads)
            scores = self.score_images(images) if self.needs_pixels else self._score_activations(activations)
            if self.calibration is None:
                return Output(activations.logits, scores, p_value=None, is_ood=None)
            classes = activations.logits.argmax(1)
            return Output(
                logits=activations.logits,
                score=scores,
                p_value=self.calibration.p_values(scores, classes),
                is_ood=self.calibration.is_ood(scores, classes),
            )

    def score_images(self, images: Images) -> Scores:
        """The scores alone; methods that move images save a pass over them."""
        with no_graph():
            self._check_fitted(self.stages)
            if self.needs_pixels:
                return self._score_pixels(self._branch(), self.backbone.prepare(images))
            return self._score_activations(self.backbone(images, statistics=self.reads))

    def score(self, activations: Activations) -> Scores:
        """The scores of images whose activations were taken before; bit-equal to a call on the images."""
        with no_graph():
            self._check_fitted(self.stages)
            if self.needs_pixels:
                raise ValueError(f"{self.spec!r} moves the images themselves; call the detector on images instead")
            if not isinstance(activations, Activations):
                raise TypeError(
                    f"score takes Activations, as a Backbone gives them, not a {type(activations).__name__}; "
                    "for images call the detector itself, or score_images"
                )
            starts = range(0, len(activations.logits), _ROWS)
            parts = [self._score_activations(activations.rows(slice(s, s + _ROWS))) for s in starts]
            return torch.cat(parts) if parts else activations.logits.new_zeros(0, dtype=torch.float64)

    def features(self, images: Images) -> Features:
        """(batch, channel) the features that reach the score: pooled, through the neck, shaped."""
        with no_graph():
            branch = self._branch()
            self._check_fitted(branch.shapes)
            return self._features(branch, branch.scoring_pool, images)

    def extra_repr(self) -> str:
        state = "fitted" if self.is_fitted else "not fitted"
        return f"{self.spec!r}, {state}, threshold={self.threshold}"

    def __repr__(self) -> str:
        return f"Detector({type(self.backbone.model).__name__}, {self.extra_repr()})"

    # -- inside -----------------------------------------------------------------------------------

    def _branch(self) -> Branch:
        if len(self.composition) > 1:
            raise ValueError(f"{self.spec!r} fuses {len(self.composition)} detectors; ask one of them")
        return self.composition.branches[0]

    def _check_fitted(self, stages: Iterable[Stage]) -> None:
        for stage in stages:
            if not stage.is_fitted:
                raise NotFittedError(f"{self.spec!r} is not fitted ({stage.name} learns from data); call fit first")

    def _groups(self, held_out: int, tpr: float, kind: calibration.Kind, delta: float) -> list[int]:
        if self.class_counts is None:
            raise ValueError(
                f"thresholds by class pool rare classes by what the fit saw, and fitting {self.spec!r} took no pass; "
                "set detector.class_counts to the numbers of training images by class"
            )
        return calibration.pooled(self.class_counts, held_out, tpr=tpr, kind=kind, delta=delta)

    def _score_activations(self, activations: Activations) -> Scores:
        device, neck, classifier = activations.mean.device, self.backbone.neck, self.backbone.classifier
        self.branches.to(device)
        if self.fuse is not None:
            self.fuse.to(device)
        with torch.autocast(device.type, enabled=False):
            scores = self.composition.branch_scores(activations, neck, classifier)
            for place, branch in enumerate(self.composition):
                if not scores[:, place].isfinite().all():
                    steps = branch.steps(activations, neck, classifier)
                    _refuse_non_finite(chain([("the backbone", activations.mean)], steps))
            fused = self.composition.fused(scores)
        if self.fuse is not None:
            _refuse_non_finite([(self.fuse.name, fused)])
        return fused

    def load_state_dict(self, state_dict: Mapping[str, Any], *options: Any, **named: Any) -> Any:
        """As for any module; a threshold that belongs to other fitted values is let go."""
        self.calibration = None
        return super().load_state_dict(state_dict, *options, **named)

    def _score_pixels(self, branch: Branch, images: Images) -> Scores:
        branch.to(images.device)
        if branch.perturb is not None:
            images = branch.perturb(
                images, lambda moved: self._logits(branch, self._features(branch, branch.pool, moved))
            )
        if not isinstance(branch.score, PixelScore):
            return self._score_activations(self.backbone(images, statistics=branch.reads))
        scores: Scores = branch.score(images, *self.handles(branch))
        _refuse_non_finite([(branch.score.name, scores)])
        return scores

    def handles(self, branch: Branch) -> tuple[Callable[[Images], Features], Callable[[Features], Logits]]:
        """What a score that moves images is handed: images -> features and features -> logits."""
        return (
            lambda images: self._features(branch, branch.scoring_pool, images),
            lambda features: self._logits(branch, features),
        )

    def _features(self, branch: Branch, pool: Pool, images: Images) -> Features:
        wanted = pool.statistics()
        activations = self.backbone(images, statistics=wanted, gradients=torch.is_grad_enabled())
        branch.to(activations.mean.device)
        return branch.shape(self.backbone.neck(pool(activations)))

    def _logits(self, branch: Branch, features: Features) -> Logits:
        return branch.logits(features, self.backbone.classifier)


def fit_all(
    model: nn.Module | Backbone,
    specs: Iterable[object],
    batches: Batches,
    *,
    capacity: int = CAPACITY,
    seed: int = 0,
    reference: Batches | None = None,
) -> list[Detector]:
    """Any number of detectors for one classifier, fitted in the same pass over the images."""
    if isinstance(specs, str):
        raise TypeError(f"fit_all takes a list of specs, and one text was given; write [{specs!r}]")
    backbone = Backbone.wrap(model)
    detectors = [Detector(backbone, spec) for spec in specs]
    fit_together(detectors, batches, capacity=capacity, seed=seed, reference=reference)
    return detectors


def _refuse_non_finite(steps: Iterable[tuple[str, Tensor]]) -> None:
    for name, value in steps:
        bad = (~value.isfinite()).flatten(1).any(1) if value.ndim > 1 else ~value.isfinite()
        if bad.any():
            rows = bad.nonzero().flatten().tolist()
            raise ValueError(
                f"{name} gave NaN or infinity for {len(rows)} of {len(value)} images (first: row {rows[0]}); "
                f"its arithmetic overflows on these features: choose a milder setting or another method"
            )
