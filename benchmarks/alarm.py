"""False alarms and delays of davis.monitor on real scores.

    python benchmarks/alarm.py RUN

RUN is the folder of a finished ``davis bench`` run (of CIFAR-10, with SVHN). Writes benchmarks/alarm.md and
docs/figures/alarm.svg.

For each stream the calibration scores and the stream are drawn anew, with replacement, from one pool, the run's scores
of the CIFAR-10 test images; a shift mixes in scores of SVHN. A thousand streams go forward side by side; the arithmetic
is compared with ``Monitor`` itself before anything is measured.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from davis.monitor import Monitor
from davis.monitor.betting import FLAG_BETS, P_VALUE_BETS, flag_factors, p_value_factors
from davis.ranks import rank_of

SPEC = "max + dice + energy"
BOUND, ALPHA, DELTA = 0.01, 0.05, 0.01
LENGTHS = (1_000, 10_000, 100_000)
SIZES = (1_000, 5_000)
BLOCK = 100
PATIENCE = 20_000  # scores after a shift, at most
LATE = 10_000
METHODS = ("online", "flags", "fixed")  # the last is not offered: p-values against one fixed calibration set
HERE = Path(__file__).resolve().parent

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pool:
    """Real scores; ``known`` and ``foreign`` are places in ``values``, which are sorted and distinct."""

    values: Floats
    known: Ints
    foreign: Ints

    @classmethod
    def of(cls, known: Floats, foreign: Floats) -> Pool:
        values, places = np.unique(np.concatenate([known, foreign]), return_inverse=True)
        return cls(values, places[: len(known)], places[len(known) :])

    def draw(self, random: np.random.Generator, shape: tuple[int, ...], foreign: float = 0.0) -> Ints:
        drawn = random.choice(self.known, shape)
        if foreign:
            drawn = np.where(random.random(shape) < foreign, random.choice(self.foreign, shape), drawn)
        return drawn


class Streams:
    """Many streams under one method, a block of scores at a time; ``alarms`` says where each reached 1 / bound."""

    def __init__(self, method: str, calibration: Ints, levels: int) -> None:
        streams, count = calibration.shape
        self.method = method
        self.alarms = np.zeros(streams, dtype=np.int64)  # 0: none yet
        self.steps = 0
        self.stakes = np.zeros((streams, FLAG_BETS if method == "flags" else P_VALUE_BETS))
        self.value = np.ones(streams)
        if method == "flags":
            rank = rank_of(count, alpha=ALPHA, delta=DELTA)
            self.threshold = np.partition(calibration, rank - 1, axis=1)[:, rank - 1]
            self.factors = np.array(flag_factors(ALPHA))
        else:
            self.size = count
            self.counts = np.zeros((streams, levels), dtype=np.int32)  # of each value in each stream's reference
            for row, codes in zip(self.counts, calibration, strict=True):
                row += np.bincount(codes, minlength=levels).astype(np.int32)
            if method == "fixed":
                self.upto = self.counts.cumsum(1)

    def advance(self, codes: Ints, ties: Floats) -> None:
        """Take one block: (stream, time) places in the pool's values, and the draws that break ties."""
        if self.method == "flags":
            returns = self.factors[(codes < self.threshold[:, None]).astype(int)]
        else:
            below, equal = self._ranks(codes)
            sizes = self.size + (np.arange(codes.shape[1]) if self.method == "online" else 0)
            returns = np.stack(p_value_factors((below + ties * (equal + 1)) / (sizes + 1)), axis=2)
            self.size += codes.shape[1] if self.method == "online" else 0
        for place in range(codes.shape[1]):
            share = (waiting(self.steps) - waiting(self.steps + 1)) / self.stakes.shape[1]
            self.stakes = np.minimum((self.stakes + share) * returns[:, place], 1e200)
            self.steps += 1
            self.value = self.stakes.sum(1) + waiting(self.steps)
            self.alarms[(self.alarms == 0) & (self.value >= 1 / BOUND)] = self.steps

    def _ranks(self, codes: Ints) -> tuple[Ints, Ints]:
        """How many earlier scores are below each, and how many equal it."""
        if self.method == "fixed":
            rows = np.arange(len(codes))[:, None]
            equal = self.counts[rows, codes].astype(np.int64)
            return self.upto[rows, codes] - equal, equal
        below, equal = np.empty_like(codes), np.empty_like(codes)
        earlier = np.tri(codes.shape[1], k=-1, dtype=bool)
        for number, (row, counts) in enumerate(zip(codes, self.counts, strict=True)):
            there = counts[row]
            below[number] = (
                counts.cumsum()[row]
                - there
                + ((row[None] < row[:, None]) & earlier).view(np.int8).sum(1, dtype=np.int32)
            )
            equal[number] = there + ((row[None] == row[:, None]) & earlier).view(np.int8).sum(1, dtype=np.int32)
            np.add.at(counts, row, 1)
        return below, equal


def waiting(steps: int) -> float:
    return 1.0 / (1.0 + float(np.log1p(steps)))


def simulate(
    pool: Pool,
    method: str,
    *,
    size: int,
    streams: int,
    length: int,
    foreign: float = 0.0,
    start: int = 0,
    seed: int = 0,
) -> Ints:
    """Where each stream raised its alarm, 0 where it did not; from ``start`` on a share of scores is foreign."""
    random = np.random.default_rng([seed, size, start, round(1000 * foreign)])  # the same streams for every method
    running = Streams(method, pool.draw(random, (streams, size)), len(pool.values))
    for begin in range(0, length, BLOCK):
        shape = (streams, min(BLOCK, length - begin))
        codes = pool.draw(random, shape, foreign if begin >= start else 0.0)
        running.advance(codes, (random.random(shape) + 2.0**-54).clip(max=1 - 2.0**-53))
        if foreign and running.alarms.all():
            break
    return running.alarms


def check(pool: Pool) -> None:
    """The streams above do what Monitor does."""
    random = np.random.default_rng(99)
    for method in ("online", "flags"):
        known, codes = pool.draw(random, (3, 500)), pool.draw(random, (3, 4 * BLOCK), 0.03)
        monitors = [Monitor(pool.values[row], method=method, alpha=ALPHA, delta=DELTA, seed=7) for row in known]
        ties = np.array([monitor._draws(codes.shape[1]) for monitor in monitors])[:, :, 0]
        running = Streams(method, known, len(pool.values))
        for begin in range(0, codes.shape[1], BLOCK):
            part = slice(begin, begin + BLOCK)
            running.advance(codes[:, part], ties[:, part])
        for row, (monitor, scores) in enumerate(zip(monitors, pool.values[codes], strict=True)):
            monitor.update(scores)
            assert np.isclose(running.value[row], monitor.e_value, rtol=1e-9), (method, row)
            assert running.alarms[row] == (monitor.alarm.at if monitor.alarm else 0), (method, row)


def bounded(pool: Pool, *, streams: int, length: int, size: int, capacity: int) -> float:
    """False alarms of Monitor itself with a reference that is soon full."""
    random, alarms = np.random.default_rng(5), 0
    for seed in range(streams):
        known, scores = (pool.values[pool.draw(random, (count,))] for count in (size, length))
        monitor = Monitor(known, bound=BOUND, capacity=capacity, seed=seed)
        monitor.update(scores, after_alarm="stop")
        alarms += monitor.alarm is not None
    return alarms / streams


def shares(alarms: Ints, lengths: tuple[int, ...]) -> list[float]:
    return [float(((alarms > 0) & (alarms <= length)).mean()) for length in lengths]


def delays(alarms: Ints, start: int) -> str:
    """Median and quartiles of the scores from the shift to the alarm; streams with an earlier one are left out."""
    kept = alarms[(alarms == 0) | (alarms > start)]
    waited = np.where(kept == 0, np.inf, kept - start)
    low, median, high = np.quantile(waited, (0.25, 0.5, 0.75), method="inverted_cdf")
    found = f"{np.isfinite(waited).mean():.1%}"
    return f"{median:,.0f} | {low:,.0f} to {high:,.0f} | {found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--spec", default=SPEC)
    parser.add_argument("--streams", type=int, default=1000)
    options = parser.parse_args()
    files = (options.run / "scores" / f"{name}.npz" for name in ("cifar10_test", "svhn"))
    pool = Pool.of(*(np.load(file)[options.spec] for file in files))
    check(pool)
    pure = Pool.of(pool.values[pool.known], np.empty(0))  # fewer levels, less work
    began = time.perf_counter()
    known, foreign = pool.values[pool.known], pool.values[pool.foreign]
    below = float((foreign < np.quantile(known, ALPHA)).mean())
    sigma = 3 * (BOUND * (1 - BOUND) / options.streams) ** 0.5
    stated = {"online": f"{BOUND:.0%}", "flags": f"{BOUND + DELTA:.0%}", "fixed": "none: not offered"}
    lines = [
        "# Alarms on real scores",
        "",
        f"`python benchmarks/alarm.py RUN`: {options.streams:,} streams, calibration and stream drawn anew with "
        f"replacement from one pool, the {len(known):,} scores of `{options.spec}` on CIFAR-10 test images "
        f"({len(np.unique(known)):,} distinct; DenseNet-101). Bound {BOUND:g}, alpha {ALPHA:g}, delta {DELTA:g}. "
        "`fixed` puts the same bets on p-values against the calibration set alone: it is not offered, and this is why.",
        "",
        "## Without a shift: share of streams that ever raised an alarm",
        "",
        f"Three binomial standard errors at {BOUND:g} are {sigma:.4f}. The online reference takes all scores in here.",
        "",
        f"| method | calibration | {' | '.join(f'{length:,} scores' for length in LENGTHS)} | stated bound |",
        "|---|---|---|---|---|---|",
    ]
    curves: dict[str, Ints] = {}
    for size in SIZES:
        for method in METHODS:
            alarms = simulate(pure, method, size=size, streams=options.streams, length=LENGTHS[-1])
            if size == SIZES[0]:
                curves[f"{method}, no shift"] = alarms
            cells = " | ".join(f"{share:.1%}" for share in shares(alarms, LENGTHS))
            lines.append(f"| {method} | {size:,} | {cells} | {stated[method]} |")
            print(lines[-1], f"{time.perf_counter() - began:.0f} s", flush=True)
    full = bounded(pure, streams=options.streams, length=10_000, size=SIZES[0], capacity=2_000)
    lines += [
        "",
        f"`Monitor` itself, online, with `capacity=2000`, so that its reference is full after 1,000 of 10,000 scores: "
        f"{full:.1%}.",
        "",
        "## With a shift: scores from its beginning to the alarm",
        "",
        f"SVHN scores are mixed in from the start or after {LATE:,} CIFAR-10 scores; {below:.1%} of them lie below the "
        f"{ALPHA:.0%} quantile of CIFAR-10. Found: alarms within {PATIENCE:,} scores.",
        "",
        "| method | calibration | SVHN | shift begins | median | quartiles | found |",
        "|---|---|---|---|---|---|---|",
    ]
    print(lines[-7], flush=True)
    for size in SIZES:
        for share in (0.05, 0.2):
            for start in (0, LATE):
                for method in METHODS[:2]:
                    settings = {"size": size, "streams": options.streams, "foreign": share, "start": start}
                    alarms = simulate(pool, method, length=start + PATIENCE, **settings)
                    if start == 0 and size == SIZES[0]:
                        curves[f"{method}, {share:.0%} SVHN"] = alarms
                    begins = f"after {start:,}" if start else "at once"
                    lines.append(f"| {method} | {size:,} | {share:.0%} | {begins} | {delays(alarms, start)} |")
                    print(lines[-1], f"{time.perf_counter() - began:.0f} s", flush=True)
    (HERE / "alarm.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    draw(curves, HERE.parent / "docs" / "figures" / "alarm.svg")


def draw(curves: dict[str, Ints], file: Path) -> None:
    """The share of streams that have raised an alarm, over time."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "davis", "font.size": 9}
    from matplotlib import pyplot

    styles = {"no shift": "-", "5% SVHN": "--", "20% SVHN": ":"}
    colours = {"online": "#2483bd", "flags": "#d55e00", "fixed": "#777777"}
    figure, axes = pyplot.subplots(figsize=(7.6, 3.2), layout="constrained")
    times = np.unique(np.geomspace(10, LENGTHS[-1], 150).astype(int))
    for name, alarms in curves.items():
        method, kind = name.split(", ")
        shown = times if kind == "no shift" else times[times <= PATIENCE]
        reached = [((alarms > 0) & (alarms <= now)).mean() for now in shown]
        label = f"{name} (not valid)" if method == "fixed" else name
        axes.plot(shown, reached, styles[kind], color=colours[method], label=label)
    axes.axhline(BOUND, color="#aaaaaa", linewidth=0.8)
    axes.text(LENGTHS[-1], BOUND, f"bound {BOUND:g}", fontsize=7, ha="right", va="bottom")
    axes.set_yscale("symlog", linthresh=0.01)
    axes.set(xscale="log", ylim=(0, 1.1), xlabel="scores", ylabel="share of streams with an alarm")
    axes.set_yticks([0, 0.01, 0.1, 1], ["0", "1%", "10%", "100%"])
    figure.legend(frameon=False, fontsize=8, loc="outside right center")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
