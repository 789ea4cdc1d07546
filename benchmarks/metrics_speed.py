"""AUROC, AUPR-in, AUPR-out and FPR95 of ten million scores: davis.metrics beside scikit-learn, in one run."""

from __future__ import annotations

import time

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from davis import metrics


def by_scikit_learn(ids: np.ndarray, oods: np.ndarray) -> tuple[float, ...]:
    truth, scores = np.repeat([1, 0], [len(ids), len(oods)]), np.concatenate([ids, oods])
    fpr, tpr, _ = roc_curve(truth, scores, drop_intermediate=False)
    precision = average_precision_score(truth, scores), average_precision_score(1 - truth, -scores)
    return float(fpr[np.argmax(tpr >= 0.95)]), roc_auc_score(truth, scores), *precision


def main() -> None:
    random = np.random.default_rng(0)
    print("| scores | scikit-learn s | davis s | ratio | largest difference |\n|---|---|---|---|---|")
    for name, digits in (("10 million, continuous", None), ("10 million, rounded to 0.001 (ties)", 3)):
        ids, oods = random.normal(1, 1, 5_000_000), random.normal(0, 1, 5_000_000)
        if digits is not None:
            ids, oods = ids.round(digits), oods.round(digits)
        began = time.perf_counter()
        theirs = by_scikit_learn(ids, oods)
        middle = time.perf_counter()
        ours = metrics.evaluate(ids, oods)
        ended = time.perf_counter()
        gap = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
        took = f"{middle - began:.2f} | {ended - middle:.2f} | {(middle - began) / (ended - middle):.1f}"
        print(f"| {name} | {took} | {gap:.1e} |", flush=True)


if __name__ == "__main__":
    main()
