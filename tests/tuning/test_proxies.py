"""Proxies: made of in-distribution images alone, the same for the same seed, and pictures still."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from scipy import ndimage

from davis.data import Preprocessing
from davis.tuning import proxies
from davis.tuning.proxies import PROXIES, make, parse_proxies

PREPARED = Preprocessing(size=16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
PIXELS = torch.rand((6, 3, 16, 16), generator=torch.Generator().manual_seed(0))


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (PREPARED.mean, PREPARED.std))
    return (pixels - mean) / std


def pixels_of(images: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (PREPARED.mean, PREPARED.std))
    return images * std + mean


def made(text: str, pixels: torch.Tensor = PIXELS, seed: int = 0) -> torch.Tensor:
    """What a proxy makes, in pixels."""
    (images,) = make(normalised(pixels), parse_proxies(text).values(), PREPARED, [torch.Generator().manual_seed(seed)])
    return pixels_of(images)


@pytest.mark.parametrize("name", PROXIES)
class TestEvery:
    def test_the_seed_decides(self, name: str) -> None:
        assert torch.equal(made(name), made(name))
        if name != "blur":  # which draws nothing
            assert not torch.equal(made(name), made(name, seed=1))

    def test_pictures_stay_pictures_and_change(self, name: str) -> None:
        found = made(name)
        assert found.shape == PIXELS.shape
        assert float(found.min()) >= -1e-6
        assert float(found.max()) <= 1 + 1e-6
        assert (found - PIXELS).abs().flatten(1).amax(1).min() > 1e-2

    def test_the_input_is_left_alone(self, name: str) -> None:
        images = normalised(PIXELS)
        before = images.clone()
        make(images, parse_proxies(name).values(), PREPARED, [torch.Generator().manual_seed(0)])
        assert torch.equal(images, before)


class TestFormulas:
    def test_noise(self) -> None:
        grey = torch.full((40, 3, 16, 16), 0.5)
        found = (made("noise(std=0.1)", grey) - 0.5).double()
        assert found.mean().item() == pytest.approx(0, abs=2e-3)
        assert found.std().item() == pytest.approx(0.1, rel=0.02)
        free = (made("noise(clip=false)", grey) - 0.5).double()
        assert free.std().item() == pytest.approx(0.2, rel=0.02)
        assert free.abs().max() > 0.5
        assert torch.allclose(made("noise", grey), made("noise(clip=false)", grey).clamp(0, 1), atol=1e-6)

    def test_patches_are_the_same_tiles_elsewhere(self) -> None:
        found = made("patches")

        def tiles(picture: torch.Tensor) -> list[tuple[float, ...]]:
            cut = [picture[:, r : r + 4, c : c + 4] for r in range(0, 16, 4) for c in range(0, 16, 4)]
            return sorted(tuple(np.round(tile.numpy().ravel().astype(float), 4)) for tile in cut)

        for before, after in zip(PIXELS, found, strict=True):
            assert np.allclose(tiles(before), tiles(after), atol=2e-4)
            assert not torch.allclose(before, after, atol=1e-3)

    def test_a_rest_beside_the_tiles_stays(self) -> None:
        found = made("patches(grid=3)")
        assert torch.allclose(found[:, :, 15:], PIXELS[:, :, 15:], atol=1e-6)
        assert torch.allclose(found[:, :, :, 15:], PIXELS[:, :, :, 15:], atol=1e-6)

    def test_mix_averages_two_of_the_batch(self) -> None:
        found = made("mix")
        pairs = [(PIXELS[i] + PIXELS[j]) / 2 for i in range(6) for j in range(6) if i != j]
        for picture in found:
            assert min(float((picture - pair).abs().max()) for pair in pairs) < 1e-5
        assert made("mix", PIXELS[:1]).shape == (0, 3, 16, 16)

    def test_blur(self) -> None:
        found = made("blur(share=0.1)")
        wanted = ndimage.gaussian_filter(PIXELS.double().numpy(), (0, 0, 1.6, 1.6), mode="mirror", radius=(0, 0, 5, 5))
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5)

    def test_colour_permutes_and_inverts_channels(self) -> None:
        found = made("colour", PIXELS.repeat(5, 1, 1, 1))
        inverted = 0
        for before, after in zip(PIXELS.repeat(5, 1, 1, 1), found, strict=True):
            channels = [before[i] for i in range(3)]
            straight = [
                next((i for i, c in enumerate(channels) if torch.allclose(c, a, atol=1e-5)), None) for a in after
            ]
            turned = [
                next((i for i, c in enumerate(channels) if torch.allclose(1 - c, a, atol=1e-5)), None) for a in after
            ]
            order = straight if None not in straight else turned
            inverted += order is turned
            assert sorted(order) == [0, 1, 2]  # type: ignore[type-var]
            assert order != [0, 1, 2]
        assert 0 < inverted < len(found)

    def test_grey_pictures_are_inverted(self) -> None:
        grey = Preprocessing(size=16, mean=(0.5,), std=(0.5,))
        images = (PIXELS[:, :1] - 0.5) / 0.5
        (found,) = make(images, [proxies.Colour()], grey, [torch.Generator()])
        assert torch.allclose(found, -images, atol=1e-6)


class TestText:
    def test_canonical_text_is_the_key(self) -> None:
        found = parse_proxies(["noise(std=0.2), noise( std = 0.1, clip=false )", "patches(grid=4)"])
        assert list(found) == ["noise", "noise(std=0.1, clip=false)", "patches"]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("nose", "known: noise, patches, mix, blur, colour"),
            ("noise(sd=1)", "unknown setting 'sd' of noise; known: std, clip"),
            ("noise(std=0)", "std must be a number above 0"),
            ("noise(std=much)", "std must be a number above 0"),
            ("patches(grid=2.5)", "grid must be a whole number above 1"),
            ("noise(clip=1)", "clip must be true or false"),
            ("", "unknown proxy ''"),
        ],
    )
    def test_bad_texts(self, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            parse_proxies(text)


class TestUnits:
    def test_another_normalisation_is_noticed(self) -> None:
        with pytest.raises(ValueError, match=r"run from .* instead of 0 to 1.*preprocessing="):
            make(normalised(PIXELS) * 4, [proxies.Noise()], PREPARED, [torch.Generator()])

    def test_channels_must_fit(self) -> None:
        with pytest.raises(ValueError, match=r"\(batch, 3, height, width\).*got \(6, 1, 16, 16\)"):
            make(PIXELS[:, :1], [proxies.Noise()], PREPARED, [torch.Generator()])
