"""How well scores tell in-distribution from OOD: AUROC, AUPR, FPR at a TPR; ties are exact.

In-distribution is the positive class and its scores are higher, unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Convention: TypeAlias = Literal["exact", "davis", "wisc", "vim", "cadref", "openood"]
Counts: TypeAlias = NDArray[np.int64]


class Curve(NamedTuple):
    """At each distinct score, from the highest down: how many of either kind score that or more."""

    thresholds: NDArray[np.float64]
    id: Counts
    ood: Counts

    def turned(self) -> Curve:
        """The same seen from the other side: OOD positive, scores negated."""
        # The counts of scores <= t are all minus those of scores > t, which stand one place earlier.
        id_above, ood_above = (np.concatenate([[0], side[:-1]]) for side in (self.id, self.ood))
        return Curve(-self.thresholds[::-1], (self.ood[-1] - ood_above)[::-1], (self.id[-1] - id_above)[::-1])


class Metrics(NamedTuple):
    """The usual four, as shares from 0 to 1."""

    fpr: float
    auroc: float
    aupr_in: float
    aupr_out: float


def curve(id_scores: ArrayLike, ood_scores: ArrayLike) -> Curve:
    """Sort once; every metric is then a few sums over the result."""
    positive, negative = np.sort(_checked("ID", id_scores)), np.sort(_checked("OOD", ood_scores))
    # Merge two sorted rows: each ID score goes behind the OOD scores below it.
    places = np.searchsorted(negative, positive) + np.arange(len(positive))
    is_id = np.zeros(len(positive) + len(negative), dtype=bool)
    is_id[places] = True
    merged = np.empty(len(is_id))
    merged[is_id] = positive
    merged[~is_id] = negative
    merged, is_id = merged[::-1], is_id[::-1]
    last = np.flatnonzero(np.append(merged[1:] != merged[:-1], True))  # the last of each run of equal scores
    ids = np.cumsum(is_id, dtype=np.int64)[last]
    return Curve(merged[last], ids, last + 1 - ids)


def evaluate(id_scores: ArrayLike, ood_scores: ArrayLike, *, tpr: float = 0.95) -> Metrics:
    """All four metrics from one sort.

    >>> evaluate([2.0, 3.0, 4.0], [0.0, 1.0, 2.0])
    Metrics(fpr=0.333..., auroc=0.944..., aupr_in=0.916..., aupr_out=0.916...)
    """
    whole = curve(id_scores, ood_scores)
    turned = whole.turned()
    return Metrics(_fpr(whole, tpr, "exact"), _auroc(whole), _average_precision(whole), _average_precision(turned))


def auroc(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """The chance that an ID score beats an OOD score; a tie counts half."""
    return _auroc(curve(id_scores, ood_scores))


def aupr_in(id_scores: ArrayLike, ood_scores: ArrayLike, *, rule: Literal["step", "trapezoid"] = "step") -> float:
    """The area under precision over recall with ID positive.

    ``step`` is average precision; ``trapezoid``, which OpenOOD and ViM use, is larger under ties.
    """
    return _aupr(curve(id_scores, ood_scores), rule)


def aupr_out(id_scores: ArrayLike, ood_scores: ArrayLike, *, rule: Literal["step", "trapezoid"] = "step") -> float:
    """The same with OOD positive and scores negated."""
    return _aupr(curve(id_scores, ood_scores).turned(), rule)


def fpr_at_tpr(
    id_scores: ArrayLike, ood_scores: ArrayLike, *, tpr: float = 0.95, convention: Convention = "exact"
) -> float:
    """The share of OOD images that pass when a share ``tpr`` of ID images passes.

    ``exact``: the smallest share of OOD scores >= t over all t that at least ``tpr`` of ID scores
    reach. The others are what published codes compute: ``davis`` (the authors' and energy_ood's:
    the recall closest to tpr, at its lowest threshold), ``wisc`` (KNN-OOD, DICE: above the ID score
    of rounded rank, ties not counted), ``vim`` (the floor(tpr n)-th largest ID score), ``cadref`` (as
    exact, on scikit-learn's thinned curve) and ``openood``, another quantity: OOD is positive there,
    so it is the share of ID images rejected when ``tpr`` of OOD images are.
    """
    if convention not in get_args(Convention):
        raise ValueError(f"unknown convention {convention!r}; known: {', '.join(get_args(Convention))}")
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must be above 0 and at most 1, such as 0.95; got {tpr}")
    return _fpr(curve(id_scores, ood_scores), tpr, convention)


def interval(
    id_scores: ArrayLike,
    ood_scores: ArrayLike,
    metric: Callable[[Curve], float] | Literal["auroc", "fpr"] = "auroc",
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """A bootstrap percentile interval: both sets are drawn anew, with replacement, ``resamples`` times."""
    if not 0 < confidence < 1 or resamples < 1:
        raise ValueError(f"confidence must lie between 0 and 1 and resamples above 0; got {confidence}, {resamples}")
    named: dict[str, Callable[[Curve], float]] = {"auroc": _auroc, "fpr": lambda drawn: _fpr(drawn, 0.95, "exact")}
    if isinstance(metric, str) and metric not in named:
        raise ValueError(f"unknown metric {metric!r}; known: {', '.join(named)}, or a function of a Curve")
    compute = named[metric] if isinstance(metric, str) else metric
    whole = curve(id_scores, ood_scores)
    random = np.random.default_rng(seed)
    sides = [(np.diff(side, prepend=0), int(side[-1])) for side in (whole.id, whole.ood)]
    values = np.empty(resamples)
    for draw in range(resamples):
        ids, oods = (np.cumsum(random.multinomial(total, counts / total)) for counts, total in sides)
        seen = np.append(True, (np.diff(ids) > 0) | (np.diff(oods) > 0))  # thresholds that were drawn
        seen[0] = ids[0] + oods[0] > 0
        values[draw] = compute(Curve(whole.thresholds[seen], ids[seen], oods[seen]))
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _checked(name: str, scores: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"{name} scores must be a row of at least one number, got shape {values.shape}")
    if not np.isfinite(values).all():
        raise ValueError(f"{name} scores contain NaN or infinity, at row {int(np.argmin(np.isfinite(values)))} first")
    return values


def _auroc(whole: Curve) -> float:
    ids, oods = np.diff(whole.id, prepend=0), whole.ood
    # Twice the count of (ID, OOD) pairs in the right order, ties once: integers, so nothing is lost.
    below = 2 * oods[-1] - oods - np.concatenate([[0], oods[:-1]])
    return int(np.dot(ids, below)) / (2 * int(whole.id[-1]) * int(oods[-1]))


def _aupr(whole: Curve, rule: str) -> float:
    if rule == "step":
        return _average_precision(whole)
    if rule != "trapezoid":
        raise ValueError(f"unknown rule {rule!r}; known: step, trapezoid")
    precision = np.append(1.0, whole.id / (whole.id + whole.ood))
    gained = np.diff(whole.id, prepend=0) / whole.id[-1]
    return float(np.dot(gained, precision[1:] + precision[:-1]) / 2)


def _average_precision(whole: Curve) -> float:
    gained = np.diff(whole.id, prepend=0)
    return float(np.dot(gained, whole.id / (whole.id + whole.ood)) / whole.id[-1])


def _fpr(whole: Curve, tpr: float, convention: str) -> float:
    total = int(whole.id[-1])
    oods: Any = whole.ood
    if convention == "exact":
        passed = oods[_first_reaching(whole.id, tpr)]
    elif convention == "davis":
        passed = oods[_closest_recall(whole.id, tpr)]
    elif convention == "wisc":
        rank = round((1 - tpr) * total)
        passed = _above(whole, np.searchsorted(whole.id, total - rank))
    elif convention == "vim":
        passed = oods[np.searchsorted(whole.id, max(int(tpr * total), 1))]
    elif convention == "cadref":
        return _fpr(_thinned(whole), tpr, "exact")
    else:
        return _fpr(_thinned(whole.turned()), tpr, "exact")
    return float(passed / whole.ood[-1])


def _first_reaching(ids: Counts, tpr: float) -> int:
    """The highest threshold that a share ``tpr`` of ID scores reaches."""
    return int(np.searchsorted(ids / ids[-1], tpr))


def _closest_recall(ids: Counts, tpr: float) -> int:
    """The place of the recall closest to ``tpr``: of two the higher, and of equal recalls the lowest threshold."""
    last = int(np.searchsorted(ids, ids[-1]))  # thresholds below the lowest ID score are not looked at
    distance = np.abs(ids[: last + 1] / ids[-1] - tpr)
    return last - int(np.argmin(distance[::-1]))


def _above(whole: Curve, place: Any) -> int:
    """How many OOD scores lie strictly above a threshold."""
    return int(whole.ood[place - 1]) if place > 0 else 0


def _thinned(whole: Curve) -> Curve:
    """scikit-learn's ``drop_intermediate``: points on a straight piece of the ROC curve are left out."""
    if len(whole.id) < 3:
        return whole
    bends = np.logical_or(np.diff(whole.ood, 2), np.diff(whole.id, 2))
    kept = np.concatenate([[True], bends, [True]])
    return Curve(*(column[kept] for column in whole))
