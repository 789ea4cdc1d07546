"""Branch: the stages of one detector, as one function from activations to scores; Composition: several, fused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from davis.stages import Fuse, Head, Linear, Mean, Odin, Perturb, PixelScore, Pool, Score, Shape, Stage
from davis.statistics import Statistics
from davis.types import Activations, Classifier, Features, Logits, Scores

Neck = Callable[[Features], Features]


class Branch(nn.Module):
    """perturb?, pool, shapes*, head, score.

    The neck is what the model does between its pooling and its last layer; it belongs to the model
    and is handed in, as the classifier is.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        self.sequence = nn.ModuleList(stages)

    @property
    def stages(self) -> list[Stage]:
        """All stages, in order."""
        return [stage for stage in self.sequence if isinstance(stage, Stage)]

    @property
    def perturb(self) -> Perturb | None:
        return next((stage for stage in self.stages if isinstance(stage, Perturb)), None)

    @property
    def pool(self) -> Pool:
        return next(stage for stage in self.stages if isinstance(stage, Pool))

    @property
    def scoring_pool(self) -> Pool:
        """The pool of the features that reach the score: not always the one that the gradient sees."""
        if isinstance(self.perturb, Odin) and self.perturb.second_pass == "gap":
            return Mean()
        return self.pool

    @property
    def shapes(self) -> list[Shape]:
        return [stage for stage in self.stages if isinstance(stage, Shape)]

    @property
    def head(self) -> Head:
        return next(stage for stage in self.stages if isinstance(stage, Head))

    @property
    def score(self) -> Score | PixelScore:
        return next(stage for stage in self.stages if isinstance(stage, Score | PixelScore))

    @property
    def needs_pixels(self) -> bool:
        """Whether the method moves the image, so that activations alone do not give its score."""
        return self.perturb is not None or isinstance(self.score, PixelScore)

    @property
    def reads(self) -> frozenset[str]:
        """The channel statistics that this branch needs from a pass."""
        return self.pool.statistics() | self.scoring_pool.statistics()

    @property
    def needs(self) -> frozenset[str]:
        """The parts of Statistics that fitting reads."""
        before = frozenset[str]().union(*(stage.needs for stage in [*self.shapes, self.head]))
        if not self._score_sees_pooled and self.score.needs:
            return before | {"sample"}
        return before | self.score.needs

    @property
    def learns(self) -> bool:
        """Whether any stage is fitted on data."""
        return bool(self.needs) or isinstance(self.score, PixelScore)

    @property
    def _score_sees_pooled(self) -> bool:
        return not self.shapes and isinstance(self.head, Linear)

    def text(self) -> str:
        """The canonical text: the pool always, the plain head never."""
        return " + ".join(stage.text() for stage in self.stages if not isinstance(stage, Linear))

    def fit(self, statistics: Statistics, classifier: Classifier) -> None:
        """Fit every stage. Shapes and head see pooled features, the score sees what reaches it."""
        for stage in [*self.shapes, self.head]:
            stage.fit(statistics, classifier)
        if self.score.needs and not self._score_sees_pooled:
            statistics = statistics.through(self.shape, lambda h: self.logits(h, classifier), self.score.needs)
        self.score.fit(statistics, classifier)
        for stage in self.stages:
            for name in stage.fitted if stage.is_fitted else ():
                # The layout decides the order in which sums are taken, and on disk there is only one.
                setattr(stage, name, getattr(stage, name).contiguous())

    def shape(self, features: Features) -> Features:
        for shape in self.shapes:
            features = shape(features)
        return features

    def logits(self, features: Features, classifier: Classifier) -> Logits:
        logits: Logits = self.head(features, classifier)
        return logits

    def steps(self, activations: Activations, neck: Neck, classifier: Classifier) -> Iterator[tuple[str, Tensor]]:
        """Every stage's name and what it made of the activations, the scores last."""
        pooled = self.scoring_pool(activations)
        yield self.scoring_pool.name, pooled
        yield from self._steps_behind(pooled, neck, classifier)

    def _steps_behind(self, pooled: Features, neck: Neck, classifier: Classifier) -> Iterator[tuple[str, Tensor]]:
        features = neck(pooled)
        yield "the layers between pooling and the last one", features
        for shape in self.shapes:
            features = shape(features)
            yield shape.name, features
        logits = self.logits(features, classifier)
        yield self.head.name, logits
        yield self.score.name, self.score(features, logits, classifier)

    def forward(self, activations: Activations, neck: Neck, classifier: Classifier) -> Scores:
        *_, (_, scores) = self.steps(activations, neck, classifier)
        return scores

    def from_pooled(self, pooled: Features, neck: Neck, classifier: Classifier) -> Scores:
        """The scores of features that are pooled already."""
        *_, (_, scores) = self._steps_behind(pooled, neck, classifier)
        return scores


@dataclass(frozen=True)
class Composition:
    """What a spec names: one branch, or several and what fuses them. Iterating gives the branches."""

    branches: Sequence[Branch]
    fuse: Fuse | None = None

    def __iter__(self) -> Iterator[Branch]:
        return iter(self.branches)

    def __len__(self) -> int:
        return len(self.branches)

    @property
    def stages(self) -> list[Stage]:
        """Every stage, in the order of the text; what fuses stands last."""
        return [stage for branch in self.branches for stage in branch.stages] + (
            [] if self.fuse is None else [self.fuse]
        )

    @property
    def learns(self) -> bool:
        """Whether anything is fitted on data."""
        return self.fuse is not None or any(branch.learns for branch in self.branches)

    def text(self) -> str:
        """The canonical text; fusing by plain ``fisher`` goes without saying."""
        parts = [branch.text() for branch in self.branches]
        shown = [] if self.fuse is None or self.fuse.text() == "fisher" else [self.fuse.text()]
        return " | ".join(parts + shown)

    def branch_scores(self, activations: Activations, neck: Neck, classifier: Classifier) -> Tensor:
        """(batch, branch)."""
        return torch.stack([branch(activations, neck, classifier) for branch in self.branches], 1)

    def fused(self, scores: Tensor) -> Scores:
        """One score per image from (batch, branch)."""
        fused: Scores = scores[:, 0] if self.fuse is None else self.fuse(scores)
        return fused
