"""The curves of a training as a picture."""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

matplotlib = pytest.importorskip("matplotlib")

from matplotlib.figure import Figure  # noqa: E402 (after the check that it is there)

from davis.training.figure import draw  # noqa: E402

LOG = Path(__file__).parents[2] / "benchmarks" / "trained" / "cifar10-resnet18" / "log.jsonl"


def history(epochs: int, **changes: Any) -> list[dict[str, Any]]:
    return [json.loads(line) | changes for line in LOG.read_text().splitlines()[:epochs]]


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The matplotlib figure of a history, after it was written."""
    kept: list[Figure] = []
    save = Figure.savefig

    def savefig(figure: Figure, *arguments: Any, **rest: Any) -> None:
        save(figure, *arguments, **rest)
        kept.append(figure)

    monkeypatch.setattr(Figure, "savefig", savefig)

    def call(told: list[dict[str, Any]], title: str = "cifar10-resnet18", name: str = "curves.svg") -> Figure:
        assert draw(told, title, tmp_path / name)
        return kept.pop()

    return call


def labels(axis: Any) -> list[str]:
    """What is written at the ticks inside the view."""
    low, high = sorted(axis.get_view_interval())
    both = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [tick.label1.get_text() for tick in both if low <= tick.get_loc() <= high and tick.label1.get_text()]


@pytest.mark.parametrize("epochs", [1, 2, 3, 12, 30, 100])
def test_whole_epochs_and_plain_losses(drawn: Any, epochs: int) -> None:
    left, right = drawn(history(epochs)).axes
    for axes in (left, right):
        written = labels(axes.xaxis)
        assert written
        assert all(re.fullmatch(r"\d+", text) for text in written)
        assert len(set(written)) == len(written)
    assert len(labels(left.yaxis)) >= 3
    assert all(re.fullmatch(r"\d+(\.\d+)?", text) for text in labels(left.yaxis))
    assert left.get_yscale() == ("log" if epochs >= 12 else "linear")


def test_a_single_epoch_is_seen(drawn: Any) -> None:
    for axes in drawn(history(1)).axes:
        assert labels(axes.xaxis) == ["1"]
        for line in axes.get_lines():
            assert line.get_marker() == "o"
            x, y = line.get_data()
            assert axes.get_xlim()[0] < x[0] < axes.get_xlim()[1]
            assert axes.get_ylim()[0] < y[0] < axes.get_ylim()[1]


def test_small_losses_are_plain_too(drawn: Any) -> None:
    told = [record | {"loss": 10 ** -(number / 2)} for number, record in enumerate(history(11))]
    left = drawn(told).axes[0]
    assert left.get_yscale() == "log"
    assert "0.00001" in labels(left.yaxis)
    assert not [text for text in labels(left.yaxis) if "e" in text or "$" in text]


@pytest.mark.parametrize("losses", [[0.0] * 3, [2.0, 0.5, 0.0], [1.0, 1.0, 1.0]])
def test_a_loss_of_nothing(drawn: Any, losses: list[float]) -> None:
    """Without a warning, which would be an error here."""
    told = [record | {"loss": loss} for record, loss in zip(history(3), losses, strict=True)]
    assert drawn(told).axes[0].get_yscale() == "linear"


@pytest.mark.parametrize(
    "title", ["pictures_of_mushrooms-" * 6 + "resnet18", "a b-" * 40, "图片" * 40 + "-resnet18", "$x_{-" * 10]
)
@pytest.mark.parametrize("name", ["curves.svg", "curves.png"])
def test_every_title_stays_in_the_picture(drawn: Any, title: str, name: str) -> None:
    figure = drawn(history(2), title, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about missing glyphs, when it is measured anew
        box = figure._suptitle.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    for axes in figure.axes:
        assert box.y0 >= axes.get_legend().get_window_extent().y1 - 1
        assert axes.bbox.height > 100


@pytest.mark.parametrize("title", ["图片-resnet18", "$x$-resnet18", "a\nb\x00-\x1b[2J", "\udcff-resnet18", "<&>\ufffe"])
def test_a_picture_that_can_be_read(tmp_path: Path, title: str) -> None:
    assert draw(history(2), title, tmp_path / "curves.svg")
    assert ElementTree.parse(tmp_path / "curves.svg").getroot().tag.endswith("svg")


def test_the_same_curves_are_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "other.svg"):
        assert draw(history(2), "cifar10-resnet18", tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not draw(history(1), "x", tmp_path / "curves.svg")
    assert not list(tmp_path.iterdir())
