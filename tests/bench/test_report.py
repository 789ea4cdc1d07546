"""The report says what the run found, in every format, and says it the same way twice."""

from __future__ import annotations

import csv
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import GROUPS, SPECS, made

from davis.bench import figures, report
from davis.bench.results import Group, Results, load
from davis.presets import presets
from davis.spec import canonical

for needed in ("jinja2", "matplotlib", "sklearn"):
    pytest.importorskip(needed)
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return made(tmp_path_factory.mktemp("run"), SPECS, GROUPS, images=300, channels=24)


@pytest.fixture(scope="module")
def written(results: Results, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    files = report.write_reports(results, tmp_path_factory.mktemp("report"))
    return {file.suffix[1:]: file for file in files}


def records(written: dict[str, Path]) -> list[dict[str, str]]:
    with written["csv"].open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_csv_file_has_every_detector_and_set_in_openood_s_columns(
    results: Results, written: dict[str, Path]
) -> None:
    found = {(line["detector"], line["dataset"]): line for line in records(written)}
    assert len(found) == len(records(written)) == len(SPECS) * (len(GROUPS) + 2)
    for row in results.rows:
        line = found[row.spec, row.set]
        expected = [100 * value for value in (row.fpr95, row.auroc, row.aupr_in, row.aupr_out, 0.9361)]
        got = [float(line[column]) for column in ("FPR@95", "AUROC", "AUPR_IN", "AUPR_OUT", "ACC")]
        assert got == pytest.approx(expected, abs=1e-6)
        assert (line["group"], line["ood_images"]) == (GROUPS[row.set], "300")
    for spec in SPECS:
        for average, group in (("nearood", "near"), ("farood", "far")):
            auroc = np.mean([row.auroc for row in results.rows if (row.spec, row.group) == (spec, group)])
            assert float(found[spec, average]["AUROC"]) == pytest.approx(100 * auroc, abs=1e-6)


def test_detectors_are_grouped_by_pool_in_the_order_of_the_run(written: dict[str, Path]) -> None:
    order = list(dict.fromkeys(line["detector"] for line in records(written)))
    assert order == [SPECS[0], SPECS[4], SPECS[1], SPECS[3], SPECS[2]]
    sets = list(dict.fromkeys(line["dataset"] for line in records(written)))
    assert sets == ["cifar100_test", "tiny_imagenet", "nearood", "svhn", "dtd10", "farood"]


def test_only_the_paper_s_own_rows_and_sets_are_compared(written: dict[str, Path]) -> None:
    found = {(line["detector"], line["dataset"]): line for line in records(written)}
    svhn = found["max + dice + energy", "svhn"]
    assert (svhn["paper_row"], svhn["paper_values"], svhn["paper_FPR@95"]) == ("DAVIS(m)+DICE", "published", "8.3")
    assert float(svhn["difference_FPR@95"]) == pytest.approx(float(svhn["FPR@95"]) - 8.3)
    assert all(found[spec, "dtd10"]["paper_AUROC"] == "" for spec in SPECS)  # resembles textures, is not
    assert all(found[spec, "farood"]["paper_AUROC"] == "" for spec in SPECS)
    near = [float(found["mean + energy", name]["paper_AUROC"]) for name in ("cifar100_test", "tiny_imagenet")]
    assert float(found["mean + energy", "nearood"]["paper_AUROC"]) == pytest.approx(np.mean(near))
    assert found["mean + ash_s(p=77) + energy", "svhn"]["paper_row"] == ""


def test_parquet_holds_what_the_csv_file_holds(written: dict[str, Path]) -> None:
    table = parquet.read_table(written["parquet"])
    assert str(table.schema.field("FPR@95").type) == "double"
    lines = records(written)
    assert table.column_names == list(lines[0])
    for line, row in zip(lines, table.to_pylist(), strict=True):
        assert line == {name: "" if value is None else str(value) for name, value in row.items()}


def cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.removesuffix(r"\\").split("&")]


def test_latex_marks_the_best_bold_and_the_second_underlined(written: dict[str, Path]) -> None:
    text = written["tex"].read_text()
    rows = [cells(line) for line in text.splitlines() if line.startswith(r"\texttt")]
    assert [row[0] for row in rows][3] == r"\texttt{mean + ash\_s(p=77) + energy}"
    assert text.count(r"\midrule") == 3  # the heading, and between three pools
    assert text.count("{") == text.count("}")
    for place in range(1, len(rows[0])):
        column = [row[place] for row in rows]
        plain = [float(re.sub(r"\\\w+\{|\}", "", cell)) for cell in column]
        order = sorted(set(plain), reverse=place % 2 == 0)
        for cell, value in zip(column, plain, strict=True):
            assert cell.startswith(r"\textbf") == (value == order[0])
            assert cell.startswith(r"\underline") == (value == order[1])


def test_markdown_has_the_numbers(written: dict[str, Path]) -> None:
    lines = [line for line in written["md"].read_text().splitlines() if line.startswith("| `mean + energy`")]
    found = {(line["detector"], line["dataset"]): line for line in records(written)}
    for metric, row in zip(("FPR@95", "AUROC"), lines, strict=False):
        numbers = [float(re.sub(r"[*]|</?u>", "", cell)) for cell in row.strip("| ").split("|")[1:]]
        sets = ["cifar100_test", "tiny_imagenet", "nearood", "svhn", "dtd10", "farood"]
        assert numbers == [pytest.approx(float(found["mean + energy", name][metric]), abs=0.0051) for name in sets]
    text = written["md"].read_text()
    assert "dtd10 (the paper has textures)" in text
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        assert len({line.count("|") for line in block.splitlines()}) == 1, block


class Page(HTMLParser):
    """Collects tables and whatever would make a browser fetch something; complains about tags left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "link", "img", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check_page(text: str) -> Page:
    page = Page(text)
    assert page.open == []
    assert "http" not in text
    assert "url(" not in re.sub(r"url\(#\w+\)", "", text)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img")
        assert "src" not in attributes
        address = attributes.get("href") or attributes.get("xlink:href") or "#"
        assert address.startswith(("#", "data:image/png")), (tag, address)
    return page


def test_the_page_has_the_numbers_and_asks_nobody_for_anything(written: dict[str, Path]) -> None:
    page = check_page(written["html"].read_text())
    shown = set(page.text)
    for line in records(written):
        assert {f"{float(line[metric]):.2f}" for metric in report.METRICS} <= shown
        assert line["detector"] in shown
        if line["paper_FPR@95"]:
            difference = report._signed(float(line["difference_FPR@95"]))
            assert any(text.endswith(difference) for text in shown)
    assert "a <b>made up</b> run" in shown  # escaped, not obeyed
    drawn = [attributes.get("aria-label") for tag, attributes in page.tags if tag == "svg"]
    assert all(drawn)
    assert len(drawn) == 4 * 12 + 2 * 3  # figures of each set, and t-SNE of one near and one far set


def test_the_same_run_gives_the_same_bytes(
    results: Results, written: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert results.folder is not None
    for file in report.write_reports(load(results.folder), tmp_path):
        assert file.read_bytes() == written[file.suffix[1:]].read_bytes(), file.name


def test_a_run_of_its_own_without_paper_labels_or_near_sets(tmp_path: Path) -> None:
    alone = made(tmp_path, ["mean + msp"], {"noise": "far"}, images=50, channels=6, paper=None, accuracy=None)
    (tmp_path / "head.npz").unlink()
    files = {file.suffix[1:]: file for file in report.write_reports(alone, tmp_path / "out")}
    page = "".join(check_page(files["html"].read_text()).text)
    assert "Against the paper" not in page
    assert "not linear" in page
    assert "nearood" not in files["csv"].read_text()


SAID = {
    "max + energy": ["all held-out scores are 0"],
    "mean + energy": ["energy: 5 < 50 images", "all held-out scores are 0"],
}


def test_detectors_that_warned_are_marked_and_their_warnings_listed(
    results: Results, written: dict[str, Path], tmp_path: Path
) -> None:
    facts = {"warnings": SAID, "device": "cpu", "images": {}}
    few = made(tmp_path, SPECS, GROUPS, images=50, channels=6, facts=facts)
    files = {file.suffix[1:]: file.read_bytes() for file in report.write_reports(few, tmp_path / "out")}
    marked = set(re.findall(r"^\| `([^`]+)`‡ \|", files["md"].decode(), flags=re.M))
    plain = set(re.findall(r"^\| `([^`]+)` \| [\d*<]", files["md"].decode(), flags=re.M))
    assert (marked, plain - set(SPECS)) == (set(SAID), set())
    assert plain == set(SPECS) - set(SAID)
    assert "- all held-out scores are 0 (`max + energy`, `mean + energy`)\n" in files["md"].decode()
    assert "- energy: 5 < 50 images (`mean + energy`)\n" in files["md"].decode()
    page = files["html"].decode()
    check_page(page)
    rows = re.findall(r'<th scope="row"><code>([^<]+)</code>(<a class="beware" href="#beware")?', page)
    assert {detector for detector, sign in rows if sign} == set(SAID)
    assert {detector for detector, sign in rows if not sign} == set(SPECS) - set(SAID)
    assert page.count('id="beware"') == 1
    assert "<li>energy: 5 &lt; 50 images (<code>mean + energy</code>)</li>" in page
    tex = files["tex"].decode()
    assert set(re.findall(r"^\\texttt\{([^}]+)\}\$\^\\ddagger\$ &", tex, flags=re.M)) == set(SAID)
    assert r"all held-out scores are 0 (\texttt{max + energy}, \texttt{mean + energy})" in tex
    assert tex.count("{") == tex.count("}")
    assert {line["detector"] for line in csv.DictReader(files["csv"].decode().splitlines())} == set(SPECS)
    for name in ("md", "html", "tex"):  # of a run where nobody warned
        assert not re.search("‡|ddagger|Beware", written[name].read_text())


def test_averages_are_explained_before_the_tables(written: dict[str, Path], tmp_path: Path) -> None:
    alone = made(tmp_path, ["mean + msp"], {"noise": "far"}, images=50, channels=6, paper=None)
    far = {file.suffix[1:]: file for file in report.write_reports(alone, tmp_path / "out")}
    for name, table in (("md", "| detector |"), ("html", "<table")):
        above = re.sub("<.*?>", "", written[name].read_text().partition(table)[0])
        assert "nearood: the plain mean over the near OOD sets" in above
        assert "farood: the plain mean over the far ones (svhn, dtd10)" in above
        above = re.sub("<.*?>", "", far[name].read_text().partition(table)[0])
        assert "farood: the plain mean over the far OOD sets (noise)" in above
        assert "nearood" not in above


@pytest.mark.parametrize(("spec", "skipped"), [("mean + msp", {}), ("odin + mean + msp", {"noise": 3})])
def test_facts_that_do_not_apply_are_left_out(spec: str, skipped: dict[str, int], tmp_path: Path) -> None:
    facts = {"pixel_images": 2000, "skipped": skipped, "device": "cpu"}
    alone = made(tmp_path, [spec], {"noise": "far"}, images=50, channels=6, paper=None, facts=facts)
    page = next(file for file in report.write_reports(alone, tmp_path / "out") if file.suffix == ".html").read_text()
    shown = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))
    assert shown == ({"device": "cpu"} | ({"pixel_images": "2000", "skipped": "noise: 3"} if skipped else {}))


def test_names_of_detectors_are_headings_of_their_rows(tmp_path: Path) -> None:
    facts = {"flops": {"model": 1e6, "mean + msp": 1e3}, "accuracy_by_spec": {"mean + msp": 0.5}}
    alone = made(tmp_path, ["mean + msp"], {"noise": "far"}, images=50, channels=6, paper=None, facts=facts)
    page = next(file for file in report.write_reports(alone, tmp_path / "out") if file.suffix == ".html").read_text()
    assert "<td><code>" not in page  # which is aligned to the right, as numbers are
    assert '<th scope="row"><code>mean + msp</code></th><td>0.001</td>' in page


def test_a_missing_package_is_one_clear_line(results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(figures, "import_module", missing)
    with pytest.raises(ImportError, match=r"the report needs jinja2: pip install 'davis-ood\[bench\]'"):
        report.write_reports(results, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_seventy_detectors_on_seven_sets_fit_into_two_megabytes(tmp_path: Path) -> None:
    texts = [canonical(preset.spec) for preset in presets(id="cifar10", arch="densenet101")]
    specs = list(dict.fromkeys([*texts, *(f"max + ash_s(p={p}) + energy" for p in range(50, 80))]))[:70]
    assert len(specs) == 70
    groups: dict[str, Group] = {**GROUPS, "miniplaces": "far", "lsuncats_crop": "far", "lsuncats_resize": "far"}
    large = made(tmp_path, specs, groups, images=2000, channels=2048, sampled=500)
    page = next(file for file in report.write_reports(large, tmp_path) if file.suffix == ".html")
    check_page(page.read_text())
    assert page.stat().st_size < 2_000_000
