"""Image sets: whatever the pictures lie in, they come in order, with labels, resumable, and never silently broken."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import pickle
import re
import struct
import tarfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from davis.data import ImageError, Preprocessing
from davis.sets import AnySet, ArraySet, FolderSet, ObjectSet, TarSet, load_npz, open_set
from davis.sets.classes import agree_on_classes, check_labels

PLAIN = Preprocessing(size=4, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
CIFAR = Preprocessing(size=32, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def pixels(count: int, *shape: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), dtype=np.uint8)


def png(picture: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "PNG")
    return stream.getvalue()


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def everything(images: AnySet, start: int = 0, size: int = 3) -> tuple[torch.Tensor, list[int], int]:
    """All images, labels and the number of pictures read."""
    batches = list(images.batches(start, size))
    labels = [int(label) for _, some, _ in batches if some is not None for label in some]
    return torch.cat([batch for batch, _, _ in batches]), labels, sum(count for _, _, count in batches)


def names_of_pictures() -> list[str]:
    return [f"{kind}/{number}.png" for kind in ("ant", "bee") for number in range(4)]


def write_folder(path: Path) -> FolderSet:
    for name, picture in zip(names_of_pictures(), pixels(8, 4, 4, 3), strict=True):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(png(picture))
    return FolderSet(path, PLAIN)


def write_tar(path: Path, mode: str = "w:gz", top: str = "./pictures/") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        add(archive, f"{top}ant/._0.png", b"what macOS leaves behind")
        for name, picture in zip(names_of_pictures(), pixels(8, 4, 4, 3), strict=True):
            add(archive, top + name, png(picture))
        add(archive, f"{top}readme.txt", b"hello")
    return path


class Items:
    """A dataset as torchvision's are."""

    def __init__(self, make: Callable[[int], Any], count: int = 8) -> None:
        self.make = make
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, position: int) -> Any:
        return self.make(position)


def items() -> Items:
    pictures = pixels(8, 4, 4, 3)
    return Items(lambda position: (Image.fromarray(pictures[position]), position // 4))


@pytest.fixture(params=["array", "folder", "threads", "tar.gz", "tar", "object"])
def images(request: pytest.FixtureRequest, tmp_path: Path) -> AnySet:
    """The same eight pictures in every kind of source."""
    if request.param == "array":
        return ArraySet("array", pixels(8, 4, 4, 3), np.repeat([0, 1], 4), PLAIN)
    if request.param in ("folder", "threads"):
        write_folder(tmp_path / "set")
        return open_set(tmp_path / "set", PLAIN, workers=2 if request.param == "threads" else 0)
    if request.param == "object":
        return open_set(items(), PLAIN)
    mode = "w:gz" if request.param.endswith("gz") else "w"
    return open_set(write_tar(tmp_path / f"set.{request.param}", mode), PLAIN)


class TestEveryKind:
    def test_pictures_labels_and_count(self, images: AnySet) -> None:
        assert len(images) == 8
        tensors, labels, count = everything(images)
        torch.testing.assert_close(tensors, torch.from_numpy(pixels(8, 4, 4, 3)).permute(0, 3, 1, 2) / 255)
        assert labels == [0, 0, 0, 0, 1, 1, 1, 1]
        assert count == 8

    @pytest.mark.parametrize("start", range(9))
    def test_resumes_anywhere(self, images: AnySet, start: int) -> None:
        whole, labels, _ = everything(images)
        if start == 8:
            assert list(images.batches(8, 3)) == []
            return
        rest, rest_labels, count = everything(images, start)
        assert torch.equal(rest, whole[start:])
        assert rest_labels == labels[start:]
        assert count == 8 - start
        assert next(taken for _, _, taken in images.batches(start, 3)) == min(3, 8 - start)

    def test_fingerprint_repeats(self, images: AnySet) -> None:
        assert images.fingerprint() == images.fingerprint()
        other = Preprocessing(size=4, mean=(0.1, 0.0, 0.0), std=(1.0, 1.0, 1.0))
        before, images.preprocessing = images.fingerprint(), other
        assert images.fingerprint() != before


class TestArrays:
    def test_fingerprint_is_what_caches_were_keyed_by(self) -> None:
        images, labels = pixels(3, 4, 4, 3), np.arange(3)
        digest = hashlib.sha256(json.dumps(PLAIN.to_dict(), sort_keys=True).encode())
        digest.update(b"(3, 4, 4, 3)" + images.tobytes() + labels.astype(np.int64).tobytes())
        assert ArraySet("set", images, labels, PLAIN).fingerprint() == digest.hexdigest()
        assert ArraySet("set", images, labels.astype(np.uint8), PLAIN).fingerprint() == digest.hexdigest()

    def test_grey_pictures_and_grey_preprocessing(self) -> None:
        colour = ArraySet("grey", pixels(2, 4, 4), None, PLAIN)
        batch, labels, _ = next(colour.batches(0, 2))
        assert labels is None
        assert batch.shape == (2, 3, 4, 4)
        grey = Preprocessing(size=4, mean=(0.0,), std=(1.0,))
        assert next(ArraySet("colour", pixels(2, 4, 4, 3), None, grey).batches(0, 2))[0].shape == (2, 1, 4, 4)

    @pytest.mark.parametrize("shape", [(2, 4), (2, 4, 4, 1), (2, 4, 4, 4), (0, 4, 4, 3)])
    def test_refuses_other_shapes(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="images must be"):
            ArraySet("set", np.zeros(shape, np.uint8), None, PLAIN)

    @pytest.mark.parametrize("labels", [np.zeros(3, np.int64), np.zeros(2)])
    def test_refuses_other_labels(self, labels: NDArray[Any]) -> None:
        with pytest.raises(ValueError, match="one whole number for each"):
            ArraySet("set", pixels(2, 4, 4, 3), labels, PLAIN)

    def test_refuses_labels_below_the_first_class(self, tmp_path: Path) -> None:
        """Inside, -1 stands for a picture without a label."""
        np.savez(tmp_path / "a.npz", images=pixels(2, 4, 4, 3), labels=np.array([0, -1]))
        with pytest.raises(ValueError, match="a: the label -1 is no class; number them from 0"):
            open_set(tmp_path / "a.npz", PLAIN)

    def test_npz(self, tmp_path: Path) -> None:
        file = tmp_path / "digits.npz"
        np.savez(file, images=pixels(4, 4, 4), labels=np.arange(4))
        images = open_set(file, PLAIN)
        assert images.name == "digits"
        assert everything(images)[1] == [0, 1, 2, 3]
        assert load_npz(file, PLAIN).fingerprint() == images.fingerprint()

    def test_bad_npz(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x_train=pixels(1, 4, 4))
        with pytest.raises(ValueError, match="no array 'images'; it holds x_train"):
            open_set(tmp_path / "a.npz", PLAIN)
        (tmp_path / "b.npz").write_bytes(b"PK\x03\x04 but no more")
        with pytest.raises(ValueError, match=r"cannot read .*b\.npz"):
            open_set(tmp_path / "b.npz", PLAIN)
        np.savez(tmp_path / "c.npz", images=np.array([{}, {}]))
        with pytest.raises(ValueError, match=r"cannot read .*c\.npz"):
            open_set(tmp_path / "c.npz", PLAIN)
        with pytest.raises(FileNotFoundError, match="no such file"):
            load_npz(tmp_path / "d.npz", PLAIN)


class TestFoldersAndArchives:
    def test_fingerprint_sees_a_byte_and_a_name(self, tmp_path: Path) -> None:
        write_folder(tmp_path / "a")
        write_folder(tmp_path / "b")
        first = FolderSet(tmp_path / "a", PLAIN).fingerprint()
        assert FolderSet(tmp_path / "b", PLAIN).fingerprint() == first
        (tmp_path / "b/ant/0.png").rename(tmp_path / "b/ant/00.png")
        assert FolderSet(tmp_path / "b", PLAIN).fingerprint() != first
        (tmp_path / "a/ant/1.png").write_bytes(png(pixels(1, 4, 4, 3, seed=1)[0]))
        assert FolderSet(tmp_path / "a", PLAIN).fingerprint() != first

    def test_an_empty_class_folder_keeps_its_number(self, tmp_path: Path) -> None:
        whole = write_folder(tmp_path / "set")
        before = whole.fingerprint()
        (tmp_path / "set/ape").mkdir()
        (tmp_path / "set/.git").mkdir()
        images = FolderSet(tmp_path / "set", PLAIN)
        assert images.classes == ("ant", "ape", "bee")
        assert images.labels == [0] * 4 + [2] * 4
        assert images.fingerprint() != before  # a cache keeps the labels, and they are others

    def test_postscript_in_an_archive_starts_nothing(self, tmp_path: Path) -> None:
        stream = io.BytesIO()
        Image.new("RGB", (8, 8)).save(stream, "EPS")
        with tarfile.open(tmp_path / "set.tar", "w") as archive:
            add(archive, "a.jpg", stream.getvalue())
        with pytest.raises(ImageError, match="not an image, or of an unknown kind"):
            everything(TarSet(tmp_path / "set.tar", PLAIN))

    def test_one_folder_is_no_class(self, tmp_path: Path) -> None:
        write_folder(tmp_path / "set")
        alone = FolderSet(tmp_path / "set/ant", PLAIN)
        assert alone.labels is None
        assert next(alone.batches(0, 2))[1] is None
        with tarfile.open(tmp_path / "one.tar", "w") as archive:
            for number, picture in enumerate(pixels(2, 4, 4, 3)):
                add(archive, f"images/{number}.png", png(picture))
        assert TarSet(tmp_path / "one.tar", PLAIN).labels is None

    def test_classes_below_what_all_share(self, tmp_path: Path) -> None:
        assert TarSet(write_tar(tmp_path / "set.tgz", top="dtd/images/"), PLAIN).classes == ("ant", "bee")

    def test_broken_archives(self, tmp_path: Path) -> None:
        whole = write_tar(tmp_path / "set.tar.gz").read_bytes()
        (tmp_path / "half.tar.gz").write_bytes(whole[: len(whole) // 2])
        (tmp_path / "text.tar").write_text("nothing of the kind")
        for name in ("half.tar.gz", "text.tar"):
            with pytest.raises(ValueError, match=f"cannot read the archive .*{name}"):
                open_set(tmp_path / name, PLAIN)
        with tarfile.open(tmp_path / "empty.tar", "w") as archive:
            add(archive, "a.txt", b"")
        with pytest.raises(ValueError, match="no images"):
            open_set(tmp_path / "empty.tar", PLAIN)

    def test_links_out_of_an_archive_are_left_out(self, tmp_path: Path) -> None:
        with tarfile.open(tmp_path / "set.tar", "w") as archive:
            add(archive, "a.png", png(pixels(1, 4, 4, 3)[0]))
            link = tarfile.TarInfo("b.png")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(link)
        assert len(open_set(tmp_path / "set.tar", PLAIN)) == 1


def of_classes(folder: Path, *names: str) -> FolderSet:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "0.png").write_bytes(png(pixels(1, 4, 4, 3)[0]))
    return FolderSet(folder, PLAIN)


class TestAgreeing:
    def test_the_same_classes_as_the_model(self, tmp_path: Path) -> None:
        first, second = of_classes(tmp_path / "a", *"xyz"), of_classes(tmp_path / "b", *"xyz")
        arrays = ArraySet("arrays", pixels(2, 4, 4, 3), np.arange(2), PLAIN)
        agree_on_classes([first, second, arrays], 3)
        assert first.labels == second.labels == [0, 1, 2]
        assert arrays.labels is not None

    @pytest.mark.parametrize("packed", [False, True])
    def test_a_missing_folder_is_numbered_by_the_other_set(self, tmp_path: Path, packed: bool) -> None:
        whole, part = of_classes(tmp_path / "whole", *"xyz"), of_classes(tmp_path / "part", *"yz")
        lacking: FolderSet | TarSet = part
        if packed:
            with tarfile.open(tmp_path / "part.tar", "w") as archive:
                archive.add(tmp_path / "part", "part")
            lacking = TarSet(tmp_path / "part.tar", PLAIN)
        before = lacking.fingerprint()
        agree_on_classes([lacking, whole], 3)
        assert whole.labels == [0, 1, 2]
        assert sorted(lacking.labels or []) == [1, 2]
        assert lacking.classes == ("x", "y", "z")
        assert lacking.fingerprint() != before

    @pytest.mark.parametrize(
        ("first", "second", "outputs", "labelled", "message"),
        [
            ("yz", "yz", 3, (False, False), "first has 2 class folders and the model 3 classes: not used as labels"),
            ("xyz", "xw", 3, (True, False), "second has 2 class folders, 'w' not among those of .*first and the model"),
            ("abc", "xyz", 3, (False, False), r"first and .*second name their classes differently \('a', 'x'\): not"),
            ("wxyz", "xyz", 3, (False, True), "first has 4 class folders, 'w' not among those of .*second and the"),
        ],
    )
    def test_labels_that_do_not_fit_are_left_out(
        self, tmp_path: Path, first: str, second: str, outputs: int, labelled: tuple[bool, bool], message: str
    ) -> None:
        sets = [of_classes(tmp_path / "first", *first), of_classes(tmp_path / "second", *second)]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            agree_on_classes(sets, outputs)
        assert re.search(message, str(told[0].message))
        assert tuple(images.labels is not None for images in sets) == labelled
        agree_on_classes(sets, outputs)  # said once

    @pytest.mark.parametrize("labels", [None, [], [0, 9]])
    def test_labels_within_the_model(self, labels: list[int] | None) -> None:
        check_labels("set", None if labels is None else torch.tensor(labels), 10)

    @pytest.mark.parametrize(("labels", "lie"), [([1, 10], "1..10"), ([-2, 3], "-2..3")])
    def test_labels_outside_the_model(self, labels: list[int], lie: str) -> None:
        with pytest.raises(
            ValueError, match=rf"the labels of set lie in {lie} and the model's classes in 0\.\.9; numb"
        ):
            check_labels("set", torch.tensor(labels), 10)


def broken_folder(path: Path, broken: set[int]) -> Path:
    path.mkdir()
    for number, picture in enumerate(pixels(7, 4, 4, 3)):
        (path / f"{number}.png").write_bytes(b"no picture" if number in broken else png(picture))
    return path


def broken_tar(path: Path, broken: set[int]) -> Path:
    with tarfile.open(path.with_suffix(".tar"), "w") as archive:
        for number, picture in enumerate(pixels(7, 4, 4, 3)):
            add(archive, f"{number}.png", png(picture)[:40] if number in broken else png(picture))
    return path.with_suffix(".tar")


def broken_object(path: Path, broken: set[int]) -> Items:
    pictures = pixels(7, 4, 4, 3)

    def item(position: int) -> tuple[Image.Image, None]:
        if position in broken:
            raise OSError("image file is truncated\nand more")
        return Image.fromarray(pictures[position]), None

    return Items(item, 7)


@pytest.mark.parametrize("make", [broken_folder, broken_tar, broken_object])
class TestBroken:
    @pytest.mark.parametrize("broken", [{1}, {0, 1, 2}, {6}, {4, 5, 6}, {0, 3, 6}, set(range(7))])
    def test_skipped_reported_and_counted(self, make: Any, tmp_path: Path, broken: set[int]) -> None:
        told: list[tuple[Path, ImageError]] = []
        images = open_set(make(tmp_path / "set", broken), PLAIN, on_error=lambda *what: told.append(what))
        for _ in range(2):  # however often it is read
            tensors, _, count = everything(images)
            assert count == 7
            good = [number for number in range(7) if number not in broken]
            torch.testing.assert_close(tensors, torch.from_numpy(pixels(7, 4, 4, 3)[good]).permute(0, 3, 1, 2) / 255)
        assert len(told) == len(broken)
        assert all("\n" not in str(error) and str(error).startswith("cannot read ") for _, error in told)
        assert images.fingerprint() == images.fingerprint()

    def test_no_batch_but_the_last_is_empty(self, make: Any, tmp_path: Path) -> None:
        images = open_set(make(tmp_path / "set", {0, 1, 2, 6}), PLAIN, on_error=lambda *_: None)
        assert [(len(batch), count) for batch, _, count in images.batches(0, 3)] == [(3, 6), (0, 1)]
        assert next(images.batches(0, 2))[0].shape == (1, 3, 4, 4)

    def test_stops_the_run(self, make: Any, tmp_path: Path) -> None:
        with pytest.raises(ImageError, match="cannot read"):
            everything(open_set(make(tmp_path / "set", {4}), PLAIN))


class TestObjects:
    @pytest.mark.parametrize("kind", ["array", "tensor", "float tensor", "float array", "dict", "img", "bare"])
    def test_items_of_every_kind(self, kind: str) -> None:
        pictures = pixels(8, 4, 4, 3)

        def item(position: int) -> Any:
            picture = pictures[position]
            tensor = torch.from_numpy(picture).permute(2, 0, 1)
            return {
                "array": (picture, np.int64(position)),
                "tensor": (tensor, torch.tensor(position)),
                "float tensor": (tensor.float() / 255, position),
                "float array": (picture / 255, position),
                "dict": {"image": Image.fromarray(picture), "label": position},
                "img": {"img": picture, "fine_label": position, "coarse_label": 0},
                "bare": picture,
            }[kind]

        tensors, labels, _ = everything(open_set(Items(item), PLAIN))
        torch.testing.assert_close(tensors, torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255)
        assert labels == ([] if kind == "bare" else list(range(8)))

    def test_some_labels_unknown(self) -> None:
        images = open_set(Items(lambda position: (pixels(1, 4, 4)[0], None if position else 5), 2), PLAIN)
        assert everything(images)[1] == [5, -1]

    @pytest.mark.parametrize(
        ("item", "message"),
        [
            ({"pixels": 1}, "one must be 'image'"),
            (("file.png", 0), "must be PIL images"),
            ((np.zeros((4, 4, 7), np.uint8), 0), "shape"),
            ((np.full((4, 4), 2.5), 0), "before normalisation"),
            ((torch.full((3, 4, 4), float("nan")), 0), "before normalisation"),
            ((np.zeros((4, 4), np.int64), 0), "int64"),
            ((np.zeros((4, 4), np.uint8), "cat"), "whole numbers"),
        ],
    )
    def test_a_wrong_dataset_stops_even_where_broken_pictures_are_skipped(self, item: Any, message: str) -> None:
        images = open_set(Items(lambda _: item), PLAIN, on_error=lambda *_: None)
        with pytest.raises(TypeError, match=message):
            everything(images)

    def test_fingerprint_sees_pixels_and_labels(self) -> None:
        first = open_set(items(), PLAIN).fingerprint()
        pictures = pixels(8, 4, 4, 3)
        other_label = Items(lambda position: (Image.fromarray(pictures[position]), position // 5))
        assert open_set(other_label, PLAIN).fingerprint() != first
        pictures[7, 0, 0, 0] ^= 1
        other_pixel = Items(lambda position: (Image.fromarray(pictures[position]), position // 4))
        assert open_set(other_pixel, PLAIN).fingerprint() != first

    def test_huggingface_fingerprint_is_taken(self) -> None:
        source = items()
        source._fingerprint = "0123456789abcdef"  # type: ignore[attr-defined]
        source.make = lambda position: pytest.fail("no item is needed")
        first = ObjectSet(source, PLAIN).fingerprint()
        source._fingerprint = "another"  # type: ignore[attr-defined]
        assert ObjectSet(source, PLAIN).fingerprint() != first

    def test_torchvision(self, tmp_path: Path) -> None:
        datasets = pytest.importorskip("torchvision.datasets")
        folder = write_folder(tmp_path / "set")
        theirs = open_set(datasets.ImageFolder(str(tmp_path / "set")), PLAIN)
        assert theirs.name == "imagefolder"
        assert torch.equal(everything(theirs)[0], everything(folder)[0])
        assert everything(theirs)[1] == everything(folder)[1]

    @pytest.mark.parametrize("source", [{"train": [1], "test": [2]}, 5, iter([1]), []])
    def test_refuses_what_is_no_dataset(self, source: Any) -> None:
        with pytest.raises((TypeError, ValueError), match=r"train, test|cannot read images from|empty"):
            open_set(source, PLAIN)


def as_python_2_wrote(images: NDArray[np.uint8], labels: list[int], key: bytes = b"labels") -> bytes:
    """A batch of the CIFAR archives, opcode by opcode (protocol 2, byte strings)."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    rows, columns = images.shape
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + number(0) + number(1) + b"tR"
    dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"tR"
    content = b"T" + struct.pack("<i", images.nbytes) + images.tobytes()
    array += b"(" + number(1) + number(rows) + number(columns) + b"\x86" + dtype + b"\x89" + content + b"tb"
    body = text(b"data") + array + text(key) + b"](" + b"".join(map(number, labels)) + b"e"
    return b"\x80\x02}(" + body + text(b"batch_label") + text(b"testing batch") + b"u."


def write_cifar10(folder: Path, dump: Callable[..., bytes] = as_python_2_wrote) -> tuple[NDArray[np.uint8], list[int]]:
    """Two images a batch, twelve in all."""
    folder.mkdir()
    images, labels = pixels(12, 32, 32, 3), [number % 10 for number in range(12)]
    planes = images.transpose(0, 3, 1, 2).reshape(12, 3072)
    for number, name in enumerate([*(f"data_batch_{batch}" for batch in range(1, 6)), "test_batch"]):
        rows = slice(2 * number, 2 * number + 2)
        (folder / name).write_bytes(dump(planes[rows], labels[rows]))
    (folder / "batches.meta").write_bytes(b"}.")
    return images, labels


def pack(folder: Path) -> Path:
    file = folder.with_name(f"{folder.name}.tar.gz")
    with tarfile.open(file, "w:gz") as archive:
        archive.add(folder, folder.name)
    return file


class TestCifar:
    @pytest.mark.parametrize("packed", [False, True])
    def test_cifar10(self, tmp_path: Path, packed: bool) -> None:
        folder = tmp_path / "cifar-10-batches-py"
        images, labels = write_cifar10(folder)
        source = pack(folder) if packed else folder
        test, train = open_set(source, CIFAR, split="test"), open_set(source, CIFAR, split="train")
        assert (test.name, train.name, len(test), len(train)) == ("cifar10_test", "cifar10_train", 2, 10)
        torch.testing.assert_close(everything(train)[0], torch.from_numpy(images[:10]).permute(0, 3, 1, 2) / 255)
        assert everything(train)[1] + everything(test)[1] == labels
        assert test.fingerprint() == ArraySet("any", images[10:], np.array(labels[10:]), CIFAR).fingerprint()

    def test_cifar100(self, tmp_path: Path) -> None:
        folder = tmp_path / "cifar-100-python"
        folder.mkdir()
        planes = pixels(3, 3072)
        for name in ("train", "test"):
            (folder / name).write_bytes(as_python_2_wrote(planes, [99, 5, 7], b"fine_labels"))
        (folder / "meta").write_bytes(b"}.")
        assert everything(open_set(pack(folder), CIFAR, split="test"))[1] == [99, 5, 7]
        assert open_set(folder, CIFAR, split="train").name == "cifar100_train"

    def test_written_again_by_python_3(self, tmp_path: Path) -> None:
        def dump(images: NDArray[np.uint8], labels: list[int]) -> bytes:
            return pickle.dumps({"data": images, "labels": labels}, protocol=2)

        images, _ = write_cifar10(tmp_path / "set", dump)
        tensors = everything(open_set(tmp_path / "set", CIFAR, split="test"))[0]
        torch.testing.assert_close(tensors, torch.from_numpy(images[10:]).permute(0, 3, 1, 2) / 255)

    @pytest.mark.parametrize(
        "evil",
        [
            b"cos\nsystem\n(S'touch PWNED'\ntR.",
            b"cbuiltins\neval\n(S'1/0'\ntR.",
            b"(S'touch PWNED'\nios\nsystem\n.",
            b"cnumpy.testing\nrundocs\n(tR.",
            b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0btouch PWNED\x85R.",
        ],
    )
    def test_a_pickle_runs_nothing(self, tmp_path: Path, evil: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        write_cifar10(tmp_path / "set")
        (tmp_path / "set/test_batch").write_bytes(evil)
        with pytest.raises(ValueError, match="which no CIFAR file does; refused"):
            open_set(tmp_path / "set", CIFAR, split="test")
        assert not (tmp_path / "PWNED").exists()

    def test_damage_is_one_line(self, tmp_path: Path) -> None:
        write_cifar10(tmp_path / "set")
        batch = tmp_path / "set/test_batch"
        whole = batch.read_bytes()
        for content in (
            whole[:500],
            b"",
            b"].",
            b"}.",
            whole.replace(b"u1", b"f4"),
            whole.replace(b"labels", b"lebals"),
        ):
            batch.write_bytes(content)
            with pytest.raises(ValueError, match="cannot read test_batch of") as caught:
                open_set(tmp_path / "set", CIFAR, split="test")
            assert "\n" not in str(caught.value)
        (tmp_path / "set/data_batch_3").unlink()
        with pytest.raises(FileNotFoundError, match="lacks data_batch_3"):
            open_set(tmp_path / "set", CIFAR, split="train")

    def test_split_must_be_said(self, tmp_path: Path) -> None:
        write_cifar10(tmp_path / "set")
        with pytest.raises(ValueError, match="choose with split="):
            open_set(tmp_path / "set", CIFAR)


def idx(values: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">4B{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.tobytes()


class TestIdx:
    @pytest.mark.parametrize("packed", [False, True])
    def test_files_and_their_folder(self, tmp_path: Path, packed: bool) -> None:
        images, labels = pixels(5, 28, 28), np.arange(5, dtype=np.uint8)
        suffix = ".gz" if packed else ""
        for name, values in (("t10k-images-idx3-ubyte", images), ("t10k-labels-idx1-ubyte", labels)):
            (tmp_path / (name + suffix)).write_bytes(gzip.compress(idx(values)) if packed else idx(values))
        file = open_set(tmp_path / f"t10k-images-idx3-ubyte{suffix}", PLAIN)
        folder = open_set(tmp_path, PLAIN, split="test", name="mnist")
        assert everything(file)[1] == list(range(5))
        assert file.fingerprint() == folder.fingerprint() == ArraySet("any", images, labels, PLAIN).fingerprint()
        with pytest.raises(FileNotFoundError, match="train-images"):
            open_set(tmp_path, PLAIN, split="train")

    def test_without_labels(self, tmp_path: Path) -> None:
        (tmp_path / "pictures").write_bytes(idx(pixels(2, 4, 4)))
        assert everything(open_set(tmp_path / "pictures", PLAIN))[1] == []

    def test_cut_off(self, tmp_path: Path) -> None:
        (tmp_path / "a-images").write_bytes(idx(pixels(2, 4, 4))[:-1])
        with pytest.raises(ValueError, match="31 values where its header says 2x4x4"):
            open_set(tmp_path / "a-images", PLAIN)


def test_what_is_nothing_of_the_kind(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"cannot read images from .*notes\.txt; give a folder"):
        open_set(tmp_path / "notes.txt", PLAIN)
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        open_set(tmp_path / "absent", PLAIN)
    write_folder(tmp_path / "set")
    with pytest.raises(ValueError, match="holds one set"):
        open_set(tmp_path / "set", PLAIN, split="test")
