"""Lines and tables of a run: ranks, averages, the paper's numbers, what thresholds accept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runs import GROUPS, SPECS, made

from davis.bench import tables
from davis.bench.results import Results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return made(tmp_path_factory.mktemp("run"), SPECS, GROUPS, images=300, channels=24)


def test_agreement_takes_the_settings_that_reproduce_where_there_are_such(tmp_path: Path) -> None:
    specs = ["mean + knn", "mean + knn(normalize=false, reduction=mean)", "mean + energy"]
    both = made(tmp_path, specs, {"svhn": "far", "dtd10": "far"}, images=200, channels=4)
    lines = {line.detector: line for line in tables.tabulate(both) if line.dataset == "svhn"}
    found = {(part.values, part.metric): part for part in tables.agreement(list(lines.values()))}
    for values, chosen in (("reproducing", specs[::2]), ("published", specs[1:])):
        away = [abs(lines[spec].values["AUROC"] - lines[spec].paper["AUROC"].value) for spec in chosen]
        part = found[values, "AUROC"]
        assert (part.cells, part.median) == (2, pytest.approx(np.median(away)))
        assert part.farthest.detector == chosen[int(np.argmax(away))]
    alone = list(tables.agreement([lines["mean + energy"]]))
    assert [part.values for part in alone] == ["published", "published"]


def test_ties_are_all_best(results: Results) -> None:
    lines = list(tables.tabulate(results))
    equal = [line for line in lines if line.dataset == "svhn"]
    for line in equal[:2]:
        line.values["FPR@95"] = 0.001 * equal.index(line)
    ranks = [row[1][3].rank for row in tables.table(lines, "FPR@95").rows]
    assert ranks[:2] == ["best", "best"]
    assert ranks.count("second") == 1


class TestVerdicts:
    def test_none_without_a_calibration_set(self, results: Results) -> None:
        lines = list(tables.tabulate(results))
        assert tables.verdicts(lines) == []
        assert all(line.record()["OOD_ACCEPTED"] is None for line in lines)

    def test_shares_are_counted_at_the_threshold(self, tmp_path: Path) -> None:
        thresholds: dict[str, float | None] = dict.fromkeys(SPECS, -1.5) | {SPECS[2]: None}
        run = made(tmp_path, SPECS, GROUPS, images=300, channels=4, thresholds=thresholds)
        lines = list(tables.tabulate(run))
        rows = {row.detector: row for row in tables.verdicts(lines)}
        assert set(rows) == {*SPECS} - {SPECS[2]}  # which had too few images to promise anything
        columns = [line.dataset for line in lines if line.detector == SPECS[0]]
        with np.load(tmp_path / "scores" / "svhn.npz") as scores, np.load(tmp_path / "scores/cifar10_test.npz") as own:
            assert rows[SPECS[0]].ood[columns.index("svhn")] == pytest.approx(100 * np.mean(scores[SPECS[0]] >= -1.5))
            assert rows[SPECS[0]].id == pytest.approx(100 * np.mean(own[SPECS[0]] >= -1.5))
        far = [rows[SPECS[0]].ood[columns.index(name)] for name in ("svhn", "dtd10")]
        assert rows[SPECS[0]].ood[columns.index("farood")] == pytest.approx(np.mean(far))
