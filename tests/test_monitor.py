"""The monitor: p-values, bets, rates and alarms against oracles, and what happens around them."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats

from davis.monitor import Alarm, Monitor, Window
from davis.monitor.betting import Capital, flag_factors, p_value_factors
from davis.monitor.rates import interval_of, threshold_of
from davis.monitor.reference import Reference
from davis.ranks import least_count, rank_of

NORMAL = np.random.default_rng(7).normal(size=400)


def stream(count: int, *, seed: int = 0, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(-shift, 1, count)


def draws(seed: int, known: np.ndarray, count: int) -> np.ndarray:
    """The tie and drop draws of a monitor, straight from the generator's bits."""
    digest = hashlib.sha256(np.sort(known).tobytes()).hexdigest()
    bits = np.random.PCG64([seed, int(digest[:16], 16)]).random_raw(2 * count)
    return ((bits >> 11) + 0.5).reshape(count, 2) / 2.0**53


def mixture(factors: np.ndarray) -> list[float]:
    """The capital after each step, as a sum over every bet and every time at which it may start."""
    steps, bets = factors.shape

    def waiting(t: int) -> float:
        return 1 / (1 + math.log(1 + t))

    values = []
    for now in range(1, steps + 1):
        started = (
            (waiting(start) - waiting(start + 1)) * np.prod(factors[start:now], axis=0).sum() / bets
            for start in range(now)
        )
        values.append(math.fsum(started) + waiting(now))
    return values


class TestReference:
    @pytest.mark.parametrize("levels", [3, 30, 10**9])
    def test_p_values_by_counting(self, levels: int) -> None:
        random = np.random.default_rng(levels)
        known, new = random.integers(0, levels, 20).astype(float), random.integers(0, levels, 200).astype(float)
        reference, seen = Reference(known, capacity=1000), list(known)
        for score, tie in zip(new, random.random(200), strict=True):
            below, equal = sum(old < score for old in seen), sum(old == score for old in seen)
            expected = (below + tie * (equal + 1)) / (len(seen) + 1)
            assert reference.join(score, tie=tie, drop=0.5) == pytest.approx(expected, rel=1e-15)
            seen.append(score)
        assert reference.scores.tolist() == sorted(seen)

    def test_is_bounded_and_drops_any_member_alike(self) -> None:
        random, dropped = np.random.default_rng(0), []
        for drop in random.random(5000):
            reference = Reference([0.0, 1.0, 3.0], capacity=3)
            reference.join(2.0, tie=0.5, drop=drop)
            [gone] = {0.0, 1.0, 2.0, 3.0} - set(reference.scores)
            dropped.append(gone)
        counts = np.unique(dropped, return_counts=True)[1]
        assert scipy.stats.chisquare(counts).pvalue > 1e-3  # the newcomer leaves as often as the others
        assert len(counts) == 4

    @pytest.mark.parametrize("levels", [None, 4])
    @pytest.mark.parametrize("rule", ["random", "oldest"])
    def test_full_reference_keeps_p_values_independent(self, rule: str, levels: int | None) -> None:
        """Two p-values in a row fill the unit square evenly; where the oldest member leaves instead, they do not."""
        random = np.random.default_rng(3)
        pairs = []
        for _ in range(20_000):
            scores = random.random(4) if levels is None else random.integers(0, levels, 4).astype(float)
            ties, drop = random.random(2), random.random()
            reference = Reference(scores[:2], capacity=2)
            first = reference.join(scores[2], tie=ties[0], drop=drop)
            if rule == "oldest":
                reference = Reference(scores[1:3], capacity=2)
            pairs.append((first, reference.join(scores[3], tie=ties[1], drop=0.5)))
        table = np.histogram2d(*np.transpose(pairs), bins=6, range=[[0, 1], [0, 1]])[0]
        unlikely = scipy.stats.chisquare(table.ravel()).pvalue
        assert unlikely > 1e-3 if rule == "random" else unlikely < 1e-6

    def test_scores_must_fit(self) -> None:
        with pytest.raises(ValueError, match="capacity is 2, and 3 scores must fit"):
            Reference([1.0, 2.0, 3.0], capacity=2)


class TestBets:
    def test_are_fair_for_uniform_p_values(self) -> None:
        for bet in range(len(p_value_factors(0.5))):
            # p = t^10 takes the pole at 0 away
            mean = scipy.integrate.quad(lambda t, bet=bet: p_value_factors(t**10)[bet] * 10 * t**9, 0, 1)[0]
            assert mean == pytest.approx(1, abs=1e-7)

    def test_win_on_small_p_values(self) -> None:
        assert min(p_value_factors(1e-4)) > 1
        assert max(p_value_factors(0.9)) < 1

    @pytest.mark.parametrize("alpha", [0.01, 0.05, 0.5])
    def test_on_flags_are_fair_at_alpha_and_worse_below(self, alpha: float) -> None:
        passed, flagged = (np.array(factors) for factors in flag_factors(alpha))
        np.testing.assert_allclose(alpha * flagged + (1 - alpha) * passed, 1, rtol=1e-12)
        for rate in (0, alpha / 3, 0.99 * alpha):
            assert (rate * flagged + (1 - rate) * passed < 1).all()
        assert (0.999 * flagged + 0.001 * passed > 1).all()

    def test_capital_is_the_sum_over_bets_and_starts(self) -> None:
        factors = np.random.default_rng(0).lognormal(0, 1, (60, 5))
        capital, values = Capital(5), []
        for row in factors:
            capital.bet(row.tolist())
            values.append(math.exp(capital.log_value))
        np.testing.assert_allclose(values, mixture(factors), rtol=1e-12)

    def test_capital_neither_overflows_nor_vanishes(self) -> None:
        capital = Capital(2)
        for _ in range(5000):
            capital.bet([3.0, 2.0])
        top = 5000 * math.log(3)
        assert top + math.log(0.1) < capital.log_value < top
        for _ in range(6000):
            capital.bet([1 / 3, 1 / 3])
        assert capital.log_unit == 0
        assert 0 < math.exp(capital.log_value) < 1
        for _ in range(50):
            capital.bet([3.0, 3.0])
        assert capital.log_value > 40


class TestThreshold:
    @pytest.mark.parametrize("delta", [0.5, 0.05, 0.01])
    @pytest.mark.parametrize("alpha", [0.5, 0.1, 0.05, 0.01])
    def test_rank_is_that_of_the_beta_law(self, alpha: float, delta: float) -> None:
        for count in (1, 10, 58, 59, 298, 299, 500, 1000, 20_011):
            ranks = np.arange(1, count + 1)
            promised = scipy.stats.beta.cdf(alpha, ranks, count + 1 - ranks) >= (1 - delta) - 1e-9
            assert rank_of(count, alpha=alpha, delta=delta) == promised.sum()

    @pytest.mark.parametrize(("alpha", "delta", "least"), [(0.05, 0.05, 59), (0.01, 0.05, 299), (0.5, 0.25, 2)])
    def test_minimum(self, alpha: float, delta: float, least: int) -> None:
        assert least_count(alpha=alpha, delta=delta) == least
        scores = stream(least)
        assert threshold_of(scores, alpha=alpha, delta=delta) == scores.min()
        with pytest.raises(ValueError, match=f"{least - 1} calibration scores are too few .* {least} are needed"):
            threshold_of(scores[:-1], alpha=alpha, delta=delta)

    def test_keeps_its_promise(self) -> None:
        """The share of calibration draws whose threshold flags more than alpha of a uniform law is about delta."""
        scores = np.random.default_rng(0).random((4000, 200))
        over = np.mean([threshold_of(row, alpha=0.05, delta=0.1) > 0.05 for row in scores])
        exact = 1 - scipy.stats.beta.cdf(0.05, rank_of(200, alpha=0.05, delta=0.1), 201 - 5)
        assert over <= 0.1 + 3 * math.sqrt(0.09 / 4000)
        assert 0 < exact <= 0.1


class TestInterval:
    @staticmethod
    def evidence(rate: np.ndarray | float, hits: np.ndarray | int, count: np.ndarray | int) -> np.ndarray:
        """The mixture over slopes for a rate that is too low, in the plainest form that does not overflow."""
        slopes = [0.005 * math.sqrt(2) ** power for power in range(23)]
        total = np.float64(-np.inf)
        for s in slopes:
            total = np.logaddexp(total, s * np.asarray(hits) - count * np.log(1 - rate + rate * math.exp(s)))
        return total - math.log(len(slopes))

    @pytest.mark.parametrize(("hits", "count"), [(1, 1), (1, 2), (5, 100), (97, 100), (500, 10_000), (20_000, 400_000)])
    def test_limits_are_where_the_evidence_is_enough(self, hits: int, count: int) -> None:
        low, high = interval_of(hits, count, confidence=0.9)
        assert 0 <= low < hits / count
        assert hits / count < high or hits == count
        for limit, seen in ((low, hits), (1 - high, count - hits)):
            if seen:
                root = scipy.optimize.brentq(
                    lambda rate, seen=seen: self.evidence(rate, seen, count) - math.log(20), 1e-12, seen / count
                )
                assert limit == pytest.approx(root, abs=1e-9)

    def test_edges(self) -> None:
        assert interval_of(0, 100, confidence=0.95)[0] == 0
        assert interval_of(100, 100, confidence=0.95)[1] == 1
        low, high = interval_of(5000, 100_000, confidence=0.95)
        assert 0.045 < low < 0.05 < high < 0.055

    @pytest.mark.parametrize("rates", ["constant", "changing"])
    def test_covers_at_all_times(self, rates: str) -> None:
        """One miss at any of 1,000 times counts, also when the rate changes along the way."""
        random, streams, steps = np.random.default_rng(1), 400, 1000
        each = np.full(steps, 0.05) if rates == "constant" else np.where(np.arange(steps) < 400, 0.03, 0.4)
        flags, times = random.random((streams, steps)) < each, np.arange(1, steps + 1)
        hits, average = flags.cumsum(1), each.cumsum() / times
        lower = self.evidence(average, hits, times) >= math.log(2 / 0.05)
        upper = self.evidence(1 - average, times - hits, times) >= math.log(2 / 0.05)
        assert (lower | upper).any(1).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / streams)


@pytest.mark.parametrize("method", ["online", "flags"])
class TestMonitor:
    def test_e_value_by_hand(self, method: str) -> None:
        """Counted p-values (or flags), multiplied and added up, with ties, against the monitor."""
        random = np.random.default_rng(5)
        known, new = random.integers(0, 40, 150).astype(float), random.integers(0, 35, 80).astype(float)
        monitor = Monitor(known, method=method, seed=11)
        if method == "online":
            seen, factors = list(known), []
            for score, (tie, _) in zip(new, draws(11, known, 80), strict=True):
                below, equal = sum(old < score for old in seen), sum(old == score for old in seen)
                factors.append(p_value_factors((below + tie * (equal + 1)) / (len(seen) + 1)))
                seen.append(score)
        else:
            rank = rank_of(150, alpha=0.05, delta=0.01)
            assert monitor.threshold == sorted(known)[rank - 1]
            factors = [flag_factors(0.05)[int(score < monitor.threshold)] for score in new]
        values = []
        for score in new:
            monitor.update([score])
            values.append(monitor.e_value)
        np.testing.assert_allclose(values, mixture(np.array(factors)), rtol=1e-9)

    def test_alarm_comes_once_stands_and_begins_anew(self, method: str) -> None:
        monitor = Monitor(NORMAL, method=method, window=50)
        assert not [event for event in monitor.update(stream(200)) if isinstance(event, Alarm)]
        events = [event for event in monitor.update(stream(300, shift=3)) if isinstance(event, Alarm)]
        assert events == [monitor.alarm]
        assert monitor.alarm is not None
        assert 200 < monitor.alarm.at < 300
        assert monitor.alarm.e_value >= 100
        assert (monitor.alarm.test, monitor.alarms, monitor.test) == (1, 1, 1)
        monitor.reset()
        assert (monitor.alarm, monitor.e_value, monitor.test, monitor.count) == (None, 1.0, 2, 500)

    def test_first_time_above_the_bound_is_the_alarm(self, method: str) -> None:
        monitor, values = Monitor(NORMAL, method=method, bound=0.05), []
        for score in stream(400, shift=1.5):
            monitor.update(score)
            values.append(monitor.e_value)
        assert monitor.alarm is not None
        assert monitor.alarm.at == 1 + int(np.argmax(np.array(values) >= 20))

    def test_after_alarm(self, method: str) -> None:
        scores = stream(2000, shift=4)
        stopped, again = (Monitor(NORMAL, method=method, window=7) for _ in range(2))
        events = stopped.update(scores, after_alarm="stop")
        assert isinstance(stopped.alarm, Alarm)
        assert stopped.count == stopped.alarm.at < 100
        assert stopped.alarm in events
        alarms = [event for event in again.update(scores, after_alarm="reset") if isinstance(event, Alarm)]
        assert alarms[0] == stopped.alarm
        assert [alarm.test for alarm in alarms] == list(range(1, len(alarms) + 1))
        assert again.alarms == len(alarms) > 2
        assert again.alarm is None
        rest = stopped.update(scores[stopped.count :])  # goes on with the same draws
        whole = Monitor(NORMAL, method=method, window=7)
        assert events + rest == whole.update(scores)
        with pytest.raises(ValueError, match="after_alarm must be one of"):
            stopped.update(scores, after_alarm="go on")  # type: ignore[arg-type]

    def test_pieces_do_not_matter(self, method: str) -> None:
        scores = np.round(stream(1000, shift=0.2), 1)
        whole, pieces = (Monitor(NORMAL.round(1), method=method, window=64, capacity=500) for _ in range(2))
        events = [event for part in np.split(scores, [1, 2, 300, 301, 777]) for event in pieces.update(part)]
        assert events == whole.update(scores)
        assert pieces.summary() == whole.summary()

    @pytest.mark.parametrize("cut", [0, 1, 130, 999])
    def test_saved_and_restored_goes_on_to_the_same_bits(self, method: str, cut: int, tmp_path: Path) -> None:
        scores = np.round(stream(1000, shift=0.3), 2)
        whole, first = (Monitor(NORMAL.round(2), method=method, window=64, capacity=450, seed=3) for _ in range(2))
        expected = whole.update(scores)
        events = first.update(scores[:cut])
        first.save(tmp_path / "state.json")
        second = Monitor.load(tmp_path / "state.json")
        assert events + second.update(scores[cut:]) == expected
        assert second.summary() == whole.summary()
        second.save(tmp_path / "b.json")
        whole.save(tmp_path / "c.json")
        assert (tmp_path / "b.json").read_bytes() == (tmp_path / "c.json").read_bytes()
        assert sorted(file.name for file in tmp_path.iterdir()) == ["b.json", "c.json", "state.json"]

    def test_windows(self, method: str) -> None:
        monitor, scores = Monitor(NORMAL, method=method, window=100), stream(250)
        windows = monitor.update(scores)
        assert [type(window) for window in windows] == [Window, Window]
        assert monitor.window is not None
        for start, window in zip((0, 100, 200), [*windows, monitor.window], strict=True):
            assert isinstance(window, Window)
            part = scores[start : start + 100]
            assert (window.first, window.count) == (start + 1, len(part))
            assert window.mean == pytest.approx(part.mean())
            np.testing.assert_allclose((window.low, window.median, window.high), np.percentile(part, (5, 50, 95)))
            assert window.flagged == (part < monitor.threshold).sum()
            assert window.flag_rate == window.flagged / len(part)
        assert monitor.window.e_value == monitor.e_value
        assert monitor.flagged == (scores < monitor.threshold).sum()
        assert monitor.flag_rate == monitor.flagged / 250
        assert monitor.interval == interval_of(monitor.flagged, 250, confidence=0.95)

    def test_bad_scores_leave_no_trace(self, method: str, tmp_path: Path) -> None:
        monitor = Monitor(NORMAL, method=method)
        monitor.update(stream(50))
        monitor.save(tmp_path / "before")
        for bad, error in [
            ([1.0, math.nan], ValueError),
            ([math.inf], ValueError),
            (["high"], TypeError),
            ([[1.0]], ValueError),
            ([True], TypeError),
        ]:
            with pytest.raises(error):
                monitor.update(bad)  # type: ignore[arg-type]
        assert monitor.update([]) == []
        monitor.save(tmp_path / "after")
        assert (tmp_path / "before").read_bytes() == (tmp_path / "after").read_bytes()

    def test_constant_stream_is_judged_by_where_it_stands(self, method: str) -> None:
        """All ties: online, a constant is no shift to itself; below all calibration scores it is one at first."""
        middle, low = (Monitor(NORMAL, method=method) for _ in range(2))
        middle.update(np.zeros(300))
        low.update(np.full(300, -9.0))
        assert middle.alarm is None
        assert low.alarm is not None

    def test_long_and_strong_shift_keeps_numbers_finite(self, method: str, tmp_path: Path) -> None:
        monitor = Monitor(NORMAL, method=method)
        for _ in range(5):
            monitor.update(np.arange(0, -2000, -1.0) - 2000 * monitor.count)
        assert math.isfinite(monitor.e_value)
        assert monitor.log10_e_value > 300
        json.dumps(monitor.summary(), allow_nan=False)
        assert Monitor.load(monitor.save(tmp_path / "state")).log10_e_value == monitor.log10_e_value

    def test_summary_can_be_traced(self, method: str) -> None:
        summary = Monitor(NORMAL, method=method, bound=0.02, alpha=0.1, delta=0.03, seed=5).summary()
        expected = {"n": 400, "method": method, "bound": 0.02, "alpha": 0.1, "delta": 0.03, "seed": 5}
        assert expected.items() <= summary.items()
        assert summary["calibration_sha256"] == Monitor(NORMAL[::-1]).summary()["calibration_sha256"]
        assert summary["false_alarm_bound"] == pytest.approx(0.02 if method == "online" else 0.05)
        assert f"at most {summary['false_alarm_bound']:g}" in summary["promise"]

    def test_streams_do_not_share_draws(self, method: str) -> None:
        one, other = (Monitor(known, method=method) for known in (NORMAL, NORMAL + 1))
        assert one._draws(3) != other._draws(3)
        assert one._draws(3) == Monitor(NORMAL, method=method)._draws(3)
        assert one._draws(3) != Monitor(NORMAL, method=method, seed=1)._draws(3)

    def test_merge(self, method: str) -> None:
        parts = []
        for seed in range(3):
            part = Monitor(stream(200, seed=seed), method=method)
            part.update(stream(300 + seed, seed=10 + seed, shift=seed))
            parts.append(part)
        merged = Monitor.merge(parts)
        assert (merged.streams, merged.count) == (3, 903)
        assert merged.flagged == sum(part.flagged or 0 for part in parts)
        assert merged.flag_rate == merged.flagged / 903
        assert merged.interval == interval_of(merged.flagged, 903, confidence=0.95)
        assert merged.e_value == pytest.approx(np.mean([part.e_value for part in parts]))
        assert merged.alarm
        assert merged.anytime
        assert merged.false_alarm_bound == pytest.approx(0.01 if method == "online" else 0.04)
        twins = Monitor.merge([Monitor(NORMAL, method=method), Monitor(NORMAL, method=method)])
        assert twins.anytime == (method == "flags")
        assert twins.false_alarm_bound == pytest.approx(0.01 if method == "online" else 0.02)
        assert (twins.flag_rate, twins.alarm) == (None, False)
        for others, message in [
            ([], "no monitor to merge"),
            ([parts[0], parts[0]], "given twice"),
            ([parts[0], Monitor(NORMAL, method=method, bound=0.5)], "bound is 0.01 in one and 0.5 in another"),
        ]:
            with pytest.raises(ValueError, match=message):
                Monitor.merge(others)

    @pytest.mark.parametrize("start", [0, 3000])
    def test_shift_is_found_early_and_late(self, method: str, start: int) -> None:
        random = np.random.default_rng(8)
        scores = random.normal(size=start + 2000)
        late = random.random(2000) < 0.2  # a fifth of what comes after the start
        scores[start:][late] -= 4
        monitor = Monitor(random.normal(size=1000), method=method)
        monitor.update(scores)
        assert monitor.alarm is not None
        assert start < monitor.alarm.at < start + 300


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"method": "fixed"}, "method must be one of online, flags; got 'fixed'"),
            ({"bound": 0}, "bound must lie between 0 and 1; got 0"),
            ({"alpha": 1.0}, "alpha must lie between 0 and 1"),
            ({"delta": "a"}, "delta must lie between 0 and 1; got 'a'"),
            ({"bound": math.nan}, "bound must lie"),
            ({"seed": -1}, "seed must be a whole number from 0 on"),
            ({"window": 0}, "window must be a whole number from 1 on"),
            ({"window": 1.5}, "window must be a whole number"),
            ({"capacity": 399}, "capacity is 399, and 400 scores must fit"),
            ({"threshold": math.inf}, "threshold must be a finite number"),
        ],
    )
    def test_bad_options(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Monitor(NORMAL, **options)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("scores", "message"),
        [([], "no scores"), ([1.0, math.nan], "1 of 2 scores are NaN"), ([2.0] * 100, "all 100 .* are 2; ")],
    )
    def test_bad_calibration(self, scores: list[float], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Monitor(scores)

    def test_few_calibration_scores(self) -> None:
        with pytest.raises(ValueError, match=r"89 calibration scores are too few .* 90 are needed"):
            Monitor(NORMAL[:89], method="flags")
        few = Monitor(NORMAL[:89])  # ranks need no minimum, flags do
        few.update(stream(10))
        assert (few.threshold, few.flagged, few.flag_rate, few.interval) == (None, None, None, None)
        assert few.window is not None
        assert few.window.flag_rate is None
        assert Monitor(NORMAL[:90]).threshold == NORMAL[:90].min()

    def test_threshold_of_ones_own(self) -> None:
        monitor = Monitor(NORMAL[:10], method="flags", threshold=0)
        monitor.update([-1.0, 0.0, 1.0])
        assert monitor.flagged == 1


class TestState:
    @pytest.fixture
    def saved(self, tmp_path: Path) -> Path:
        monitor = Monitor(NORMAL[:100])
        monitor.update(stream(100))
        return monitor.save(tmp_path / "state.json")

    @pytest.mark.parametrize(
        ("find", "put", "message"),
        [
            ('"count": 100', '"count": 99', "was changed after it was saved"),
            ('"format": 1', '"format": 2', "has format 2, and this davis reads 1"),
            ('"kind": "davis monitor"', '"kind": "else"', "is not a saved monitor"),
            ("{", "[", "is not a saved monitor"),
            ('"log_unit": 0.0', '"log_unit": NaN', "NaN is no number"),
        ],
    )
    def test_damage_is_seen(self, saved: Path, find: str, put: str, message: str) -> None:
        saved.write_text(saved.read_text().replace(find, put, 1))
        with pytest.raises(ValueError, match=message):
            Monitor.load(saved)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"count": "many"}, "field 'count' must be a int, got 'many'"),
            ({"more": 1}, "unknown field 'more'"),
            ({"flagged": 101}, "counts do not fit"),
            ({"recent": [1]}, "not finite"),
            ({"reference": None}, "no scores"),
            ({"capital": {"steps": 1}}, "counts do not fit"),
            ({"capital": {"steps": 1, "stakes": [0.0] * 8, "cash": 1}}, "not a monitor's state"),
            ({"settings": {}}, "not a monitor's state"),
        ],
    )
    def test_forged_states_are_refused(self, saved: Path, change: dict[str, object], message: str) -> None:
        from davis.monitor.state import write_state

        state = json.loads(saved.read_text())["state"] | change
        if change == {"capital": {"steps": 1}}:
            change["capital"] = state["capital"] = {"steps": 10**6, "stakes": [0.0] * 8, "log_unit": 0.0}
        write_state(state, saved)
        with pytest.raises(ValueError, match=message):
            Monitor.load(saved)

    def test_failed_save_leaves_the_old_one(self, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before, monitor = saved.read_bytes(), Monitor.load(saved)
        monitor.update([0.0])

        def full(*_: object) -> None:
            raise OSError("no space")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="no space"):
            monitor.save(saved)
        assert saved.read_bytes() == before
        assert [file.name for file in saved.parent.iterdir()] == [saved.name]

    def test_missing(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="no saved monitor there"):
            Monitor.load(tmp_path / "gone")


@pytest.mark.slow
class TestPromise:
    """Streams without a shift, calibration drawn anew for each."""

    STREAMS, STEPS, COUNT, BOUND = 300, 1500, 100, 0.05

    def alarmed(self, method: str, **options: object) -> float:
        alarms = 0
        for seed in range(self.STREAMS):
            scores = np.random.default_rng(seed).normal(size=self.COUNT + self.STEPS).round(2)  # with ties
            monitor = Monitor(scores[: self.COUNT], method=method, bound=self.BOUND, seed=seed, **options)  # type: ignore[arg-type]
            monitor.update(scores[self.COUNT :], after_alarm="stop")
            alarms += monitor.alarm is not None
        return alarms / self.STREAMS

    def limit(self, bound: float) -> float:
        return bound + 3 * math.sqrt(bound * (1 - bound) / self.STREAMS)

    def test_online(self) -> None:
        assert self.alarmed("online") <= self.limit(self.BOUND)

    def test_online_with_a_full_reference(self) -> None:
        assert self.alarmed("online", capacity=self.COUNT) <= self.limit(self.BOUND)

    def test_flags(self) -> None:
        assert self.alarmed("flags", delta=0.02) <= self.limit(self.BOUND + 0.02)

    def test_a_fixed_reference_would_break_it(self) -> None:
        """Why davis has no such method: the same bets on p-values against one set raise far more alarms."""
        alarms = 0
        for seed in range(self.STREAMS):
            random = np.random.default_rng(seed)
            known, new = np.sort(random.normal(size=self.COUNT)), random.normal(size=self.STEPS)
            ranks = np.searchsorted(known, new) + random.random(self.STEPS)
            capital = Capital(8)
            for p_value in (ranks / (self.COUNT + 1)).tolist():
                capital.bet(p_value_factors(p_value))
                if capital.log_value >= -math.log(self.BOUND):
                    alarms += 1
                    break
        assert alarms / self.STREAMS > 2 * self.limit(self.BOUND)
