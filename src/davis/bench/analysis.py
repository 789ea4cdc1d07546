"""Does the paper's argument hold on this model and these images?

The paper's appendix "Statistical Analysis" argues in four steps. Write E_in and E_out for the mean over ID and OOD
images, and mu, sigma, m for a channel's mean, standard deviation and maximum.

1. Observation 1: for most channels E_in exceeds E_out, in mu, in sigma and in m.
2. The separation gap of a feature h is E_in[h] - E_out[h], one number per channel. Lemma 1: the gap of
   mu + gamma sigma is at least that of mu (equivalent to the sigma part of step 1). Observation 2: so is the gap of m.
3. Assumption: W^T 1 >= 0, where W is channel x class: each class's weights sum to zero or more.
4. Theorem: then each logit's gap, W^T (gap of h), grows as well, and with it that of the energy.

Step 4 treats the growth of the gap as one number for all channels; with a different growth in each channel the
assumption does not suffice, so the growth of every logit's gap is also computed directly. And a gap grows with the
size of a feature, which separates nothing by itself: the standardised gap (in standard deviations of the feature over
images) says whether the feature does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from davis.bench.results import UNITS, Group, Results

Values: TypeAlias = NDArray[np.float64]
Units: TypeAlias = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Gaps:
    """The separation gaps of one OOD set: ID minus OOD, one number per channel."""

    mu: Values
    sigma: Values
    m: Values
    mu_sigma: Values  # of mu + gamma sigma


@dataclass(frozen=True)
class Condition:
    """The assumption on the last layer, W^T 1 >= 0, and the same sums taken over classes."""

    classes: float  # share of classes whose weights sum to >= 0: the paper's condition asks for 1
    channels: float  # share of channels whose weights sum to >= 0
    smallest: float  # the smallest sum of a class

    @property
    def holds(self) -> bool:
        """Whether the paper's condition does."""
        return self.smallest >= 0


@dataclass(frozen=True)
class Finding:
    """The argument on one OOD set; shares from 0 to 1, dictionaries by feature."""

    set: str
    group: Group
    average: dict[str, float]  # gap, averaged over channels
    above: dict[str, float]  # share of channels where ID exceeds OOD
    wider: dict[str, float]  # share of channels where the gap is at least that of mu
    standardised: dict[str, float]  # average over channels of the gap in standard deviations over images
    logit: dict[str, float] | None  # gap of a logit, averaged over classes
    logit_wider: dict[str, float] | None  # share of classes where that gap is at least that under mu


FEATURES = ("mu", "sigma", "m", "mu_sigma")
DAVIS = ("m", "mu_sigma")


def gaps(id_units: Units, ood_units: Units, *, gamma: float) -> Gaps:
    """ID minus OOD per channel, of each statistic averaged over images."""
    mu, sigma, m = (id_units[name].astype(np.float64) - ood_units[name].astype(np.float64) for name in UNITS)
    return Gaps(mu, sigma, m, mu + gamma * sigma)


def features(units: Units, gamma: float) -> dict[str, Values]:
    """Each feature of the stored sample of images, (image, channel)."""
    mu, sigma, m = (units[f"sample_{name}"].astype(np.float64) for name in UNITS)
    return {"mu": mu, "sigma": sigma, "m": m, "mu_sigma": mu + gamma * sigma}


def standardised(id_units: Units, ood_units: Units, *, gamma: float) -> dict[str, Values]:
    """Each feature's gap over the root of the average of its two variances over images, per channel.

    From the stored samples; 0 where a channel never varies.
    """
    sides = [features(units, gamma) for units in (id_units, ood_units)]
    found = {}
    for name in FEATURES:
        inside, outside = (side[name] for side in sides)
        spread = np.sqrt((inside.var(axis=0) + outside.var(axis=0)) / 2)
        gap = inside.mean(axis=0) - outside.mean(axis=0)
        found[name] = np.divide(gap, spread, out=np.zeros_like(gap), where=spread > 0)
    return found


def condition(weight: NDArray[Any]) -> Condition:
    """The assumption, read off a (class, channel) weight as torch keeps it.

    >>> condition(np.array([[1.0, -1.0], [2.0, -3.0]]))
    Condition(classes=0.5, channels=0.5, smallest=-1.0)
    """
    values = weight.astype(np.float64)
    by_class, by_channel = values.sum(axis=1), values.sum(axis=0)
    return Condition(float((by_class >= 0).mean()), float((by_channel >= 0).mean()), float(by_class.min()))


def logit_gaps(weight: NDArray[Any], found: Gaps) -> dict[str, Values]:
    """W^T (gap) for mu, m and mu + gamma sigma: by how much each logit is higher on ID images, on average."""
    values = weight.astype(np.float64)
    return {name: values @ getattr(found, name) for name in ("mu", *DAVIS)}


def weight_of(results: Results) -> NDArray[Any] | None:
    """The last layer's (class, channel) weight, or None where that layer is not linear."""
    try:
        return results.head()["weight"]
    except FileNotFoundError:
        return None


def examine(results: Results) -> list[Finding]:
    """The argument on every OOD set of a run."""
    weight = weight_of(results)
    inside = results.units(results.id)
    findings = []
    for name, group in results.groups.items():
        outside = results.units(name)
        found = gaps(inside, outside, gamma=results.gamma)
        by_feature = {feature: getattr(found, feature) for feature in FEATURES}
        logits = None
        if weight is not None and weight.shape[1] == len(found.mu):  # a layer before the last may change the width
            logits = logit_gaps(weight, found)
        spread = standardised(inside, outside, gamma=results.gamma)
        findings.append(
            Finding(
                set=name,
                group=group,
                average={feature: float(gap.mean()) for feature, gap in by_feature.items()},
                above={feature: float((gap > 0).mean()) for feature, gap in by_feature.items()},
                wider={feature: float((by_feature[feature] >= found.mu).mean()) for feature in DAVIS},
                standardised={feature: float(gap.mean()) for feature, gap in spread.items()},
                logit=None if logits is None else {key: float(gap.mean()) for key, gap in logits.items()},
                logit_wider=None
                if logits is None
                else {key: float((logits[key] >= logits["mu"]).mean()) for key in DAVIS},
            )
        )
    return findings
