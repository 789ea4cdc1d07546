"""Pictures on disk become the tensors that a classifier was trained on."""

from __future__ import annotations

import os
import socket
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from torch import Tensor

from davis.data import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    ImageError,
    Images,
    Preprocessing,
    class_folders,
    class_names,
    decode,
    image_files,
    shuffled,
    split,
)

PLAIN = Preprocessing(size=4, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def noise(seed: int, size: tuple[int, int] = (8, 8)) -> Image.Image:
    values = numpy.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=numpy.uint8)
    return Image.fromarray(values)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Ten small pictures."""
    for number in range(10):
        noise(number).save(tmp_path / f"{number}.png")
    return image_files([tmp_path])


class TestPreprocessing:
    @pytest.mark.parametrize("size", [(40, 31), (31, 40), (33, 33), (200, 36), (20, 25)])
    @pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
    def test_equals_torchvision(self, size: tuple[int, int], interpolation: str) -> None:
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms._presets import ImageClassification

        picture = noise(0, size)
        theirs = ImageClassification(crop_size=28, resize_size=32, interpolation=InterpolationMode(interpolation))
        ours = Preprocessing(size=28, resize=32, interpolation=interpolation)
        torch.testing.assert_close(ours(picture), theirs(picture), rtol=0, atol=1e-6)

    def test_stretch_takes_the_whole_picture(self) -> None:
        picture = Image.new("RGB", (30, 10))
        picture.paste("white", (0, 0, 10, 10))
        stretched = Preprocessing(size=3, mean=(0,), std=(1,), interpolation="box", aspect="stretch")(picture)
        assert stretched[0, 1].tolist() == [1, 0, 0]
        kept = Preprocessing(size=3, mean=(0,), std=(1,), interpolation="box")(picture)
        assert kept.max() == 0  # only the middle

    def test_dictionary_round_trip(self) -> None:
        there = Preprocessing(size=32, resize=40, mean=(0.5,), std=(0.25,), interpolation="bicubic", aspect="stretch")
        assert Preprocessing.from_dict(there.to_dict()) == there
        assert there.shape == (1, 32, 32)

    def test_defaults(self) -> None:
        values = Preprocessing(size=32).to_dict()
        assert values["resize"] == 32
        assert values["mean"] == list(IMAGENET_MEAN)
        assert values["std"] == list(IMAGENET_STD)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"size": 0}, "size must be a whole number"),
            ({"size": 2.5}, "size must be a whole number"),
            ({"size": 10**7}, "size must be at most 8192 pixels, got 10000000"),
            ({"resize": 8193}, "resize must be at most 8192 pixels, got 8193"),
            ({"size": True}, "size must be a whole number"),
            ({"size": 40, "resize": 30}, "resize=30 leaves too little"),
            ({"mean": [0.5, 0.5]}, "mean must be one number"),
            ({"mean": "grey"}, "mean must be one number"),
            ({"mean": [float("nan")] * 3}, "mean must be one number"),
            ({"mean": [0.5]}, "1 means and 3 stds"),
            ({"std": [1, 0, 1]}, "std must be greater than 0"),
            ({"interpolation": "sharp"}, "unknown interpolation 'sharp'; known: nearest"),
            ({"aspect": "wide"}, "unknown aspect 'wide'; known: keep, stretch"),
            ({"crop": 1}, "has unknown 'crop'"),
        ],
    )
    def test_refuses(self, change: dict[str, object], message: str) -> None:
        values = Preprocessing(size=24, resize=32).to_dict() | change
        with pytest.raises(ValueError, match=message):
            Preprocessing.from_dict(values)

    def test_refuses_what_is_incomplete(self) -> None:
        with pytest.raises(ValueError, match="lacks 'mean'"):
            Preprocessing.from_dict({key: value for key, value in Preprocessing().to_dict().items() if key != "mean"})


class TestDecode:
    @pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16"])
    def test_every_mode_gives_the_same_grey(self, tmp_path: Path, mode: str) -> None:
        value = 255 if mode in ("1",) else 51
        picture = Image.new("L", (6, 5), value)
        if mode == "I;16":
            picture = Image.fromarray(numpy.full((5, 6), value * 257, numpy.uint16))
        else:
            picture = picture.convert(mode)
        file = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
        picture.save(file)
        torch.testing.assert_close(decode(file, PLAIN), torch.full((3, 4, 4), value / 255), rtol=0, atol=1e-6)
        grey = Preprocessing(size=4, mean=(0,), std=(1,))
        torch.testing.assert_close(decode(file, grey), torch.full((1, 4, 4), value / 255), rtol=0, atol=1e-6)

    def test_sixteen_bits_keep_their_scale(self, tmp_path: Path) -> None:
        values = numpy.linspace(0, 65535, 16).reshape(4, 4).astype(numpy.uint16)
        Image.fromarray(values).save(tmp_path / "image.png")
        torch.testing.assert_close(
            decode(tmp_path / "image.png", PLAIN)[0].double(), torch.tensor(values / 65535), rtol=0, atol=0.003
        )

    def test_transparent_is_white(self, tmp_path: Path) -> None:
        picture = Image.new("RGBA", (4, 4), (0, 0, 0, 255))
        picture.paste((0, 0, 0, 0), (0, 0, 2, 4))
        picture.save(tmp_path / "image.png")
        assert decode(tmp_path / "image.png", PLAIN)[0, 0].tolist() == [1, 1, 0, 0]

    def test_palette_with_a_transparent_colour(self, tmp_path: Path) -> None:
        picture = Image.new("P", (4, 4), 0)
        picture.putpalette([0, 0, 0, 255, 0, 0])
        picture.paste(1, (0, 0, 2, 4))
        picture.save(tmp_path / "image.gif", transparency=0)
        pixels = decode(tmp_path / "image.gif", PLAIN)
        assert pixels[:, 0, 0].tolist() == [1, 0, 0]
        assert pixels[:, 0, 3].tolist() == [1, 1, 1]

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_every_orientation_of_a_camera(self, tmp_path: Path, orientation: int) -> None:
        """A photograph whose left half is black when it is upright, stored as a camera held that way stores it."""
        upright = numpy.full((16, 16), 255, numpy.uint8)
        upright[:, :8] = 0
        upright[:4] = 128
        undone = {  # how pixels were moved before they were stored: the inverse of what a viewer does
            1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.T,
            6: numpy.rot90(upright, 1), 7: upright[::-1, ::-1].T, 8: numpy.rot90(upright, -1),
        }  # fmt: skip
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(undone[orientation].copy()).save(tmp_path / "a.jpg", exif=exif, quality=100)
        found = decode(tmp_path / "a.jpg", Preprocessing(size=16, mean=(0.0,), std=(1.0,)))
        numpy.testing.assert_allclose(found[0].numpy() * 255, upright, atol=6)

    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("mode", ["L", "I;16", "P", "RGBA", "CMYK", "RGB"])
    def test_plain_tiff_files_are_turned_as_others_are(self, tmp_path: Path, mode: str, orientation: int) -> None:
        """Pillow maps plain TIFF files into memory where it is given a path, and scrambles those that are turned."""
        if mode == "I;16":
            values = numpy.random.default_rng(0).integers(0, 65536, (9, 14), dtype=numpy.uint16)
            picture = Image.fromarray(values)
        else:
            picture = noise(0, (14, 9)).convert(mode)
        exif = Image.Exif()
        exif[0x0112] = orientation
        picture.save(tmp_path / "a.tif", exif=exif)
        if mode == "CMYK":  # which PNG does not know
            picture = picture.convert("RGB")
        picture.save(tmp_path / "a.png", exif=exif)
        for preprocessing in (PLAIN, Preprocessing(size=9, mean=(0,), std=(1,), aspect="stretch")):
            found, expected = (decode(tmp_path / name, preprocessing) for name in ("a.tif", "a.png"))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.eps"])
    def test_postscript_starts_nothing(self, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        from PIL import EpsImagePlugin

        monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
        Image.new("RGB", (8, 8)).save(tmp_path / "real.eps")
        (tmp_path / "real.eps").rename(tmp_path / name)
        with pytest.raises(ImageError, match="not an image, or of an unknown kind"):
            decode(tmp_path / name, PLAIN)

    @pytest.mark.parametrize(
        ("name", "options", "first", "last"),
        [
            ("a.png", {}, 0, 255),
            ("a.pgm", {}, 0, 255),
            ("a.tif", {}, 0, 255),
            ("a.tif", {"tiffinfo": {262: 0}}, 255, 0),  # zero is white there
            ("a.png", {"transparency": 0}, 255, 255),  # black is transparent, and shown white
        ],
    )
    def test_sixteen_bit_grey_of_every_kind(
        self, tmp_path: Path, name: str, options: dict[str, Any], first: int, last: int
    ) -> None:
        values = numpy.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(numpy.uint16)
        Image.fromarray(values).save(tmp_path / name, **options)
        plain = Preprocessing(size=64, resize=64, mean=(0.0,), std=(1.0,))
        pixels = (decode(tmp_path / name, plain)[0] * 255).round()
        assert (int(pixels[0, 0]), int(pixels[-1, -1])) == (first, last)
        assert float(pixels[32, 0]) == pytest.approx(127.5, abs=1)

    def test_sixteen_bits_are_turned_too(self, tmp_path: Path) -> None:
        values = numpy.array([[0, 65535], [257 * 10, 257 * 20]], numpy.uint16)
        exif = Image.Exif()
        exif[0x0112] = 3
        Image.fromarray(values).save(tmp_path / "a.png", exif=exif)
        found = decode(tmp_path / "a.png", Preprocessing(size=2, mean=(0.0,), std=(1.0,)))
        numpy.testing.assert_allclose(found[0].numpy() * 255, [[20, 10], [255, 0]], atol=1e-4)

    @pytest.mark.parametrize("suffix", ["jpg", "tif"])
    def test_inks_become_colours(self, tmp_path: Path, suffix: str) -> None:
        Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / f"a.{suffix}")  # magenta and yellow make red
        found = decode(tmp_path / f"a.{suffix}", Preprocessing(size=8, mean=(0.0,) * 3, std=(1.0,) * 3))
        numpy.testing.assert_allclose(found.mean((1, 2)).numpy(), [1, 0, 0], atol=0.02)

    def test_orientation_is_followed(self, tmp_path: Path) -> None:
        picture = Image.new("L", (4, 4))
        picture.paste(255, (0, 0, 4, 2))  # the upper half
        exif = Image.Exif()
        exif[0x0112] = 6  # turn a quarter clockwise
        picture.save(tmp_path / "turned.png", exif=exif)
        assert decode(tmp_path / "turned.png", PLAIN)[0, 0].tolist() == [0, 0, 1, 1]

    @pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff\xe0junk"])
    def test_names_the_file_that_is_no_image(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x.png").write_bytes(content)
        with pytest.raises(ImageError, match=r"cannot read .*x\.png: ") as caught:
            decode(tmp_path / "x.png", PLAIN)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp", "gif", "bmp"])
    def test_refuses_what_is_cut_short(self, tmp_path: Path, suffix: str) -> None:
        file = tmp_path / f"x.{suffix}"
        noise(0, (64, 64)).save(file)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        with pytest.raises(ImageError, match=rf"cannot read .*x\.{suffix}"):
            decode(file, PLAIN)

    def test_refuses_a_wrong_checksum(self, tmp_path: Path) -> None:
        header = struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0)
        content = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + header
        content += struct.pack(">I", zlib.crc32(b"IHDR" + header) ^ 1)
        (tmp_path / "x.png").write_bytes(content)
        with pytest.raises(ImageError):
            decode(tmp_path / "x.png", PLAIN)

    def test_refuses_floats_of_unknown_range(self, tmp_path: Path) -> None:
        Image.fromarray(numpy.ones((4, 4), numpy.float32)).save(tmp_path / "x.tif")
        with pytest.raises(ImageError, match="no known range"):
            decode(tmp_path / "x.tif", PLAIN)

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(ImageError, match=r"cannot read .*gone\.png: \[Errno 2\] No such file"):
            decode(tmp_path / "gone.png", PLAIN)


class TestImages:
    @pytest.mark.parametrize("workers", [0, 1, 3])
    @pytest.mark.parametrize("batch", [1, 3, 10, 64])
    def test_batches_are_the_files_in_order(self, files: list[Path], batch: int, workers: int) -> None:
        images = Images(files, PLAIN, batch=batch, workers=workers)
        batches = [part for part in images if isinstance(part, Tensor)]
        assert len(batches) == len(images)
        assert [len(part) for part in batches[:-1]] == [batch] * (len(batches) - 1)
        torch.testing.assert_close(torch.cat(batches), torch.stack([decode(file, PLAIN) for file in files]))

    def test_can_be_read_again(self, files: list[Path]) -> None:
        images = Images(files, PLAIN, batch=4)
        assert iter(images) is not images
        first, second = list(images), list(images)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))  # type: ignore[arg-type]

    def test_labels_go_with_their_images(self, files: list[Path]) -> None:
        batches = list(Images(files, PLAIN, batch=4, labels=range(10)))
        assert [labels.tolist() for _, labels in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_unreadable_images_are_told_and_left_out(self, files: list[Path], workers: int) -> None:
        for broken in (1, 4, 5):
            files[broken].write_bytes(b"no image")
        told: list[Path] = []
        images = Images(
            files, PLAIN, batch=2, labels=range(10), workers=workers, on_error=lambda file, _: told.append(file)
        )
        assert [labels.tolist() for _, labels in images] == [[0], [2, 3], [6, 7], [8, 9]]
        assert told == [files[1], files[4], files[5]]
        assert [positions for positions, _ in images.numbered()] == [[0], [2, 3], [6, 7], [8, 9]]

    @pytest.mark.parametrize("workers", [0, 2])
    def test_unreadable_images_are_raised_without_a_callback(self, files: list[Path], workers: int) -> None:
        files[7].write_bytes(b"no image")
        with pytest.raises(ImageError, match=r"7\.png"):
            list(Images(files, PLAIN, batch=2, workers=workers))

    def test_stops_when_its_reader_stops(self, files: list[Path]) -> None:
        reading = iter(Images(files, PLAIN, batch=1, workers=2))
        next(reading)
        reading.close()  # type: ignore[attr-defined]

    def test_refuses(self, files: list[Path]) -> None:
        with pytest.raises(ValueError, match="batch must be at least 1"):
            Images(files, PLAIN, batch=0)
        with pytest.raises(ValueError, match="workers at least 0"):
            Images(files, PLAIN, workers=-1)
        with pytest.raises(ValueError, match="10 files came with 2 labels"):
            Images(files, PLAIN, labels=[1, 2])


class TestFiles:
    def test_folders_are_searched_and_files_taken(self, tmp_path: Path) -> None:
        names = ["b/2.PNG", "a/deep/1.jpeg", "a/0.webp", "a/note.txt", ".hidden/3.png", "a/._0.png", "own.data"]
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).touch()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = image_files([tmp_path / "own.data", tmp_path, tmp_path / "a"])
        assert [str(warning.message) for warning in told] == [
            f"{tmp_path}: 2 files of other kinds left out (.data, .txt)",
            f"{tmp_path / 'a'}: 1 files of other kinds left out (.txt)",
        ]
        assert [str(file.relative_to(tmp_path)) for file in found] == [
            "own.data",
            "a/0.webp",
            "a/deep/1.jpeg",
            "b/2.PNG",
        ]

    def test_links_are_followed_once(self, tmp_path: Path) -> None:
        (tmp_path / "data" / "real").mkdir(parents=True)
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "x.png").touch()
        (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "data" / "real" / "loop").symlink_to(tmp_path / "data")
        assert image_files([tmp_path / "data"]) == [tmp_path / "data" / "link" / "x.png"]

    def test_refuses(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match=r"no such file or folder: .*gone"):
            image_files([tmp_path / "gone"])
        with pytest.raises(ValueError, match=r"no images in .*; looked for \.bmp, "):
            image_files([tmp_path])

    @pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
    def test_pipes_and_sockets_are_not_waited_for(self, tmp_path: Path) -> None:
        noise(0).save(tmp_path / "0.png")
        os.mkfifo(tmp_path / "1.png")
        (tmp_path / "2.png").symlink_to(tmp_path / "1.png")
        (tmp_path / "3.png").symlink_to("gone")  # whoever reads it will say so
        with socket.socket(socket.AF_UNIX) as listening, pytest.MonkeyPatch.context() as patch:
            patch.chdir(tmp_path)  # the path of a socket must be short
            listening.bind("4.png")
        with pytest.warns(UserWarning, match=r"3 files of other kinds left out \(pipe or device\)"):
            assert [file.name for file in image_files([tmp_path])] == ["0.png", "3.png"]
        with pytest.raises(ValueError, match="neither a file nor a folder"):
            image_files([tmp_path / "1.png"])

    def test_folders_that_cannot_be_read_are_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("open", "closed"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "0.png").touch()
        scan = os.scandir

        def refused(path: str) -> Iterator[os.DirEntry[str]]:  # permissions do not stop root
            if Path(path).name == "closed":
                raise PermissionError(13, "Permission denied", str(path))
            return scan(path)

        monkeypatch.setattr(os, "scandir", refused)
        says = r"cannot read the folder .*closed \(Permission denied\), it is left out"
        with pytest.warns(UserWarning, match=says):
            assert image_files([tmp_path]) == [tmp_path / "open" / "0.png"]
        with pytest.raises(ValueError, match=rf"no images in .*; looked for .*; {says}"):
            image_files([tmp_path / "closed"])

    def test_where_nothing_is_left_the_error_says_what_is_there(self, tmp_path: Path) -> None:
        for name in ("a.heic", "b.HEIC", "c.b", "d.d", "e.e", "f.f", "README", ".hidden"):
            (tmp_path / name).touch()
        with pytest.raises(ValueError, match=r"; 7 files of other kinds left out \(\.heic, .*, \.\.\.\)$"):
            image_files([tmp_path])

    def test_class_names(self, tmp_path: Path) -> None:
        for name in ("dog", "ant", ".git"):
            (tmp_path / name).mkdir()
        (tmp_path / "bee").touch()
        assert class_names(tmp_path) == ("ant", "dog")

    def test_class_folders(self, tmp_path: Path) -> None:
        files = [tmp_path / "cat" / "deep" / "1.png", tmp_path / "dog" / "2.png"]
        assert class_folders(tmp_path, files) == {files[0]: "cat", files[1]: "dog"}
        assert class_folders(tmp_path, [*files, tmp_path / "3.png"]) == {}

    def test_split(self) -> None:
        files = list(range(100))
        rest, held = split(files, share=0.2, seed=1)
        assert sorted(rest + held) == files
        assert len(held) == 20
        assert (rest, held) == split(files, share=0.2, seed=1)
        assert held != split(files, share=0.2, seed=2)[1]
        assert sorted(shuffled(files, seed=3)) == files != shuffled(files, seed=3)

    @pytest.mark.parametrize(("count", "share"), [(10, 0), (10, 1), (10, -1), (10, float("nan")), (2, 0.1), (0, 0.5)])
    def test_split_refuses(self, count: int, share: float) -> None:
        with pytest.raises(ValueError):
            split(range(count), share=share, seed=0)
