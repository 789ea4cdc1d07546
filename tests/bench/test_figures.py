"""Figures show what they were given, as one small element that fits any page."""

from __future__ import annotations

import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from davis.bench import figures
from davis.bench.analysis import gaps

pytest.importorskip("matplotlib")


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(3)


def texts(picture: figures.Picture) -> list[str]:
    return ["".join(element.itertext()).strip() for element in ElementTree.fromstring(picture.svg).iter("text")]


def polylines(picture: figures.Picture, colour: str) -> list[np.ndarray]:
    """The points of every path stroked in a colour."""
    found = [path for path in ElementTree.fromstring(picture.svg).iter("path") if colour in path.get("style", "")]
    numbers = [re.findall(r"-?[\d.]+", path.get("d", "")) for path in found]
    return [np.array(each, dtype=float).reshape(-1, 2) for each in numbers]


def test_a_histogram_names_both_sides_and_its_axis(random: np.random.Generator) -> None:
    picture = figures.histogram(
        random.normal(2, 1, 500), random.normal(0, 1, 400), detector="max + <energy>", ood="svhn"
    )
    assert {"ID", "svhn", "density"} <= set(texts(picture))
    assert any(text.startswith("score") for text in texts(picture))
    assert 'aria-label="Scores of max + &lt;energy&gt;: ID against svhn"' in picture.svg


def test_equal_scores_have_a_histogram() -> None:
    assert figures.histogram(np.ones(5), np.ones(4), detector="a", ood="b").svg.startswith("<svg")


def test_scores_that_differ_by_rounding_have_a_histogram() -> None:
    scores = 1e6 + np.array([0.0, 1.2e-10, 2.4e-10])
    assert np.ptp(scores) > 0
    figures.histogram(scores, scores, detector="d", ood="o")


def test_a_roc_curve_runs_through_its_operating_points(random: np.random.Generator) -> None:
    inside, outside = {"a": random.normal(1, 1, 2000)}, {"a": random.normal(0, 1, 1500)}
    picture = figures.roc(inside, outside, specs=["a"], ood="noise")
    line = max(polylines(picture, figures.ID), key=len)
    assert len(line) > 50
    x, y = (line - line[0]).T / (line[-1] - line[0])[:, None]  # from (0, 0) to (1, 1)
    for share in (0.1, 0.3, 0.7):
        threshold = np.quantile(outside["a"], 1 - share)
        assert np.interp(share, x, y) == pytest.approx((inside["a"] >= threshold).mean(), abs=0.02)
    long = figures.roc({"b" * 90: inside["a"]}, {"b" * 90: outside["a"]}, specs=["b" * 90], ood="noise")
    assert max(map(len, texts(long))) == 40


def test_channels_are_sorted_by_their_id_value(random: np.random.Generator) -> None:
    inside, outside = random.gamma(2, 1, 60), random.gamma(1, 1, 60)
    picture = figures.units(inside, outside, statistic="mean", ood="svhn")
    id_line, ood_line = (max(polylines(picture, colour), key=len) for colour in (figures.ID, figures.OOD))
    assert (np.diff(id_line[:, 1]) >= 0).all()  # SVG counts downwards
    order = np.argsort(-inside)
    assert np.corrcoef(ood_line[:, 1], outside[order])[0, 1] == pytest.approx(-1, abs=1e-3)


def test_gaps_are_drawn_beside_that_of_the_mean(random: np.random.Generator) -> None:
    sides = [{key: random.gamma(2, scale, 40) for key in ("mean", "std", "max")} for scale in (1, 0.5)]
    found = gaps(*sides, gamma=2)
    picture = figures.gap_lines(found, feature="mu_sigma", label="μ + 2σ", ood="svhn")
    line = max(polylines(picture, figures.OOD), key=len)
    assert np.corrcoef(line[:, 1], found.mu[np.argsort(-found.mu_sigma)])[0, 1] == pytest.approx(-1, abs=1e-3)
    assert {"Δ of μ + 2σ", "Δ of μ"} <= set(texts(picture))


def test_tick_labels_keep_their_digits() -> None:
    picture = figures.units(np.linspace(2.9, 1.1, 30), np.linspace(1.2, 1.1, 30), statistic="mean", ood="svhn")
    ticks = [float(text) for text in texts(picture) if re.fullmatch(r"\d\.\d+", text)]
    assert len(ticks) > 3
    assert np.diff(ticks) == pytest.approx(np.full(len(ticks) - 1, ticks[1] - ticks[0]))


def test_dense_lines_become_pictures(random: np.random.Generator) -> None:
    picture = figures.units(random.gamma(2, 1, 4096), random.gamma(2, 1, 4096), statistic="mean", ood="svhn")
    assert "data:image/png" in picture.svg
    assert len(picture.svg) < 60_000


def test_embeddings_are_seeded_and_survive_dead_channels(random: np.random.Generator) -> None:
    pytest.importorskip("sklearn")
    inside, outside = random.normal(0, 1, (30, 8)), random.normal(4, 1, (20, 8))
    first, second = (figures.embedding(inside, outside, statistic="μ", ood="svhn") for _ in range(2))
    assert first == second
    assert "image/png" in first.svg
    assert figures.embedding(np.zeros((5, 3)), np.zeros((4, 3)), statistic="μ", ood="svhn").svg


def test_neighbours_in_features_stay_neighbours(random: np.random.Generator) -> None:
    pytest.importorskip("sklearn")
    places = figures._tsne(np.concatenate([random.normal(0, 1, (40, 8)), random.normal(9, 1, (40, 8))]))
    centres = places[:40].mean(axis=0), places[40:].mean(axis=0)
    nearer = np.linalg.norm(places - centres[0], axis=1) < np.linalg.norm(places - centres[1], axis=1)
    assert (nearer == (np.arange(80) < 40)).mean() > 0.95


def test_dollar_signs_are_no_formulae() -> None:
    picture = figures.histogram(np.arange(9.0), np.arange(9.0), detector="a", ood="cash $x$")
    assert "cash $x$" in texts(picture)


def test_text_takes_the_colour_of_the_page() -> None:
    svg = figures.histogram(np.arange(9.0), np.arange(9.0), detector="a", ood="b").svg
    assert "currentColor" in svg
    assert figures._INK not in svg
    assert "http" not in svg
    assert "font-family" not in svg


def test_drawing_is_imported_only_to_draw() -> None:
    code = "import davis.bench.report, sys; print({'matplotlib', 'jinja2', 'pyarrow', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "matplotlib" not in done.stdout
    assert "pyarrow" not in done.stdout
