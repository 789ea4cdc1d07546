"""How sure a comparison of detectors is: the same redrawn images for every candidate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Scores: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
Metric: TypeAlias = Literal["auroc", "fpr95"]

_AT_ONCE = 2_000_000  # numbers held for a block of resamples


class Bootstrap:
    """Images drawn anew, with replacement, many times; the draws are the same for every candidate.

    So the difference of two candidates is that on the same images, and its interval is not widened by images that are
    hard for both.
    """

    def __init__(self, clean: int, proxied: Mapping[str, int], *, resamples: int = 1000, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.resamples = resamples
        self._clean = _draws(random, clean, resamples)
        self._proxied = {name: _draws(random, rows, resamples) for name, rows in proxied.items()}

    def values(self, clean: Scores, proxied: Mapping[str, Scores], metric: Metric) -> Scores:
        """(resamples,) the metric, averaged over the proxies, on each draw."""
        parts = [_values(clean, scores, self._clean, self._proxied[name], metric) for name, scores in proxied.items()]
        average: Scores = np.mean(parts, axis=0)
        return average


def interval(values: Scores, *, confidence: float = 0.95) -> tuple[float, float]:
    """The range in which the middle share ``confidence`` of the draws lies."""
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _draws(random: np.random.Generator, rows: int, resamples: int) -> Counts:
    """(resamples, rows) how often each image was drawn."""
    return random.multinomial(rows, np.full(rows, 1 / rows), size=resamples)


def _values(clean: Scores, proxied: Scores, clean_counts: Counts, proxied_counts: Counts, metric: Metric) -> Scores:
    merged = np.concatenate([clean, proxied])
    order = np.argsort(-merged, kind="stable")
    ordered = merged[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # the last of each run of equal scores
    is_id = order < len(clean)
    values = []
    block = max(1, _AT_ONCE // len(merged))
    for start in range(0, len(clean_counts), block):
        rows = slice(start, start + block)
        ids, oods = (np.zeros((len(clean_counts[rows]), len(merged)), dtype=np.int64) for _ in range(2))
        ids[:, is_id] = clean_counts[rows][:, order[is_id]]
        oods[:, ~is_id] = proxied_counts[rows][:, order[~is_id] - len(clean)]
        ids, oods = ids.cumsum(1)[:, last], oods.cumsum(1)[:, last]
        values.append(_auroc(ids, oods) if metric == "auroc" else _fpr95(ids, oods))
    return np.concatenate(values)


def _auroc(ids: Counts, oods: Counts) -> Scores:
    """The chance that an ID score beats an OOD score, ties half, from counts at each threshold downwards."""
    new_ids, new_oods = np.diff(ids, axis=1, prepend=0), np.diff(oods, axis=1, prepend=0)
    below = 2 * (oods[:, -1:] - oods) + new_oods
    wins: Scores = (new_ids * below).sum(1) / (2 * ids[:, -1] * oods[:, -1])
    return wins


def _fpr95(ids: Counts, oods: Counts) -> Scores:
    place = np.argmax(ids / ids[:, -1:] >= 0.95, axis=1)
    passed: Scores = np.take_along_axis(oods, place[:, None], axis=1)[:, 0] / oods[:, -1]
    return passed
