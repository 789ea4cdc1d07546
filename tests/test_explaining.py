"""An explanation's figures are what an independent calculation on the map gives."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.neighbors import NearestNeighbors
from torch import nn

import davis
from davis.calibrate import calibrate
from davis.data import Preprocessing
from davis.explaining import Explanation
from davis.explaining.drawing import FADED, LEGEND, RINGS, heated
from davis.explaining.explanation import _answer, _caption, _p_text
from davis.explaining.files import is_explanation


def detector_of(spec: str, model: nn.Module | None = None) -> davis.Detector:
    detector = davis.Detector(model or models.map_net(), spec)
    return detector.fit([models.maps(60, 1)])


def map_of(seed: int = 5) -> torch.Tensor:
    return models.maps(1, seed, size=4)[0]


@pytest.mark.parametrize("spec", [spec for spec in models.EVERY_SPEC if "entropy" not in spec and "median" not in spec])
def test_score_and_plain_score(spec: str) -> None:
    detector = detector_of(spec)
    found = davis.explain(detector, map_of())
    assert found.score == pytest.approx(float(detector.score_images(map_of()[None])), rel=1e-6)
    flat = map_of().mean((1, 2), keepdim=True).expand(-1, 4, 4)[None]  # of it, mean and maximum are the same
    if spec.startswith("max"):
        assert found.plain == pytest.approx(float(detector.score_images(flat)), rel=1e-5)


def test_channels_add_up_to_what_the_pooling_moved() -> None:
    found = davis.explain(detector_of("max + energy"), map_of())
    assert found.moved.shape == (models.CHANNELS,)
    assert found.moved.sum() == pytest.approx(found.score - found.plain, rel=1e-3)
    order = [abs(channel.moved) for channel in found.channels]
    assert order == sorted(order, reverse=True)
    assert found.channels[0].moved == found.moved[found.channels[0].index]


def test_channels_of_a_linear_score() -> None:
    model = models.map_net()
    with torch.no_grad():
        model.head.bias[2] += 50  # one class leads on the whole path, so that the score is linear in the features
    picture = map_of()
    found = davis.explain(detector_of("max + maxlogit", model), picture)
    values = picture.double().numpy().reshape(models.CHANNELS, -1)
    expected = model.head.weight[2].detach().double().numpy() * (values.max(1) - values.mean(1))
    np.testing.assert_allclose(found.moved, expected, rtol=1e-5, atol=1e-7)


def test_the_mean_moves_nothing() -> None:
    found = davis.explain(detector_of("energy"), map_of())
    assert (found.score, np.abs(found.moved).max()) == (found.plain, 0)


@pytest.mark.parametrize("spec", ["mean + energy", "max + energy", "davis(gamma=0.5) + react + energy"])
def test_places_add_up_to_the_score_above_silence(spec: str) -> None:
    detector = detector_of(spec)
    found = davis.explain(detector, map_of())
    silence = float(detector.score_images(torch.zeros_like(map_of())[None]))
    assert found.places.sum() == pytest.approx(found.score - silence, rel=2e-3)


@pytest.mark.parametrize(("spec", "whole"), [("max + energy", True), ("max + knn(k=5)", False)])
def test_a_map_of_little_says_so(spec: str, whole: bool) -> None:
    """The length of the features is nothing to knn, so on the way out of silence its score does not move."""
    detector = detector_of(spec)
    found = davis.explain(detector, map_of())
    above = found.score - float(detector.score_images(torch.zeros_like(map_of())[None]))
    assert found.accounted == pytest.approx(max(0, 1 - abs(1 - found.places.sum() / above)), abs=1e-9)
    assert found.accounted == pytest.approx(float(whole), abs=1e-2)
    assert [text for text in found.warnings if "the heat map accounts for 0% of the score" in text] == (
        [] if whole else found.warnings[:1]
    )
    assert ("Beware: the heat map accounts for 0%" in _caption(found)) == (not whole)
    assert found.to_dict()["warnings"] == found.warnings


def test_another_pooling_has_another_scale() -> None:
    found = davis.explain(detector_of("max + energy"), map_of())
    assert f"({found.plain:.4g} with mean pooling, on another scale)" in _caption(found)
    assert "mean pooling" not in _caption(davis.explain(detector_of("mean + energy"), map_of()))


def orange(picture: np.ndarray) -> np.ndarray:
    """How far each pixel is from grey."""
    return np.ptp(picture.astype(float), axis=2)


@pytest.mark.parametrize(("accounted", "share"), [(1.0, 1.0), (0.96, 1.0), (0.9, 0.9), (0.4, 0.4), (0.0, 0.0)])
def test_colours_fade_with_what_is_accounted_for(accounted: float, share: float) -> None:
    grey, heat = np.full((8, 8, 3), 100, np.uint8), np.zeros((8, 8))
    heat[2, 3] = 5
    found = Explanation(
        spec="", score=1, plain=0, silent=0, label=0, probability=0, channels=[], neighbours=[],
        moved=np.zeros(3), places=np.array([[accounted]]), heat=heat, picture=grey,
    )  # fmt: skip
    full = orange(np.asarray(heated(grey, heat, [])))
    assert full.max() > 150
    np.testing.assert_allclose(orange(np.asarray(found.draw())), share * full, atol=1)


@pytest.mark.parametrize(("spec", "faded"), [("max + energy", False), ("max + knn(k=5)", True)])
def test_legend(spec: str, faded: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        "davis.explaining.explanation.sheet", lambda _, text: said.append(text) or Image.new("RGB", (9, 9))
    )
    davis.explain(detector_of(spec), map_of()).save(tmp_path)
    assert said == [f"{LEGEND} {RINGS}{f' {FADED}' * faded}"]
    assert "Each map has a colour scale of its own" in LEGEND


@pytest.mark.parametrize(
    ("value", "held_out", "text"),
    [
        (1 / 1501, 1500, "<= 0.0007"),
        (2 / 1501, 1500, "= 0.0013"),
        (1.0, 1500, "= 1.0000"),
        (1 / 100_001, 100_000, "<= 1e-05"),
        (1 / 1501, 3000, "= 0.0007"),
        (1e-9, None, "= 1e-09"),  # a fused detector's goes on below its scores
        (None, None, None),
    ],
)
def test_lowest_p_value_says_so(value: float | None, held_out: int | None, text: str | None) -> None:
    assert _p_text(value, held_out) == text


def test_p_value_knows_its_scores() -> None:
    """Of thresholds by class, those of the class alone."""
    detector = davis.Detector(models.small_net(), "max + energy")
    image = models.photos(1)[0]
    assert davis.explain(detector, image).held_out is None
    label = davis.explain(detector, image).label
    other = (label + 1) % models.CLASSES
    scores, classes = torch.arange(1000, 1090, dtype=torch.float64), torch.tensor([other] * 30 + [label] * 60)
    groups = [int(each == label) for each in range(models.CLASSES)]
    detector.calibration = calibrate(scores, classes=classes, groups=groups)
    found = davis.explain(detector, image)
    assert (found.held_out, found.p_value, found.p_text) == (60, 1 / 61, "<= 0.0164")
    detector.calibration = calibrate(scores)
    found = davis.explain(detector, image)
    assert (found.held_out, found.p_text) == (90, "<= 0.0110")
    assert "p-value <= 0.0110" in _caption(found)
    assert found.to_dict()["p_value"] == 1 / 91


@pytest.mark.parametrize(
    ("score", "silent", "places", "share"),
    [(3, 1, 2, 1), (3, 1, 0.5, 0.25), (3, 1, 3, 0.5), (3, 1, -2, 0), (3, 1, 8, 0), (1, 3, -2, 1), (1, 1, 0, 1),
     (1, 1, 2, 0), (1, float("nan"), 1, 0)],
)  # fmt: skip
def test_share_that_is_accounted_for(score: float, silent: float, places: float, share: float) -> None:
    found = Explanation(
        spec="", score=score, plain=score, silent=silent, label=0, probability=0, channels=[], neighbours=[],
        moved=np.zeros(3), places=np.array([[places]]), heat=np.zeros((2, 2)), picture=np.zeros((2, 2, 3), np.uint8),
    )  # fmt: skip
    assert (found.accounted, found.accounted_by_channels) == (share, 1)
    assert len(found.warnings) == (share < 0.95)


def test_places_of_a_linear_score() -> None:
    model, picture = models.map_net(), map_of()
    with torch.no_grad():
        model.head.bias[2] += 50  # one class leads on the whole path
    found = davis.explain(detector_of("max + maxlogit", model), picture)
    weight, values = model.head.weight[2].detach().double().numpy(), picture.double().numpy()
    expected = np.zeros((4, 4))
    for channel in range(models.CHANNELS):  # each channel speaks from its maximum only
        row, column = np.unravel_index(values[channel].argmax(), (4, 4))
        expected[row, column] += weight[channel] * values[channel, row, column]
    np.testing.assert_allclose(found.places, expected, rtol=1e-5, atol=1e-6)


def test_large_maps_are_taken_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = davis.explain(detector_of("max + energy"), map_of())
    monkeypatch.setattr("davis.explaining.attribution._VALUES", 1000)
    np.testing.assert_allclose(davis.explain(detector_of("max + energy"), map_of()).places, whole.places, atol=1e-9)


def test_maxima_and_heat_lie_in_the_image() -> None:
    model = models.small_net()  # 12 pixels become a map of 6
    image = torch.zeros(3, 12, 12)
    image[:, 2:4, 8:10] = 5
    found = davis.explain(davis.Detector(model, "max + energy"), image)
    assert found.places.shape == (6, 6)
    assert found.heat.shape == (12, 12)
    with torch.no_grad():
        activation_map = torch.relu(model.norm(model.conv(image[None])))[0]
    for channel in found.channels:
        row, column = divmod(int(activation_map[channel.index].argmax()), 6)
        assert (channel.x, channel.y) == (2 * column + 1, 2 * row + 1)
        assert channel.pooled == pytest.approx(float(activation_map[channel.index].max()), rel=1e-6)
        assert channel.mean == pytest.approx(float(activation_map[channel.index].mean()), rel=1e-5)
    # The hottest pixel lies over the position that adds most, and neither the mirror image nor the transpose would do.
    row, column = np.unravel_index(found.places.argmax(), (6, 6))
    assert len({(row, column), (column, row), (5 - row, column), (row, 5 - column)}) == 4
    y, x = np.unravel_index(found.heat.argmax(), (12, 12))
    assert (y // 2, x // 2) == (row, column)


def test_a_signed_pooling_peaks_downward_where_the_mean_is_negative() -> None:
    picture = models.maps(1, 5, size=4)[0] - models.maps(1, 6, size=4)[0]
    model = nn.Sequential(nn.BatchNorm2d(models.CHANNELS), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    model.append(nn.Linear(models.CHANNELS, 3))
    found = davis.explain(davis.Detector(model, "max(signed=true) + energy"), picture, channels=models.CHANNELS)
    seen = model[0](picture[None])[0].detach()
    assert {channel.mean < 0 for channel in found.channels} == {True, False}
    for channel in found.channels:
        values = seen[channel.index] * (-1 if channel.mean < 0 else 1)
        assert (channel.y, channel.x) == divmod(int(values.argmax()), 4)
        assert abs(channel.pooled) == pytest.approx(float(values.max()), rel=1e-6)
    for spec in ("max + energy", "median + energy"):  # of which a channel's peak is its maximum, whatever its mean
        for channel in davis.explain(davis.Detector(model, spec), picture, channels=models.CHANNELS).channels:
            assert (channel.y, channel.x) == divmod(int(seen[channel.index].argmax()), 4)


def test_rings_lie_over_the_maxima() -> None:
    """On a picture that is wider than high, no other place would have white in it."""
    picture = np.zeros((40, 80, 3), np.uint8)
    found = davis.explain(davis.Detector(models.small_net(), "max + energy"), models.photos(1, 3)[0])
    one = dataclasses.replace(found.channels[0], x=70, y=10)
    wide = dataclasses.replace(found, picture=picture, heat=np.zeros((40, 80)), places=np.zeros((4, 8)), channels=[one])
    drawn = np.asarray(wide.draw())
    y, x = (drawn.min(2) > 200).nonzero()
    factor = drawn.shape[1] / 80
    assert abs(x.mean() / factor - 75) < 2  # the middle of the position that holds pixel 70
    assert abs(y.min() / factor - 15) < 6  # above it only half of the ring


def test_mask_is_the_share_that_adds_most() -> None:
    found = davis.explain(davis.Detector(models.small_net(), "max + energy"), models.photos(1, 3)[0])
    mask = found.mask(0.2)
    assert mask.sum() == round(0.2 * 144)
    assert found.heat[mask].min() >= found.heat[~mask].max()
    with pytest.raises(ValueError, match="between 0 and 1, got 2"):
        found.mask(2)


@pytest.mark.parametrize("spec", ["max + knn(k=5)", "max + knn(k=5, normalize=false)", "max + combood(k=5)"])
def test_neighbours(spec: str) -> None:
    detector, picture = detector_of(spec), map_of()
    found = davis.explain(detector, picture, neighbours=3)
    score = detector.stages[-1]
    bank = (score.bank + score.centre).double().numpy()
    features = picture.amax((1, 2)).double().numpy()[None]
    if "false" not in spec:
        features /= np.linalg.norm(features)
    distances, rows = NearestNeighbors(n_neighbors=3).fit(bank).kneighbors(features)
    assert [neighbour.row for neighbour in found.neighbours] == rows[0].tolist()
    np.testing.assert_allclose([neighbour.distance for neighbour in found.neighbours], distances[0], rtol=1e-4)
    assert all(0 <= neighbour.label < models.CLASSES for neighbour in found.neighbours)


def test_no_bank_no_neighbours() -> None:
    assert davis.explain(detector_of("max + energy"), map_of()).neighbours == []


class TestPictures:
    @pytest.fixture
    def detector(self) -> davis.Detector:
        detector = davis.Detector(models.small_net(), "max + energy")
        detector.preprocessing = Preprocessing(size=12, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2)).to_dict()
        return detector

    @pytest.fixture
    def picture(self) -> Image.Image:
        return Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8))

    def test_files_and_pictures(self, detector: davis.Detector, picture: Image.Image, tmp_path: Path) -> None:
        picture.save(tmp_path / "a.png")
        found = davis.explain(detector, tmp_path / "a.png")
        assert found.score == davis.explain(detector, picture).score
        np.testing.assert_array_equal(found.picture, np.asarray(picture))  # the preprocessing undone

    def test_saved(self, detector: davis.Detector, picture: Image.Image, tmp_path: Path) -> None:
        found = davis.explain(detector, picture)
        image, arrays, text = found.save(tmp_path / "new", "cat")
        with Image.open(image) as drawn:
            left = np.asarray(drawn.convert("RGB"))[8 : 8 + 12 * 27, 8 : 8 + 12 * 27]  # each pixel a square of 27
        np.testing.assert_array_equal(left[13::27, 13::27], np.asarray(picture))
        with np.load(arrays) as stored:
            np.testing.assert_array_equal(stored["heat"], found.heat)
            assert sorted(stored) == ["heat", "mask", "moved", "picture", "places"]
        assert json.loads(text.read_text()) == {"made_by": "davis explain", **found.to_dict()}

    def test_too_few_names_are_refused_before_anything_is_written(
        self, detector: davis.Detector, picture: Image.Image, tmp_path: Path
    ) -> None:
        found = dataclasses.replace(davis.explain(detector, picture), label=3)
        with pytest.raises(ValueError, match="names class 3, and classes holds 3 names"):
            found.save(tmp_path / "new", classes=["ant", "bee", "cat"])
        assert not (tmp_path / "new").exists()
        assert found.save(tmp_path / "new", classes=["ant", "bee", "cat", "dog"])

    def test_a_picture_with_nothing_in_it(self, detector: davis.Detector) -> None:
        with pytest.raises(ValueError, match="the picture is 0 x 5 pixels; there is nothing in it"):
            davis.explain(detector, Image.new("RGB", (0, 5)))

    def test_its_files_are_known_again(self, detector: davis.Detector, picture: Image.Image, tmp_path: Path) -> None:
        files = davis.explain(detector, picture).save(tmp_path, "cat")
        assert all(is_explanation(file) for file in files)
        assert sorted(tmp_path.iterdir()) == sorted(files)  # nothing unfinished is left
        picture.save(tmp_path / "own.png")
        np.savez(tmp_path / "own.npz", heat=np.zeros(3))
        (tmp_path / "own.json").write_text("{}")
        (tmp_path / "broken.npz").write_text("no archive")
        assert not any(is_explanation(tmp_path / name) for name in ("own.png", "own.npz", "own.json", "broken.npz"))

    def test_verdict(self, detector: davis.Detector, picture: Image.Image) -> None:
        assert davis.explain(detector, picture).is_ood is None
        detector.calibrate([models.photos(99, 1)])
        found = davis.explain(detector, picture)
        assert found.threshold == detector.threshold
        assert found.is_ood == (found.score < detector.threshold)
        assert found.to_dict()["verdict"] == ("OOD" if found.is_ood else "ok")
        answer = _answer(found, ["ant", "bee", "cat", "dog", "eel"])
        assert answer.startswith(f"The network says: {['ant', 'bee', 'cat', 'dog', 'eel'][found.label]}, probability")
        assert f"the score is {'below' if found.is_ood else 'above'} the threshold {detector.threshold:.4g}" in answer

    @pytest.mark.parametrize(
        ("score", "is_ood", "said"),
        [
            (2.0, True, "Refused as OOD: the score is below the threshold 3"),
            (3.0, False, "Accepted: the score is at the threshold 3"),
            (3.5, False, "Accepted: the score is above the threshold 3"),
        ],
    )
    def test_side_of_the_threshold(
        self, detector: davis.Detector, picture: Image.Image, score: float, is_ood: bool, said: str
    ) -> None:
        found = davis.explain(detector, picture)
        judged = dataclasses.replace(found, score=score, is_ood=is_ood, threshold=3.0)
        assert _answer(judged, None).splitlines()[-1] == said

    def test_colours_say_the_sign(self) -> None:
        heat = np.array([[1.0, -1.0], [0.0, 0.5]])
        found = Explanation(
            spec="", score=0.5, plain=0, silent=0, label=0, probability=0, channels=[], neighbours=[],
            moved=heat, places=heat, heat=heat, picture=np.full((2, 2, 3), 128, dtype=np.uint8),
        )  # fmt: skip
        drawn = np.asarray(found.draw()).astype(int)
        drawn = drawn[:: len(drawn) // 2, :: len(drawn) // 2]  # each pixel is drawn as a square
        assert drawn[0, 0, 0] > drawn[0, 0, 2]  # orange
        assert drawn[0, 1, 2] > drawn[0, 1, 0]  # blue
        assert drawn[1, 0, 0] == drawn[1, 0, 2]  # grey


def test_nothing_stays_on_the_model() -> None:
    model = models.small_net().train()
    davis.explain(davis.Detector(model, "max + energy"), models.photos(1)[0])
    assert model.training
    assert all(not module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


class OneAxis(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(3, 8, 3), nn.Linear(8, 4)

    def forward(self, sounds: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(sounds.flatten(2))).mean(2))


@pytest.mark.parametrize(
    ("spec", "image", "error", "message"),
    [
        ("max + knn", models.photos(1)[0], davis.NotFittedError, "call fit before explain"),
        ("odin + max + msp", models.photos(1)[0], ValueError, "that takes images as they are"),
        ("max + energy", models.photos(2), ValueError, r"one image .* got \(2, 3, 12, 12\)"),
        ("max + energy", "a.png", ValueError, "set detector.preprocessing to a davis.data.Preprocessing, or give"),
    ],
)
def test_refuses(spec: str, image: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        davis.explain(davis.Detector(models.small_net(), spec), image)


@pytest.mark.parametrize("setting", ["channels", "neighbours"])
@pytest.mark.parametrize("value", [2.5, "3", -1, None])
def test_refuses_what_is_no_count(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{setting} must be a whole number, 0 or more; got {value!r}"):
        davis.explain(davis.Detector(models.small_net(), "max + energy"), models.photos(1)[0], **{setting: value})


def test_refuses_maps_without_a_picture() -> None:
    with pytest.raises(ValueError, match="maps of two spatial axes"):
        davis.explain(davis.Detector(OneAxis().eval(), "max + energy"), models.photos(1)[0])


class Tokens(nn.Module):
    """Averages a list of patches, as transformers' Swin does; or a map of the same numbers."""

    def __init__(self, *, listed: bool, size: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.head, self.listed = nn.Conv2d(3, 8, size, stride=size), nn.Linear(8, 4), listed
        self.mark = nn.Identity()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = self.patches(images).relu()
        tokens = self.mark(maps.flatten(2).transpose(1, 2) if self.listed else maps)
        return self.head(tokens.mean(1) if self.listed else tokens.mean((2, 3)))


def test_a_list_of_patches_is_the_grid_that_it_is() -> None:
    picture = torch.randn(3, 12, 18, generator=torch.Generator().manual_seed(1))  # 4 x 6 patches
    listed, plain = (
        davis.explain(davis.Detector(Tokens(listed=listed).eval(), "max + energy"), picture) for listed in (True, False)
    )
    assert listed.places.shape == (4, 6)
    np.testing.assert_allclose(listed.places, plain.places, atol=1e-6)
    assert [(one.index, one.x, one.y) for one in listed.channels] == [
        (one.index, one.x, one.y) for one in plain.channels
    ]


def test_a_list_that_holds_more_than_patches_is_no_grid() -> None:
    """16 patches and 9 other tokens make 25 = 5 x 5, but no 5 patches fill 12 pixels."""

    class Prefixed(Tokens):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            tokens = self.patches(images).relu().flatten(2).transpose(1, 2)
            tokens = self.mark(torch.cat([tokens[:, :9] * 2, tokens], 1) + 0.1 * tokens.mean(1, keepdim=True))
            return self.head(tokens.mean(1))

    with pytest.raises(ValueError, match="a list of tokens that fill no grid"):
        davis.explain(davis.Detector(Prefixed(listed=True).eval(), "max + energy"), torch.randn(3, 12, 12))


def test_only_detectors_are_explained() -> None:
    with pytest.raises(TypeError, match=r"explain takes a davis\.Detector; a MapNet was given"):
        davis.explain(models.map_net(), map_of())
