"""The paper's numbers in the package are the paper's, and only like is compared with like."""

from __future__ import annotations

import csv
import gzip
from importlib.resources import files
from pathlib import Path

import pytest

from davis.bench import paper
from davis.presets import OUT_OF_SCOPE, presets

HEADER = ("table", "id_dataset", "model", "pooling", "method", "ood_dataset", "metric", "value", "starred")


@pytest.fixture(scope="module")
def entries(shared: Path) -> list[dict[str, str]]:
    source = shared / "paper" / "results.csv"
    if not source.is_file():
        pytest.skip("no list of the paper's table entries (shared/paper/results.csv)")
    with source.open(newline="") as stream:
        return list(csv.DictReader(stream))


def packed() -> bytes:
    return files("davis.bench").joinpath("paper_figures.csv.gz").read_bytes()


def test_a_few_cells_read_off_the_tables() -> None:
    assert paper.paper_value("cifar10", "densenet101", "DAVIS(mu,sigma)+DICE", "svhn", "auroc") == 98.77
    assert paper.paper_value("cifar100", "densenet101", "Energy", "svhn", "fpr95") == 70.99
    assert paper.paper_value("cifar10", "densenet101", "Standard", "", "accuracy") == 93.61
    assert paper.paper_value("cifar10", "densenet101", "KNN", "svhn", "fpr95") == 1.5


def test_sets_of_ours_are_the_paper_s_only_where_they_are_the_same() -> None:
    row = ("cifar10", "densenet101", "Energy")
    assert paper.paper_value(*row, "cifar100_test", "auroc") == paper.paper_value(*row, "cifar100", "auroc") == 90.29
    for related, official in paper.RELATED.items():
        assert paper.paper_value(*row, related, "fpr95") is None
        assert paper.paper_value(*row, official, "fpr95") is not None
    assert paper.paper_value("cifar100", "densenet101", "Energy", "cifar10_test", "auroc") is None  # not in the paper
    assert paper.paper_value("cifar10", "densenet101", "no such row", "svhn", "auroc") is None


def test_every_number_in_the_package_is_printed_in_the_paper(entries: list[dict[str, str]]) -> None:
    """Each cell by its own reading of the list of entries; where tables disagree, all their values are there."""
    prefix = {"mean": "", "davis_max": "DAVIS(m)+", "max": "DAVIS(m)+", "davis_mean_std": "DAVIS(mu,sigma)+"}
    prefix |= {"median": "median+", "entropy": "entropy+"}
    prefix |= {f"mean+{g:.1f}std": f"DAVIS(mu,{g:g}sigma)+" for g in (0.5, 1, 1.5, 2, 3, 4)}
    printed: dict[tuple[str, ...], dict[float, list[str]]] = {}
    for entry in entries:
        if entry["ood_dataset"] == "average":
            continue
        row = prefix[entry["pooling"]] + entry["method"]
        key = (entry["id_dataset"], entry["model"], row, entry["ood_dataset"], entry["metric"])
        printed.setdefault(key, {}).setdefault(float(entry["value"]), []).append(entry["table"])
    for key, values in printed.items():
        found = paper.figure(*key)
        assert found is not None, key
        assert found.table in values[found.value], key
        assert {found.value, *found.others} == set(values), key
        detailed = [value for value, tables in values.items() if any(each.startswith("detailed") for each in tables)]
        assert not detailed or found.value in detailed, key
    assert len(printed) == len(gzip.decompress(packed()).splitlines()) - 1


def test_the_package_s_file_is_made_from_the_entries(
    entries: list[dict[str, str]], shared: Path, tmp_path: Path
) -> None:
    first, second = paper.condense(entries), paper.condense(entries)
    assert first == second
    assert gzip.decompress(first) == gzip.decompress(packed())
    assert len(packed()) < 100_000
    target = tmp_path / "figures.csv.gz"
    paper.main([str(shared / "paper" / "results.csv"), str(target)])
    assert target.read_bytes() == first


def test_the_detailed_table_wins_and_the_rest_is_kept() -> None:
    cell = ("cifar10", "resnet18", "davis_max", "DICE", "svhn", "fpr95")
    rows = [("averages", *cell, "9.9", "0"), ("quoted", *cell, "1.0", "1"), ("detailed_a", *cell, "2.50", "0")]
    rows += [("again", *cell, "2.5", "0"), ("detailed_a", *cell[:4], "average", "fpr95", "7", "0")]
    text = gzip.decompress(paper.condense(dict(zip(HEADER, row, strict=True)) for row in rows)).decode()
    assert text.splitlines()[1:] == ["cifar10,resnet18,DAVIS(m)+DICE,svhn,fpr95,2.50,detailed_a,0,9.9 1.0"]


def test_every_row_of_the_paper_is_a_preset_or_out_of_scope() -> None:
    names = {preset.name for preset in presets()}
    assert {key[2] for key in paper._figures()} - names <= set(OUT_OF_SCOPE)


def test_specs_lead_to_the_rows_that_the_paper_prints() -> None:
    rows = paper.rows_of("cifar10", "densenet101")
    assert rows["davis(gamma=3) + energy"][0].name == "DAVIS(mu,sigma)+Energy"
    assert rows["mean + knn"][0].values == "reproducing"
    assert rows["mean + knn(normalize=false, reduction=mean)"][0].name == "KNN"
    assert "mean + knn(k=7)" not in rows


def test_the_command_explains_itself() -> None:
    with pytest.raises(SystemExit, match="SOURCE TARGET"):
        paper.main([])
