"""Do thresholds keep their promise? Measured on real scores, over random splits.

davis bench paper-cifar10-densenet101 --no-pixels --data DATA --out RUN
python benchmarks/coverage.py RUN > benchmarks/coverage.md        (also writes docs/figures/coverage.svg)

The scores of CIFAR-10's 10,000 test images are split at random into n for calibration and the rest, 1,000 times. The
share of the rest that is accepted is set beside what the promise says: on average for ``marginal``, and for
``conditional`` the share of splits that fall below 1 - alpha beside that of the Beta-binomial law.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from davis.bench.results import load
from davis.calibrate import Kind, rank

SPECS = ("max + dice + energy", "mean + knn", "mean + msp")
SPLITS, DELTA = 1000, 0.05
SIZES = {0.05: (59, 200, 1000), 0.01: (299, 1000, 3000)}
KINDS: tuple[Kind, ...] = ("marginal", "conditional")


def accepted(scores: np.ndarray, count: int, ranks: dict[Kind, int], seed: int) -> dict[Kind, np.ndarray]:
    """(splits,) how many of the images that were not calibrated on are accepted."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[Kind, list[int]] = {kind: [] for kind in ranks}
    for _ in range(SPLITS):
        order = torch.randperm(len(scores), generator=generator).numpy()
        held, rest = np.sort(scores[order[:count]]), scores[order[count:]]
        for kind, k in ranks.items():
            found[kind].append(int((rest >= held[k - 1]).sum()))
    return {kind: np.array(values) for kind, values in found.items()}


def short_by_law(k: int, count: int, rest: int, alpha: float) -> float:
    """P(fewer than (1 - alpha) m of m are accepted): the number of rejected ones is Beta-binomial(m, k, n + 1 - k)."""
    return float(stats.betabinom.sf(int(np.floor(alpha * rest + 1e-9)), rest, k, count + 1 - k))


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    run = load(Path(sys.argv[1]))
    everything = run.scores(run.id)
    print("# Do thresholds keep their promise?\n")
    print(f"Written by `python benchmarks/coverage.py`: {SPLITS:,} random splits of the scores of {run.id} "
          f"({run.model}), n images to calibrate on and the rest to test with; delta {DELTA}.\n")  # fmt: skip
    head = (
        "detector",
        "alpha",
        "n",
        "promise",
        "k",
        "accepted, mean",
        "3 standard errors",
        "short of 1 - alpha",
        "by law",
    )
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    drawn = {}
    for spec in SPECS:
        scores = everything[spec]
        for alpha, sizes in SIZES.items():
            for count in sizes:
                rest = len(scores) - count
                ranks = {kind: rank(count, tpr=1 - alpha, kind=kind, delta=DELTA) for kind in KINDS}
                for kind, values in accepted(scores, count, ranks, seed=count).items():
                    shares, k = values / rest, ranks[kind]
                    error = 3 * shares.std(ddof=1) / SPLITS**0.5
                    short = float((values < (1 - alpha) * rest - 1e-6).mean())
                    law = short_by_law(k, count, rest, alpha)
                    print(f"| `{spec}` | {alpha} | {count} | {kind} | {k} | {100 * shares.mean():.3f}% | "
                          f"{100 * error:.3f} | {100 * short:.1f}% | {100 * law:.1f}% |")  # fmt: skip
                    if spec == SPECS[0]:
                        drawn[alpha, count, kind] = shares
    draw(drawn, Path(__file__).parent.parent / "docs" / "figures" / "coverage.svg")


def draw(drawn: dict[tuple[float, int, Kind], np.ndarray], target: Path) -> None:
    """How the accepted share varies over splits, beside the line that was promised."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "davis"
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(SIZES), figsize=(9, 3.2), layout="constrained")
    for panel, (alpha, sizes) in zip(panels, SIZES.items(), strict=True):
        for place, count in enumerate(sizes):
            for kind, colour, shift in (("marginal", "#2483bd", -0.18), ("conditional", "#d55e00", 0.18)):
                shares = 100 * drawn[alpha, count, kind]  # type: ignore[index]
                boxes = panel.boxplot(shares, positions=[place + shift], widths=0.3, whis=(5, 95), showfliers=False,
                                      patch_artist=True, medianprops={"color": "black"})  # fmt: skip
                boxes["boxes"][0].set(facecolor=colour, alpha=0.6, label=kind if place == 0 else None)
        panel.axhline(100 * (1 - alpha), color="black", linewidth=0.8, linestyle="--")
        panel.set_xticks(range(len(sizes)), [f"n = {count:,}" for count in sizes])
        panel.set(ylabel="ID images accepted, %", title=f"promised: {100 * (1 - alpha):g}%")
        panel.legend(frameon=False, fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None, "Creator": None})


if __name__ == "__main__":
    main()
