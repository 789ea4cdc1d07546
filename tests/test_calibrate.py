"""Thresholds and p-values: ranks counted exactly, and promises kept by count."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from davis import calibrate as module
from davis.calibrate import Calibration, calibrate, discoveries, needed, pooled

NO_CLASS = torch.zeros(1, dtype=torch.int64)


def expected_rank(count: int, tpr: str) -> int:
    """floor((1 - tpr) (n + 1)) in whole numbers, from the digits as written."""
    share = 1 - Fraction(tpr)
    return share.numerator * (count + 1) // share.denominator


@pytest.mark.parametrize("tpr", ["0.5", "0.8", "0.9", "0.95", "0.975", "0.99"])
@pytest.mark.parametrize("count", [19, 20, 39, 99, 100, 199, 999, 1000])
def test_the_rule(tpr: str, count: int) -> None:
    scores = torch.arange(count, dtype=torch.float64)[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    k = expected_rank(count, tpr)
    if k < 1:
        with pytest.raises(ValueError, match="too few"):
            calibrate(scores, tpr=float(tpr))
    else:
        found = calibrate(scores, tpr=float(tpr))
        assert (found.threshold, found.tpr, found.count, found.ranks) == (k - 1, float(tpr), count, (k,))
        assert found.alpha == float(1 - Fraction(tpr))


@pytest.mark.parametrize(("tpr", "needed"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1), (0.999, 999), (0.97, 33)])
def test_the_smallest_count(tpr: float, needed: int) -> None:
    scores = torch.arange(float(needed))
    assert calibrate(scores, tpr=tpr).threshold == 0
    with pytest.raises(ValueError, match=rf"{needed - 1} held-out images are too few .*; {needed} are needed"):
        calibrate(scores[1:], tpr=tpr)


def plain(found: Calibration) -> float:
    """The threshold of a calibration that has one."""
    assert found.threshold is not None
    return found.threshold


@given(st.integers(1, 400), st.integers(1, 99))
def test_no_more_than_promised_fall_below(count: int, percent: int) -> None:
    """A new score, ranked anywhere among the others, is below the threshold in at most 1 - tpr of the ranks."""
    scores = torch.arange(float(count))
    try:
        threshold = plain(calibrate(scores, tpr=percent / 100))
    except ValueError:
        assert (100 - percent) * (count + 1) < 100
        return
    # The new score takes each of the count + 1 ranks alike; threshold + 1 of them lie below the threshold.
    below = int(threshold) + 1
    assert Fraction(below, count + 1) <= Fraction(100 - percent, 100) < Fraction(below + 1, count + 1)


def test_ties() -> None:
    scores = torch.tensor([1.0] * 10 + [2.0] * 30)
    assert calibrate(scores, tpr=0.95).threshold == 1
    assert calibrate(scores, tpr=0.7).threshold == 2  # the 12th smallest of 40
    with pytest.warns(UserWarning, match=r"all 50 held-out scores are 3: the detector cannot tell images apart"):
        found = calibrate(torch.full((50,), 3.0), tpr=0.9)  # none is below: all pass
    assert found.threshold == 3
    assert found.is_ood(torch.tensor([3.0, 2.9]), NO_CLASS.expand(2)).tolist() == [False, True]


def test_order_does_not_matter_and_scores_stay() -> None:
    scores = torch.rand(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    copy = scores.clone()
    found = [calibrate(order) for order in (scores, scores.flip(0), scores.sort().values)]
    assert len({each.sha256 for each in found}) == 1
    assert torch.equal(scores, copy)
    assert calibrate(scores).threshold in scores.tolist()


def test_single_precision_scores() -> None:
    scores = torch.rand(100, generator=torch.Generator().manual_seed(0))
    assert calibrate(scores).threshold == scores.double().sort().values[4].item()


def test_empty() -> None:
    with pytest.raises(ValueError, match=r"0 held-out images are too few .* 19 are needed"):
        calibrate(torch.tensor([]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_broken_scores(value: float) -> None:
    scores = torch.rand(40)
    scores[7] = value
    with pytest.raises(ValueError, match="1 of 40 scores are NaN or infinite"):
        calibrate(scores)


def test_misshapen_scores() -> None:
    with pytest.raises(ValueError, match=r"got shape \(40, 1\)"):
        calibrate(torch.rand(40, 1))


@pytest.mark.parametrize("tpr", [0, 1, -0.1, 1.5, 95, float("nan")])
def test_tpr_is_a_share(tpr: float) -> None:
    with pytest.raises(ValueError, match="tpr must lie between 0 and 1"):
        calibrate(torch.rand(100), tpr=tpr)


# -- p-values -------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), min_size=19, max_size=60), st.lists(st.integers(-1, 10), min_size=1, max_size=9))
def test_the_p_value_and_the_verdict_agree_with_ties(held: list[int], new: list[int]) -> None:
    """p by counting, with whole numbers; OOD exactly where p <= alpha."""
    if len(set(held)) == 1:
        held = [*held, held[0] + 1]
    found = calibrate(torch.tensor(held).double(), tpr=0.9)
    scores, classes = torch.tensor(new).double(), torch.zeros(len(new), dtype=torch.int64)
    p = [Fraction(1 + sum(value <= score for value in held), len(held) + 1) for score in new]
    assert found.p_values(scores, classes).tolist() == [float(each) for each in p]
    assert found.is_ood(scores, classes).tolist() == [each <= Fraction(1, 10) for each in p]


def test_the_p_value_is_uniform_or_larger() -> None:
    """Over all ranks that one more exchangeable score can take, P(p <= t) <= t for every t."""
    found = calibrate(torch.arange(1.0, 40.0), tpr=0.9)
    every_rank = torch.arange(0.5, 40.0)
    p = found.p_values(every_rank, torch.zeros(40, dtype=torch.int64))
    for t in torch.linspace(0.01, 1, 100, dtype=torch.float64):
        assert (p <= t).double().mean() <= t + 1e-12


def test_scores_beyond_the_held_out_ones() -> None:
    found = calibrate(torch.arange(19.0))
    scores = torch.tensor([-1e30, 1e30], dtype=torch.float64)
    assert found.p_values(scores, NO_CLASS.expand(2)).tolist() == [1 / 20, 1.0]


# -- the promise under the threshold in hand ------------------------------------------------------


@pytest.mark.parametrize("delta", [0.05, 0.1, 0.01])
@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.1])
@pytest.mark.parametrize("count", [19, 58, 59, 298, 299, 1000, 5000, 40_000])
def test_the_conditional_rank_is_the_largest_that_keeps_the_promise(count: int, alpha: float, delta: float) -> None:
    k = module.rank(count, tpr=1 - alpha, kind="conditional", delta=delta)
    if k:
        assert stats.beta.cdf(alpha, k, count + 1 - k) >= 1 - delta
    assert stats.beta.cdf(alpha, k + 1, count - k) < 1 - delta


@pytest.mark.parametrize(("tpr", "least"), [(0.95, 59), (0.99, 299)])
def test_the_smallest_count_for_the_threshold_in_hand(tpr: float, least: int) -> None:
    scores = torch.arange(float(least))
    found = calibrate(scores, tpr=tpr, kind="conditional", delta=0.05)
    assert (found.threshold, found.delta, needed(tpr=tpr, kind="conditional")) == (0, 0.05, least)
    with pytest.raises(ValueError, match=rf"{least - 1} held-out images are too few .* delta=0.05; {least} are needed"):
        calibrate(scores[1:], tpr=tpr, kind="conditional", delta=0.05)


def test_coverage_of_both_promises() -> None:
    """Over many draws: acceptance on average, and how often a draw falls short, as the laws say."""
    generator = torch.Generator().manual_seed(0)
    short, mean = 0, 0.0
    for _ in range(400):
        held = torch.rand(200, generator=generator, dtype=torch.float64)  # the share below s is s itself
        short += plain(calibrate(held, tpr=0.9, kind="conditional", delta=0.1)) > 0.1
        mean += plain(calibrate(held, tpr=0.9)) / 400
    k = module.rank(200, tpr=0.9, kind="conditional", delta=0.1)
    assert abs(short / 400 - stats.beta.sf(0.1, k, 201 - k)) < 3 * (0.1 * 0.9 / 400) ** 0.5
    assert abs(mean - 20 / 201) < 3 * (stats.beta.var(20, 181) / 400) ** 0.5


@pytest.mark.parametrize("delta", [0, 1, -1, float("nan")])
def test_delta_is_a_share(delta: float) -> None:
    with pytest.raises(ValueError, match="delta must lie between 0 and 1"):
        calibrate(torch.rand(100), kind="conditional", delta=delta)


def test_an_unknown_promise() -> None:
    with pytest.raises(ValueError, match="marginal or conditional, not 'exact'"):
        calibrate(torch.rand(100), kind="exact")  # type: ignore[arg-type]


# -- thresholds by class --------------------------------------------------------------------------


def test_each_group_is_calibrated_by_itself() -> None:
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(0, 4, (400,), generator=generator)
    scores = torch.rand(400, generator=generator, dtype=torch.float64) + 10 * classes
    groups = [0, 1, 2, 2]
    found = calibrate(scores, tpr=0.9, classes=classes, groups=groups)
    assert found.threshold is None
    members = torch.tensor(groups)[classes]
    for group, threshold in enumerate(found.thresholds):
        assert threshold == plain(calibrate(scores[members == group], tpr=0.9))
    fresh, labels = torch.tensor([5.0, 5.0, 35.0]).double(), torch.tensor([0, 1, 3])
    alone = [plain(calibrate(scores[members == group], tpr=0.9)) for group in (0, 1, 2)]
    assert found.is_ood(fresh, labels).tolist() == [alone[0] > 5, alone[1] > 5, alone[2] > 35]
    counts = [int((scores[members == g] <= s).sum()) for g, s in zip((0, 1, 2), fresh, strict=True)]
    sizes = [int((members == g).sum()) for g in range(3)]
    assert found.p_values(fresh, labels).tolist() == [(1 + c) / (1 + n) for c, n in zip(counts, sizes, strict=True)]


def test_a_group_that_is_too_small_is_refused() -> None:
    classes = torch.tensor([0] * 30 + [1] * 5)
    with pytest.raises(ValueError, match=r"5 held-out images of class group 1 are too few .*; 19 are needed"):
        calibrate(torch.rand(35), classes=classes, groups=[0, 1])
    with pytest.raises(ValueError, match="give both or none"):
        calibrate(torch.rand(35), classes=classes)


def test_rare_classes_are_pooled_by_the_counts_of_the_fit() -> None:
    """20% of 400 held-out images are 80 >= 2 * 19; 1% are 4, and the four rare ones together 16, so one more joins."""
    assert pooled(torch.tensor([480, 480, 10, 10, 10, 10]), 400, tpr=0.95) == [0, 1, 1, 1, 1, 1]
    assert pooled(torch.tensor([300, 300, 100, 100, 100, 100]), 1000, tpr=0.95) == [0, 1, 2, 3, 4, 5]
    assert pooled(torch.tensor([1, 1]), 10, tpr=0.95) == [0, 0]
    assert pooled(torch.tensor([0, 0, 100]), 1000, tpr=0.95) == [0, 0, 0]


# -- many images at once --------------------------------------------------------------------------


@given(st.lists(st.integers(1, 200), min_size=1, max_size=40), st.sampled_from([0.05, 0.1, 0.25]))
def test_discoveries_are_those_of_benjamini_and_hochberg(ranks: list[int], q: float) -> None:
    p = torch.tensor(ranks, dtype=torch.float64) / 200
    adjusted = stats.false_discovery_control(p.numpy())
    assert discoveries(p, q=q).tolist() == [bool(value <= q * (1 + 1e-9)) for value in adjusted]


def test_a_lone_discovery_needs_images_enough() -> None:
    p = torch.full((100,), 1.0, dtype=torch.float64)
    p[7] = 1 / 1000
    assert discoveries(p, q=0.1, held_out=999).nonzero().flatten().tolist() == [7]
    p[7] = 1 / 999
    with pytest.warns(UserWarning, match=r"lone OOD image among 100 .* takes 999 held-out images, and there are 998"):
        assert not discoveries(p, q=0.1, held_out=998).any()


@pytest.mark.parametrize("p", [[0.0, 0.5], [1.5], [float("nan")]])
def test_what_is_no_p_value(p: list[float]) -> None:
    with pytest.raises(ValueError, match="p-values"):
        discoveries(torch.tensor(p))


def test_q_is_a_share() -> None:
    with pytest.raises(ValueError, match="q must lie between 0 and 1"):
        discoveries(torch.ones(3), q=1)


# -- what is kept ---------------------------------------------------------------------------------


def test_more_scores_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CAPACITY", 500)
    scores = torch.rand(2000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = calibrate(scores)
    assert found.count == 500 == len(found.scores)
    assert set(found.scores.tolist()) <= set(scores.tolist())
    assert found.sha256 == calibrate(scores).sha256 != calibrate(scores, seed=1).sha256


def test_the_statement_can_be_traced() -> None:
    found = calibrate(torch.arange(100.0), tpr=0.95, kind="conditional", delta=0.1)
    said = found.statement()
    assert (said["n"], said["alpha"], said["delta"], said["method"]) == (100, 0.05, 0.1, "conditional")
    assert said["scores_sha256"] == hashlib.sha256(torch.arange(100.0).double().numpy().tobytes()).hexdigest()
    assert "confidence of 90%" in said["promise"]
    assert "exchangeable" in said["assumes"]
