"""How far the figures of two runs of a benchmark are apart, such as one on a GPU and one on a CPU.

davis bench paper-cifar10-mobilenet_v2 --no-pixels --out OUT
python benchmarks/same_tables.py OUT benchmarks/trained/cifar10-mobilenet_v2
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from davis.bench.results import load


def main() -> None:
    """Compare the rows that both have."""
    first, second = (load(Path(place)) for place in sys.argv[1:])
    both = [(row, second.row(row.spec, row.set)) for row in first.rows if row.spec in second.specs]
    print(f"{len(both)} rows; accuracy {first.accuracy:.4f} and {second.accuracy:.4f}")
    for name in ("fpr95", "auroc"):
        apart = [100 * abs(getattr(one, name) - getattr(other, name)) for one, other in both]
        print(f"{name}: {max(apart):.3f} points apart at most, median {median(apart):.3f}")


if __name__ == "__main__":
    main()
