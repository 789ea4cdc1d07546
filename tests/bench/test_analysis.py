"""The paper's argument in numbers, against plain loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from davis.bench.analysis import condition, examine, gaps, logit_gaps, standardised
from davis.bench.results import Results, save, save_arrays

CHANNELS, IMAGES, GAMMA = 7, 12, 2.0


def made_units(seed: int, scale: float) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    sample = {key: random.gamma(2, scale, (IMAGES, CHANNELS)).astype(np.float32) for key in ("mean", "std", "max")}
    averages = {key: values.mean(axis=0) for key, values in sample.items()}
    return averages | {f"sample_{key}": values for key, values in sample.items()}


@pytest.fixture
def sides() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    return made_units(1, 1.0), made_units(2, 0.7)


def test_gaps_are_id_minus_ood_channel_by_channel(sides: tuple[Any, Any]) -> None:
    inside, outside = sides
    found = gaps(inside, outside, gamma=GAMMA)
    for j in range(CHANNELS):
        mu, sigma, m = (float(inside[key][j]) - float(outside[key][j]) for key in ("mean", "std", "max"))
        assert (found.mu[j], found.sigma[j], found.m[j]) == pytest.approx((mu, sigma, m))
        assert found.mu_sigma[j] == pytest.approx(mu + GAMMA * sigma)


def test_standardised_gaps_divide_by_the_spread_over_images(sides: tuple[Any, Any]) -> None:
    found = standardised(*sides, gamma=GAMMA)
    for j in range(CHANNELS):
        columns = [[row[j] for row in side["sample_mean"] + GAMMA * side["sample_std"]] for side in sides]
        means = [sum(column) / IMAGES for column in columns]
        variances = [
            sum((value - mean) ** 2 for value in column) / IMAGES for column, mean in zip(columns, means, strict=True)
        ]
        expected = (means[0] - means[1]) / (sum(variances) / 2) ** 0.5
        assert found["mu_sigma"][j] == pytest.approx(expected, rel=1e-5)


def test_a_channel_that_never_varies_separates_nothing(sides: tuple[Any, Any]) -> None:
    for side in sides:
        side["sample_max"][:, 0] = 3
    assert standardised(*sides, gamma=GAMMA)["m"][0] == 0


def test_scaling_a_feature_widens_its_gap_but_not_its_standardised_gap(sides: tuple[Any, Any]) -> None:
    larger = [{key: 10 * values for key, values in side.items()} for side in sides]
    assert gaps(*larger, gamma=GAMMA).m == pytest.approx(10 * gaps(*sides, gamma=GAMMA).m)
    before, after = (standardised(*pair, gamma=GAMMA)["m"] for pair in (sides, larger))
    assert after == pytest.approx(before, rel=1e-5)


def test_the_condition_sums_each_class_s_weights() -> None:
    weight = np.array([[0.5, -0.2, 0.1], [-1.0, 0.3, 0.2]])
    found = condition(weight)
    assert (found.classes, found.holds) == (0.5, False)
    assert found.smallest == pytest.approx(-0.5)
    assert found.channels == pytest.approx(2 / 3)
    assert condition(weight + 1).holds


def test_under_the_paper_s_own_assumptions_every_logit_gap_grows() -> None:
    """One growth for all channels and class sums of zero or more: then the theorem's conclusion follows."""
    random = np.random.default_rng(5)
    weight = random.normal(0, 1, (6, CHANNELS))
    weight += np.maximum(0, -weight.sum(axis=1).min()) / CHANNELS
    flat = {key: np.zeros(CHANNELS) for key in ("mean", "std", "max")}
    high = {"mean": random.normal(0, 1, CHANNELS), "std": np.full(CHANNELS, 0.4)}
    high["max"] = high["mean"] + 0.9
    assert condition(weight).smallest >= -1e-12
    found = logit_gaps(weight, gaps(high, flat, gamma=GAMMA))
    for feature in ("m", "mu_sigma"):
        assert (found[feature] >= found["mu"] - 1e-9).all()


def test_logit_gaps_are_what_the_last_layer_makes_of_the_gaps(sides: tuple[Any, Any]) -> None:
    weight = np.random.default_rng(6).normal(0, 1, (4, CHANNELS)).astype(np.float32)
    found = gaps(*sides, gamma=GAMMA)
    for c in range(4):
        expected = sum(float(weight[c, j]) * found.m[j] for j in range(CHANNELS))
        assert logit_gaps(weight, found)["m"][c] == pytest.approx(expected)


def run(folder: Path, classes_by_channels: tuple[int, int] | None) -> Results:
    for name, (seed, scale) in {"id": (1, 1.0), "svhn": (2, 0.7), "near": (3, 0.95)}.items():
        save_arrays(folder / "units" / f"{name}.npz", made_units(seed, scale))
    if classes_by_channels:
        weight = np.random.default_rng(4).normal(0.1, 1, classes_by_channels)
        save_arrays(folder / "head.npz", {"weight": weight, "bias": np.zeros(len(weight))})
    results = Results("r", "m", "id", None, {"svhn": "far", "near": "near"}, [], None, [], GAMMA)
    save(results, folder)
    return results


def test_findings_summarise_every_set(tmp_path: Path) -> None:
    results = run(tmp_path, (5, CHANNELS))
    far, near = examine(results)
    assert (far.set, far.group, near.set, near.group) == ("svhn", "far", "near", "near")
    found = gaps(results.units("id"), results.units("svhn"), gamma=GAMMA)
    count = wider = logits_wider = 0
    for j in range(CHANNELS):
        count += found.sigma[j] > 0
        wider += found.m[j] >= found.mu[j]
    weight = results.head()["weight"]
    for c in range(5):
        logits_wider += weight[c] @ found.mu_sigma >= weight[c] @ found.mu
    assert far.average["mu_sigma"] == pytest.approx(sum(found.mu_sigma) / CHANNELS)
    assert far.above["sigma"] == pytest.approx(count / CHANNELS)
    assert far.wider["m"] == pytest.approx(wider / CHANNELS)
    assert far.logit_wider is not None
    assert far.logit_wider["mu_sigma"] == pytest.approx(logits_wider / 5)
    # Lemma 1 says no more than this: the gap widens exactly where sigma is larger on ID images.
    assert far.wider["mu_sigma"] == pytest.approx(np.mean(found.sigma >= 0))


@pytest.mark.parametrize("head", [None, (5, 9)])
def test_without_a_weight_that_fits_there_are_no_logit_gaps(tmp_path: Path, head: tuple[int, int] | None) -> None:
    assert all(finding.logit is finding.logit_wider is None for finding in examine(run(tmp_path, head)))
