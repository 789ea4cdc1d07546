"""Statistics: streamed equals whole, merged equals single pass, bounded, and strict about its input."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from davis.statistics import NEEDS, Statistics, quantile

CLASSES = 4


def rows_of(count: int, channels: int = 5, *, seed: int = 0, scale: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, channels, generator=generator, dtype=torch.float64) * scale + 0.3
    return {
        "features": features,
        "logits": torch.randn(count, CLASSES, generator=generator, dtype=torch.float64),
        "labels": torch.randint(0, CLASSES, (count,), generator=generator),
        "gap": features * 0.5 + 1,
    }


def collect(
    rows: dict[str, Tensor],
    sizes: Sequence[int] | None = None,
    *,
    needs: frozenset[str] | set[str] = NEEDS,
    capacity: int = 50_000,
    seed: int = 0,
    labelled: bool = True,
) -> Statistics:
    """The statistics of the rows, in batches of the given sizes (the rest in one)."""
    statistics = Statistics(needs, classes=CLASSES, capacity=capacity, seed=seed)
    start = 0
    for size in [*(sizes or []), len(rows["features"])]:
        part = {name: value[start : start + size] for name, value in rows.items()}
        start += size
        if len(part["features"]):
            statistics.update(part["features"], part["logits"], part["labels"] if labelled else None, part["gap"])
    return statistics


def assert_equal_moments(one: Statistics, other: Statistics) -> None:
    assert one.count == other.count
    for name in ("mean", "gap_mean", "variance", "covariance"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-10, atol=1e-13)
    for name in ("class_means", "predicted_means"):
        for mine, theirs in zip(getattr(one, name), getattr(other, name), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-13)
    for q in (0, 0.001, 0.25, 0.5, 0.9, 0.999, 1):
        torch.testing.assert_close(one.quantile(q), other.quantile(q), rtol=0, atol=0)


def sorted_rows(features: Tensor) -> list[list[float]]:
    return sorted(features.tolist())


# -- what is computed --------------------------------------------------------------------------------


def test_moments_are_those_of_the_whole_array() -> None:
    rows = rows_of(101)
    statistics = collect(rows, [1, 30, 2, 40])
    features, labels = rows["features"].numpy(), rows["labels"].numpy()
    predicted = rows["logits"].numpy().argmax(1)
    np.testing.assert_allclose(statistics.mean, features.mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.gap_mean, rows["gap"].numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(statistics.variance, features.var(0, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(statistics.covariance, np.cov(features, rowvar=False, ddof=0), rtol=1e-10, atol=1e-14)
    for by, (means, counts) in ((labels, statistics.class_means), (predicted, statistics.predicted_means)):
        for c in range(CLASSES):
            assert counts[c] == (by == c).sum()
            np.testing.assert_allclose(means[c], features[by == c].mean(0), rtol=1e-12)
    for q in (0, 0.001, 0.1, 0.5, 0.85, 0.9, 0.999, 1):
        np.testing.assert_allclose(statistics.quantile(q), np.percentile(features, 100 * q), rtol=1e-12)


def test_without_labels_classes_are_the_predicted_ones() -> None:
    statistics = collect(rows_of(50), labelled=False)
    for mine, theirs in zip(statistics.class_means, statistics.predicted_means, strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(statistics.sample.labels, statistics.sample.logits.argmax(1))


def test_an_absent_class_has_count_and_mean_zero() -> None:
    rows = rows_of(20)
    rows["labels"] = rows["labels"] % 3
    means, counts = collect(rows).class_means
    assert counts[3] == 0
    assert (means[3] == 0).all()


def test_a_single_row() -> None:
    statistics = collect(rows_of(1))
    assert (statistics.variance == 0).all()
    assert (statistics.covariance == 0).all()
    assert len(statistics.sample.features) == 1
    np.testing.assert_allclose(statistics.quantile(0.9), np.percentile(rows_of(1)["features"], 90), rtol=1e-12)


def test_moments_survive_a_large_offset() -> None:
    rows = rows_of(200)
    exact = collect(rows).variance
    rows["features"] = rows["features"] + 1e6
    torch.testing.assert_close(collect(rows, [7] * 20).variance, exact, rtol=1e-7, atol=0)


def test_sums_are_float64_for_float32_features() -> None:
    rows = rows_of(300)
    rows = {name: value.float() if value.is_floating_point() else value for name, value in rows.items()}
    statistics = collect(rows, [3] * 50)
    features = rows["features"].numpy()
    assert statistics.mean.dtype == torch.float64
    np.testing.assert_allclose(statistics.mean, features.astype(np.float64).mean(0), rtol=1e-12)
    assert statistics.sample.features.dtype == torch.float32
    np.testing.assert_allclose(statistics.quantile(0.9), np.percentile(features.astype(np.float64), 90), rtol=1e-12)


# -- batching, order, merging ------------------------------------------------------------------------


@given(st.lists(st.integers(1, 20), max_size=8))
def test_any_batching_gives_the_same_summary(sizes: list[int]) -> None:
    rows = rows_of(60)
    whole, streamed = collect(rows), collect(rows, sizes)
    assert_equal_moments(whole, streamed)
    assert sorted_rows(streamed.sample.features) == sorted_rows(rows["features"])
    assert torch.equal(whole.sample.features, streamed.sample.features)  # the keys come one per row


@given(st.permutations(range(30)))
def test_order_does_not_matter(order: list[int]) -> None:
    rows = rows_of(30)
    shuffled = {name: value[torch.tensor(order)] for name, value in rows.items()}
    assert_equal_moments(collect(rows), collect(shuffled, [7, 7]))


@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.sampled_from([10, 25, 1000]))
def test_merging_equals_one_pass(cuts: list[int], capacity: int) -> None:
    rows = rows_of(80)
    bounds = [0, *np.minimum(np.cumsum(cuts), 80), 80]
    parts = [
        collect({name: value[a:b] for name, value in rows.items()}, [4], capacity=capacity, seed=i)
        for i, (a, b) in enumerate(pairwise(bounds))
    ]
    merged = parts[0]
    for part in parts[1:]:
        assert merged.merge(part) is merged
    whole = collect(rows, capacity=capacity)
    assert_equal_moments(merged, whole)
    kept = {tuple(row) for row in merged.sample.features.tolist()}
    assert len(kept) == min(80, capacity)
    assert kept <= {tuple(row) for row in rows["features"].tolist()}


def test_merging_does_not_change_the_other() -> None:
    one, other = collect(rows_of(30), seed=1), collect(rows_of(40, seed=5), seed=2)
    before = collect(rows_of(40, seed=5), seed=2)
    one.merge(other)
    one.update(**rows_of(5, seed=9))
    assert_equal_moments(other, before)
    assert torch.equal(other.sample.features, before.sample.features)


def test_merging_with_nothing() -> None:
    empty = Statistics(NEEDS, classes=CLASSES)
    full = collect(rows_of(30))
    assert_equal_moments(full.merge(Statistics(NEEDS, classes=CLASSES)), collect(rows_of(30)))
    assert_equal_moments(empty.merge(full), full)


def test_only_alike_summaries_merge() -> None:
    statistics = collect(rows_of(10))
    for other in (
        Statistics({"mean"}, classes=CLASSES),
        Statistics(NEEDS, classes=5),
        Statistics(NEEDS, classes=CLASSES, capacity=7),
    ):
        with pytest.raises(ValueError, match="equal needs, classes and capacity"):
            statistics.merge(other)
    with pytest.raises(ValueError, match="summaries of 5 and 6 channels"):
        statistics.merge(collect(rows_of(10, 6)))
    with pytest.raises(ValueError, match="with labels and some without"):
        statistics.merge(collect(rows_of(10), labelled=False))


# -- the sample --------------------------------------------------------------------------------------


def test_the_sample_keeps_rows_together() -> None:
    rows = rows_of(500)
    sample = collect(rows, [33] * 15, capacity=50).sample
    assert len(sample.features) == 50
    for h, f, y in zip(*sample, strict=True):
        index = (rows["features"] == h).all(1).nonzero().item()
        assert torch.equal(rows["logits"][index], f)
        assert rows["labels"][index] == y


@pytest.mark.parametrize("merged", [False, True])
def test_the_sample_is_uniform(merged: bool) -> None:
    """Every row of 40 is kept about equally often, wherever it stood; so is every row first in the sample."""
    features = torch.arange(40.0)[:, None]
    logits = torch.zeros(40, CLASSES)
    repeats, capacity = 1500, 10
    kept, first = torch.zeros(40), torch.zeros(40)
    for seed in range(repeats):
        statistics = Statistics({"sample"}, classes=CLASSES, capacity=capacity, seed=seed)
        bounds = [0, 5, 25] if merged else [0, 13, 26, 40]
        for a, b in pairwise(bounds):
            statistics.update(features[a:b], logits[a:b])
        if merged:
            other = Statistics({"sample"}, classes=CLASSES, capacity=capacity, seed=seed + 10**6)
            other.update(features[25:], logits[25:])
            statistics.merge(other)
        chosen = statistics.sample.features[:, 0].long()
        assert len(chosen.unique()) == capacity
        kept[chosen] += 1
        first[chosen[0]] += 1
    share = capacity / 40
    sigma = (repeats * share * (1 - share)) ** 0.5
    assert (kept - repeats * share).abs().max() < 4.5 * sigma
    sigma = (repeats / 40 * (1 - 1 / 40)) ** 0.5
    assert (first - repeats / 40).abs().max() < 4.5 * sigma


def test_the_sample_follows_its_seed() -> None:
    rows = rows_of(100)
    again = [collect(rows, [9] * 5, capacity=20, seed=seed).sample.features for seed in (0, 0, 1)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


def test_kept_rows_are_bounded() -> None:
    statistics = Statistics({"sample", "quantiles"}, classes=CLASSES, capacity=40)
    rows = rows_of(1000)
    for start in range(0, 1000, 7):
        part = {name: value[start : start + 7] for name, value in rows.items()}
        statistics.update(**part)
        assert sum(len(keys) for keys, _ in statistics._rows) <= 1.25 * 40
    assert len(statistics.sample.features) == 40
    assert statistics.count == 1000


def test_percentiles_alone_keep_no_rows_beyond_the_capacity() -> None:
    rows = rows_of(1000)
    statistics = collect(rows, [50] * 19, needs={"quantiles"}, capacity=100)
    assert not statistics._rows
    np.testing.assert_allclose(statistics.quantile(0.9), np.percentile(rows["features"], 90), rtol=2.5e-4)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory as Linux counts it")
def test_starting_the_sketch_takes_little_memory() -> None:
    """Rows that came one by one must not each become a histogram of 8 MB at the same time."""
    import resource

    rows = rows_of(151, 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    collect(rows, [1] * 150, needs={"quantiles"}, capacity=150)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 300, f"{grown:.0f} MB for the percentiles of 302 numbers"


def test_the_summary_does_not_alias_its_input() -> None:
    rows = rows_of(20)
    statistics, features = collect(rows), rows["features"].clone()
    rows["features"].fill_(99)
    rows["logits"].fill_(99)
    assert sorted_rows(statistics.sample.features) == sorted_rows(features)


def test_gradients_are_dropped() -> None:
    rows = rows_of(10)
    rows["features"].requires_grad_()
    statistics = collect(rows)
    assert not statistics.mean.requires_grad
    assert not statistics.sample.features.requires_grad


# -- percentiles -------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60),
    st.floats(0, 1),
    st.integers(1, 5),
)
def test_percentiles_are_exact_up_to_the_capacity(values: list[float], q: float, batch: int) -> None:
    statistics = Statistics({"quantiles"}, classes=1, capacity=60)
    features = torch.tensor(values, dtype=torch.float64)[:, None]
    for part in features.split(batch):
        statistics.update(part, torch.zeros(len(part), 1))
    scale = np.abs(values).max()
    np.testing.assert_allclose(statistics.quantile(q), np.quantile(values, q), rtol=1e-12, atol=1e-12 * scale)


@given(
    st.sampled_from([1e-6, 1e-3, 1.0, 1e3, 1e6]),
    st.sampled_from(["positive", "negative", "signed", "many zeros"]),
    st.floats(0, 1),
    st.integers(0, 5),
)
def test_the_sketch_is_off_by_little(scale: float, sign: str, q: float, seed: int) -> None:
    values = np.random.default_rng(seed).lognormal(0, 1, (300, 3)) * scale
    if sign == "negative":
        values = -values
    elif sign == "signed":
        values = values * np.random.default_rng(seed + 1).choice([-1, 1], values.shape)
    elif sign == "many zeros":
        values = np.where(values < scale, 0, values)
    statistics = Statistics({"quantiles"}, classes=1, capacity=50)
    for part in torch.from_numpy(values).split(40):
        statistics.update(part, torch.zeros(len(part), 1))
    assert statistics._histogram is not None
    # Interpolation between two neighbours is off by a share of the larger one.
    rank = q * (values.size - 1)
    neighbours = np.abs(np.sort(values, axis=None)[[int(np.floor(rank)), int(np.ceil(rank))]])
    assert abs(statistics.quantile(q).item() - np.quantile(values, q)) <= 2.5e-4 * neighbours.max() + 1e-40


def test_the_sketch_does_not_depend_on_order_or_batches() -> None:
    rows = rows_of(300)
    flipped = {name: value.flip(0) for name, value in rows.items()}
    one, other = collect(rows, [9] * 10, capacity=30), collect(flipped, [100], capacity=30)
    for q in (0, 0.1, 0.5, 0.9, 1):
        assert torch.equal(one.quantile(q), other.quantile(q))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=50), st.floats(0, 1))
def test_quantile_of_a_flat_tensor(values: list[float], q: float) -> None:
    result = quantile(torch.tensor(values, dtype=torch.float64), q)
    np.testing.assert_allclose(result, np.quantile(values, q), rtol=1e-12, atol=1e-10)


def test_quantile_has_no_limit_of_16_million() -> None:
    values = torch.zeros(2**24 + 10)
    values[:5] = 1.0
    assert quantile(values, 1.0).item() == 1
    assert quantile(values, 0.5).item() == 0


# -- needs and errors --------------------------------------------------------------------------------


@pytest.mark.parametrize("need", sorted(NEEDS))
def test_only_what_is_needed_is_kept(need: str) -> None:
    statistics = collect(rows_of(10), needs={need})
    assert statistics.needs == {need}
    value = statistics.quantile(0.5) if need == "quantiles" else getattr(statistics, need)
    assert value is not None
    for other in NEEDS - {need}:
        related = {"mean", "variance", "covariance"}
        if {need, other} <= related and other != "covariance":
            continue  # one accumulator serves them
        with pytest.raises(ValueError, match=rf"without '{other}' \(they hold: {need}\)"):
            statistics.quantile(0.5) if other == "quantiles" else getattr(statistics, other)
    if need not in ("sample", "quantiles"):
        assert not statistics._rows


@pytest.mark.parametrize("need", sorted(NEEDS))
def test_empty_statistics_say_so(need: str) -> None:
    statistics = Statistics({need}, classes=2)
    with pytest.raises(ValueError, match="the fit data are empty"):
        statistics.quantile(0.5) if need == "quantiles" else getattr(statistics, need)


def test_unknown_needs_and_capacities() -> None:
    with pytest.raises(ValueError, match="unknown statistic 'median'; known: class_means, "):
        Statistics({"median"}, classes=2)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        Statistics({"mean"}, classes=2, capacity=0)


@pytest.mark.parametrize(
    "needs", [NEEDS, {"sample"}, {"quantiles"}, {"class_means"}, {"mean"}], ids=lambda needs: "-".join(sorted(needs))
)
def test_other_channels_are_refused(needs: set[str]) -> None:
    statistics = collect(rows_of(10), needs=needs)
    with pytest.raises(ValueError, match="features have 6 channels; earlier batches had 5"):
        statistics.update(**rows_of(10, 6))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_broken_features_are_refused(value: float) -> None:
    rows = rows_of(10)
    rows["features"][3, 2] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        collect(rows)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1, CLASSES]), "must lie in 0..3.*got 0..4"),
        (torch.tensor([-1, 0, 1]), "must lie in 0..3.*got -1..1"),
        (torch.tensor([0.0, 1.0, 2.0]), "one integer per image"),
        (torch.tensor([True, False, True]), "one integer per image"),
        (torch.tensor([0, 1]), "one integer per image"),
        (torch.zeros(3, CLASSES, dtype=torch.int64), "one integer per image"),
    ],
)
def test_bad_labels_are_refused(labels: Tensor, message: str) -> None:
    rows = rows_of(3)
    with pytest.raises(ValueError, match=message):
        Statistics({"mean"}, classes=CLASSES).update(rows["features"], rows["logits"], labels)


def test_labels_for_all_or_for_none() -> None:
    rows = rows_of(3)
    for first, second in ((rows["labels"], None), (None, rows["labels"])):
        statistics = Statistics({"mean"}, classes=CLASSES)
        statistics.update(rows["features"], rows["logits"], first)
        with pytest.raises(ValueError, match="labels for all or for none"):
            statistics.update(rows["features"], rows["logits"], second)


def test_small_integer_labels_are_fine() -> None:
    rows = rows_of(20)
    means, _ = collect(rows).class_means
    for dtype in (torch.uint8, torch.int8, torch.int32):
        rows["labels"] = rows["labels"].to(dtype)
        assert torch.equal(collect(rows).class_means[0], means)


def test_misshapen_batches_are_refused() -> None:
    rows = rows_of(3)
    statistics = Statistics({"mean"}, classes=CLASSES)
    with pytest.raises(ValueError, match=r"got \(3, 5, 1\)"):
        statistics.update(rows["features"][..., None], rows["logits"])
    with pytest.raises(ValueError, match="with a row at least"):
        statistics.update(rows["features"][:0], rows["logits"][:0])
    with pytest.raises(ValueError, match=r"logits must be \(3, 4\), got \(3, 3\)"):
        statistics.update(rows["features"], rows["logits"][:, :3])


def test_the_average_pooling_must_be_given_where_it_is_needed() -> None:
    rows = rows_of(3)
    with pytest.raises(ValueError, match="gap="):
        Statistics({"gap_mean"}, classes=CLASSES).update(rows["features"], rows["logits"])


def test_a_refused_batch_leaves_no_trace() -> None:
    rows = rows_of(20)
    statistics = collect(rows)
    broken = rows_of(20, seed=1)
    bad = [
        {**broken, "features": broken["features"] * float("nan")},
        {**broken, "labels": broken["labels"] + CLASSES},
        {**broken, "gap": None},
    ]
    for batch in bad:
        with pytest.raises(ValueError):
            statistics.update(**batch)
    assert_equal_moments(statistics, collect(rows))
    assert len(statistics.sample.features) == 20
    fresh = Statistics({"mean"}, classes=CLASSES)
    with pytest.raises(ValueError, match="must lie in"):
        fresh.update(rows["features"], rows["logits"], rows["labels"] + CLASSES)
    fresh.update(rows["features"], rows["logits"])  # the refused batch had labels; it does not count


# -- behind a shape ----------------------------------------------------------------------------------


@pytest.mark.parametrize("labelled", [True, False])
def test_through_a_shape_and_a_head(labelled: bool) -> None:
    rows = rows_of(60)
    weight = torch.randn(CLASSES, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def shape(features: Tensor) -> Tensor:
        return features.clamp(-0.5, 0.5)

    def head(features: Tensor) -> Tensor:
        return features @ weight.T

    after = collect(rows, labelled=labelled).through(shape, head, NEEDS - {"gap_mean"})
    shaped = shape(rows["features"])
    assert after.count == 60
    torch.testing.assert_close(after.mean, shaped.mean(0))
    predicted = head(shaped).argmax(1)
    classes = rows["labels"] if labelled else predicted
    for c in range(CLASSES):
        torch.testing.assert_close(after.class_means[0][c], shaped[classes == c].mean(0))
        torch.testing.assert_close(after.predicted_means[0][c], shaped[predicted == c].mean(0))
    assert sorted_rows(after.sample.features) == sorted_rows(shaped)
