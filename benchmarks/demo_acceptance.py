"""Does the demo's calibration follow the law? On the scores that its detectors ship with; no data is needed.

python benchmarks/demo_acceptance.py > benchmarks/demo_acceptance.md

The 1,500 calibration scores of each detector are split at random, 1,000 times: a threshold from 1,000 of them, the
share of the other 500 that it accepts. Where n scores set the threshold at rank k, m others are refused in a number
that follows the Beta-binomial law (m, k, n + 1 - k), whatever the scores are distributed as. Only ranks matter here, so
the numbers 1 to 1,500 stand beside the detectors as a control: where they agree, the test says nothing about images.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from davis.artifact import saved_calibration
from davis.calibrate import calibrate, rank
from davis.demo.shipped import CALIBRATION, SPECS, folder_of

SPLITS, HELD, TPR = 1000, 1000, 0.95


def accepted(scores: torch.Tensor, seed: int) -> np.ndarray:
    """(splits,) the share of the scores left over that a threshold from the others accepts."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(SPLITS):
        order = torch.randperm(len(scores), generator=generator)
        made = calibrate(scores[order[:HELD]], tpr=TPR)
        rest = scores[order[HELD:]]
        found.append(1 - made.is_ood(rest, torch.zeros(len(rest), dtype=torch.long)).double().mean().item())
    return np.array(found)


def row(name: str, mean: float, spread: float, low: float, high: float) -> str:
    return f"| {name} | {mean:.2%} | {spread:.2%} | {low:.1%} to {high:.1%} |"


def main() -> None:
    """Print the page."""
    print("# Does the demo's calibration follow the law?\n")
    print(f"Written by `python benchmarks/demo_acceptance.py`: {SPLITS:,} random splits of the scores of "
          f"{CALIBRATION}, {HELD:,} to set a threshold at {TPR:.0%} and the rest to test it.\n")  # fmt: skip
    print("| detector | accepted, mean | standard deviation | 5th to 95th percentile |\n|---|---|---|---|")
    columns = {}
    for pool, spec in SPECS.items():
        calibration = saved_calibration(folder_of(pool))
        assert calibration is not None
        columns[f"`{spec}`"] = calibration.scores
    count = len(calibration.scores)
    columns[f"control: the numbers 1 to {count:,}"] = torch.arange(1, count + 1, dtype=torch.float64)
    for name, scores in columns.items():
        shares = accepted(scores, seed=0)
        distinct = len(scores.unique())
        print(
            row(f"{name}, {distinct:,} distinct", shares.mean(), shares.std(ddof=1), *np.quantile(shares, (0.05, 0.95)))
        )
    rest = count - HELD
    k = rank(HELD, tpr=TPR)
    law = stats.betabinom(rest, k, HELD + 1 - k)
    print(
        row(
            f"by law, k = {k}", 1 - k / (HELD + 1), law.std() / rest, 1 - law.ppf(0.95) / rest, 1 - law.ppf(0.05) / rest
        )
    )
    print(
        "\nAll rows see the same splits, and a split's result depends on ranks alone. Without ties any 1,500 numbers "
        "give the same figures, as the control shows. So this checks that the calibration's code follows the law. "
        "It is no evidence about these detectors, their scores or the pictures, and equal rows are no agreement "
        "between them. The shipped thresholds use all 1,500 scores; these crops are all that there is, so no further "
        "ones check the final threshold, and nothing here speaks about pictures taken in another way."
    )


if __name__ == "__main__":
    main()
