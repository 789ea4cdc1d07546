"""Verdicts from scores: thresholds and p-values that keep a promise on in-distribution images.

A score becomes a verdict by its rank among n scores of held-out in-distribution images:

    p = (1 + #{held-out scores <= score}) / (n + 1),    OOD when score < s_(k), the k-th smallest held-out score

Two promises can be bought with the same images, for new images that are exchangeable with the held-out ones:

- ``marginal`` (split conformal; Vovk et al., 2005): k = floor(alpha (n + 1)), so OOD when p <= alpha. An
  in-distribution image is rejected with a probability of at most alpha, on average over draws of the held-out images.
- ``conditional`` (on the draw, by the Beta law of order statistics; Vovk, 2012): the largest k for which the rejected
  share is at most alpha with a confidence of 1 - delta over that draw. This k is smaller: OOD when p <= k / (n + 1).
  It needs more images, and keeps the promise for the threshold in hand.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from davis.ranks import least_count, rank_of
from davis.types import Labels, Scores, double

Kind: TypeAlias = Literal["marginal", "conditional"]

CAPACITY = 100_000
"""The most held-out scores that are kept; of more, a random part of this size sets the threshold."""

ASSUMPTION = (
    "new in-distribution images are exchangeable with the held-out ones, "
    "which neither the fit nor the network's training has seen"
)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Held-out scores and the promise that was made with them.

    Groups are sets of predicted classes with a threshold of their own (Mondrian calibration); most detectors have one.
    """

    scores: Tensor  # float64 on the CPU: groups one after another, ascending in each
    sizes: tuple[int, ...]  # how many scores each group has
    tpr: float  # the share of in-distribution images to accept, 1 - alpha
    kind: Kind = "marginal"
    delta: float | None = None  # the doubt that is left by ``conditional``
    groups: tuple[int, ...] | None = None  # the group of each class, where there are several

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calibration) and self.statement() == other.statement()

    __hash__ = None  # type: ignore[assignment]

    @property
    def alpha(self) -> float:
        """The share of in-distribution images that may be rejected."""
        return float(_alpha(self.tpr))

    @property
    def count(self) -> int:
        """The held-out images that it rests on."""
        return len(self.scores)

    @property
    def ranks(self) -> tuple[int, ...]:
        """k of each group: its threshold is its k-th smallest held-out score."""
        return tuple(rank(size, tpr=self.tpr, kind=self.kind, delta=self.delta) for size in self.sizes)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The score of each group below which an image counts as OOD."""
        starts = (sum(self.sizes[:place]) for place in range(len(self.sizes)))
        return tuple(self.scores[start + k - 1].item() for start, k in zip(starts, self.ranks, strict=True))

    @property
    def threshold(self) -> float | None:
        """The one threshold; None where predicted classes have their own (``thresholds``, ``groups``)."""
        return self.thresholds[0] if self.groups is None else None

    def to_dict(self) -> dict[str, Any]:
        """All but the scores, as plain values for an artifact."""
        return {
            "kind": self.kind,
            "tpr": self.tpr,
            "delta": self.delta,
            "thresholds": list(self.thresholds),
            "sizes": list(self.sizes),
            "groups": None if self.groups is None else list(self.groups),
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any], scores: Tensor, *, classes: int | None = None) -> Calibration:
        """What `to_dict` gave, checked against the scores; ``classes`` is how many the model has, where known."""
        if value.keys() != {"kind", "tpr", "delta", "thresholds", "sizes", "groups"}:
            raise ValueError(f"it has the fields {', '.join(sorted(value))}")
        sizes, groups = value["sizes"], value["groups"]
        if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
            raise ValueError(f"sizes are {sizes!r}")
        if scores.dtype != torch.float64 or scores.shape != (sum(sizes),) or not scores.isfinite().all():
            raise ValueError(
                f"its scores are {scores.dtype} {tuple(scores.shape)}, not {sum(sizes)} finite float64 numbers"
            )
        if any(bool((part.diff() < 0).any()) for part in scores.split(sizes)):
            raise ValueError("its scores are not in order")
        if groups is None and len(sizes) != 1:
            raise ValueError(f"{len(sizes)} groups and no classes in them")
        if groups is not None:
            known = isinstance(groups, list) and all(type(group) is int for group in groups)
            if not known or set(groups) != set(range(len(sizes))) or len(groups) != (classes or len(groups)):
                raise ValueError("its groups are not those of the model's classes")
        if value["kind"] not in get_args(Kind) or type(value["tpr"]) is not float or not 0 < value["tpr"] < 1:
            raise ValueError(f"its kind is {value['kind']!r} and its tpr {value['tpr']!r}")
        doubt = value["delta"]
        sound = doubt is None if value["kind"] == "marginal" else type(doubt) is float and 0 < doubt < 1
        if not sound:
            raise ValueError(f"its delta is {doubt!r}")
        found = cls(
            scores=scores,
            sizes=tuple(sizes),
            tpr=value["tpr"],
            kind=value["kind"],
            delta=doubt,
            groups=None if groups is None else tuple(groups),
        )
        if min(found.ranks) < 1:
            raise ValueError(f"{min(sizes)} scores cannot promise tpr={found.tpr}")
        if value["thresholds"] != list(found.thresholds):
            raise ValueError(
                f"its thresholds are {value['thresholds']!r}, and its scores give {list(found.thresholds)}"
            )
        return found

    @property
    def sha256(self) -> str:
        """A digest of the held-out scores: two verdicts with the same one rest on the same images."""
        return hashlib.sha256(self.scores.numpy().tobytes()).hexdigest()

    def p_values(self, scores: Scores, classes: Labels) -> Tensor:
        """(batch,) how likely an in-distribution image, of the same group, scores as low; float64."""
        _check_scores(scores)
        group = self._group(classes, scores.device)
        at_most = torch.zeros_like(group)
        for place, part in enumerate(self.scores.to(scores.device).split(self.sizes)):
            found = torch.searchsorted(part, double(scores), right=True)
            at_most = torch.where(group == place, found, at_most)
        counts = torch.tensor(self.sizes, device=scores.device)[group]
        return (1 + at_most) / double(1 + counts)

    def is_ood(self, scores: Scores, classes: Labels) -> Tensor:
        """(batch,) whether an image scores below the threshold of its predicted class."""
        _check_scores(scores)
        thresholds = torch.tensor(self.thresholds, dtype=torch.float64).to(double(scores))
        return double(scores) < thresholds[self._group(classes, scores.device)]

    def statement(self) -> dict[str, Any]:
        """All that a reader needs to trace a verdict: numbers, method, assumption, digest of the scores."""
        return {
            "method": self.kind,
            "n": self.count,
            "alpha": self.alpha,
            "delta": self.delta,
            "threshold": self.threshold,
            "thresholds": None if self.groups is None else list(self.thresholds),
            "groups": None if self.groups is None else list(self.groups),
            "promise": self.promise(),
            "assumes": ASSUMPTION,
            "scores_sha256": self.sha256,
        }

    def promise(self) -> str:
        """The guarantee in one sentence."""
        who = "in-distribution images" if self.groups is None else "in-distribution images of each group of classes"
        share = f"at least {100 * self.tpr:g}% of {who} are accepted"
        if self.kind == "marginal":
            return f"{share}, on average over draws of the held-out images"
        return f"{share}, with a confidence of {100 * (1 - (self.delta or 0)):g}% over the draw of the held-out images"

    def _group(self, classes: Labels, device: torch.device) -> Tensor:
        if self.groups is None:
            return torch.zeros(len(classes), dtype=torch.int64, device=device)
        return torch.tensor(self.groups, device=device)[classes]


def calibrate(
    scores: Scores,
    *,
    tpr: float = 0.95,
    kind: Kind = "marginal",
    delta: float = 0.05,
    classes: Labels | None = None,
    groups: Sequence[int] | None = None,
    seed: int = 0,
) -> Calibration:
    """The calibration that accepts a share ``tpr`` of in-distribution images, from scores of held-out ones.

    With ``groups``, the group of every class (see ``pooled``), and ``classes``, the predicted class of every held-out
    image, each group gets a threshold of its own and the promise holds in each.

    >>> calibrate(torch.arange(19.0), tpr=0.95).threshold
    0.0
    """
    if kind not in get_args(Kind):
        raise ValueError(f"a calibration is marginal or conditional, not {kind!r}")
    _check_scores(scores)
    _alpha(tpr)
    if kind == "conditional":
        _doubt(delta)
    if (classes is None) != (groups is None):
        raise ValueError(
            "thresholds by class need the predicted classes and the group of each class: give both or none"
        )
    scores = double(scores.detach()).cpu()
    members = torch.zeros(len(scores), dtype=torch.int64)
    if classes is not None and groups is not None:
        members = _members(classes.cpu(), tuple(groups), len(scores))
    if len(scores) > CAPACITY:  # a random part of exchangeable scores is exchangeable too
        kept = torch.randperm(len(scores), generator=torch.Generator().manual_seed(seed))[:CAPACITY]
        scores, members = scores[kept], members[kept]
    parts = [scores[members == group].sort().values for group in range(1 if groups is None else max(groups) + 1)]
    doubt = float(delta) if kind == "conditional" else None
    for group, part in enumerate(parts):
        if rank(len(part), tpr=tpr, kind=kind, delta=doubt) < 1:
            raise ValueError(_too_few(len(part), tpr, kind, doubt, None if groups is None else group))
    if len(scores) > 1 and float(scores.min()) == float(scores.max()):
        same = scores[0].item() + 0.0  # no negative zero
        warnings.warn(
            f"all {len(scores)} held-out scores are {same:.6g}: the detector cannot tell images apart, and only lower "
            "scores will be called OOD",
            stacklevel=2,
        )
    return Calibration(
        scores=torch.cat(parts) + 0.0,  # no negative zero: equal scores have equal bytes
        sizes=tuple(len(part) for part in parts),
        tpr=float(tpr),
        kind=kind,
        delta=doubt,
        groups=None if groups is None else tuple(groups),
    )


def rank(count: int, *, tpr: float, kind: Kind = "marginal", delta: float | None = 0.05) -> int:
    """k: the threshold is the k-th smallest of ``count`` held-out scores; 0 where the promise cannot be kept.

    >>> rank(1000, tpr=0.95), rank(1000, tpr=0.95, kind="conditional", delta=0.05)
    (50, 39)
    """
    alpha = _alpha(tpr)
    if kind == "marginal":
        return math.floor(alpha * (count + 1))
    return rank_of(count, alpha=float(alpha), delta=_doubt(delta))


def needed(*, tpr: float, kind: Kind = "marginal", delta: float | None = 0.05) -> int:
    """The fewest held-out images with which the promise can be kept.

    >>> needed(tpr=0.95), needed(tpr=0.99), needed(tpr=0.95, kind="conditional"), needed(tpr=0.99, kind="conditional")
    (19, 99, 59, 299)
    """
    alpha = _alpha(tpr)
    if kind == "marginal":
        return math.ceil(1 / alpha) - 1
    return least_count(alpha=float(alpha), delta=_doubt(delta))


def pooled(counts: Tensor, held_out: int, *, tpr: float, kind: Kind = "marginal", delta: float = 0.05) -> list[int]:
    """The group of each class: one for every class with images enough, and the last for all rare ones together.

    ``counts`` are those of the predicted classes of the *fit* images. Groups must not depend on the scores that are
    ranked in them, so they are chosen by the number of held-out images that these counts lead one to expect; twice the
    minimum, because that number varies.
    """
    expected = double(counts.cpu()) / max(int(counts.sum()), 1) * held_out
    enough = 2 * needed(tpr=tpr, kind=kind, delta=delta)
    order = expected.argsort(descending=True, stable=True).tolist()
    alone = [label for label in order if expected[label] >= enough]
    while alone and len(alone) < len(order) and sum(float(expected[label]) for label in order[len(alone) :]) < enough:
        alone.pop()  # the rare ones together must be enough as well
    places = {label: place for place, label in enumerate(sorted(alone))}
    return [places.get(label, len(alone)) for label in range(len(order))]


def discoveries(p_values: Tensor, *, q: float = 0.1, held_out: int | None = None) -> Tensor:
    """(images,) which of many images to call OOD, so that at most a share q of these calls is wrong, on average.

    Benjamini and Hochberg (1995); valid for conformal p-values that share their held-out images (Bates et al., 2023).
    A p-value is never below 1 / (n + 1), so among m images a lone OOD image can be found only if n + 1 >= m / q;
    ``held_out`` is n, and a warning says when it is too small for that.

    >>> discoveries(torch.tensor([0.01, 0.8, 0.04, 0.02]), q=0.1).tolist()
    [True, False, True, True]
    """
    if not 0 < q < 1:
        raise ValueError(f"q must lie between 0 and 1, such as 0.1 for one wrong call in ten; got {q}")
    if p_values.ndim != 1 or not bool(((p_values > 0) & (p_values <= 1)).all()):
        raise ValueError("p-values are a row of numbers above 0 and up to 1")
    m = len(p_values)
    share = Fraction(str(float(q)))
    if held_out is not None and m and held_out + 1 < m / share:
        warnings.warn(
            f"a lone OOD image among {m} cannot be found at q={q}: that takes {math.ceil(m / share) - 1} held-out "
            f"images, and there are {held_out}",
            stacklevel=2,
        )
    ordered, order = double(p_values).sort(stable=True)
    limits = double(torch.arange(1, m + 1, device=p_values.device)) * float(share) / max(m, 1)
    passed = (ordered <= limits * (1 + 1e-12)).nonzero().flatten()  # 3 * 0.1 / 3 must not miss 0.1
    found = torch.zeros(m, dtype=torch.bool, device=p_values.device)
    if len(passed):
        found[order[: int(passed[-1]) + 1]] = True
    return found


def _alpha(tpr: float) -> Fraction:
    """1 - tpr from the digits as written: in floats (1 - 0.9) * 10 is below 1."""
    if not 1e-9 <= tpr <= 1 - 1e-9:
        raise ValueError(f"tpr must lie between 0 and 1, such as 0.95 to accept 95% of ID images; got {tpr}")
    return 1 - Fraction(str(float(tpr)))


def _members(classes: Labels, groups: tuple[int, ...], count: int) -> Tensor:
    """(images,) the group of each; what does not fit together is refused."""
    if not groups or set(groups) != set(range(max(groups) + 1)):
        raise ValueError(f"groups are numbered from 0 without a gap, one for each class; got {list(groups)[:10]}")
    whole = classes.shape == (count,) and not classes.is_floating_point()
    if not whole or (count and not 0 <= int(classes.min()) <= int(classes.max()) < len(groups)):
        raise ValueError(f"classes must be {count} whole numbers from 0 to {len(groups) - 1}, one for each score")
    return torch.tensor(groups)[classes]


def _doubt(delta: float | None) -> float:
    if delta is None or not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, such as 0.05 for a confidence of 95%; got {delta}")
    return float(delta)


def _check_scores(scores: Scores) -> None:
    if scores.ndim != 1:
        raise ValueError(f"calibration takes a row of scores, got shape {tuple(scores.shape)}")
    if not scores.isfinite().all():
        raise ValueError(f"{int((~scores.isfinite()).sum())} of {len(scores)} scores are NaN or infinite")


def _too_few(count: int, tpr: float, kind: Kind, delta: float | None, group: int | None) -> str:
    where = "" if group is None else f" of class group {group}"
    doubt = "" if delta is None else f" with delta={delta:g}"
    least = needed(tpr=tpr, kind=kind, delta=delta)
    instead = "a lower tpr" if group is None else "a lower tpr, or one threshold for all classes"
    return f"{count} held-out images{where} are too few to promise tpr={tpr}{doubt}; {least} are needed, or {instead}"
