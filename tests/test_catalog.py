"""The table of datasets, and what of it lies in a data directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from davis import catalog
from davis.catalog import DATASETS, PREPROCESSING, MissingDataset
from davis.data import ImageError

ROOT = Path(__file__).resolve().parent.parent
MENTIONED = "lsun_crop lsun_resize isun places365 places textures svhn tiny_imagenet imagenet inaturalist sun"


def save(folder: Path, name: str, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{name}.npz", images=np.zeros((count, 2, 2, 3), np.uint8), labels=np.zeros(count, np.int64))


class TestTable:
    def test_every_set_of_the_paper_is_there(self) -> None:
        assert {*MENTIONED.split(), "openimage_o", "ninco", "ssb_hard", "imagenet_o"} <= set(DATASETS)

    @pytest.mark.parametrize("entry", DATASETS.values(), ids=lambda entry: entry.name)
    def test_entries_are_whole(self, entry: catalog.Dataset) -> None:
        assert entry.count > 0
        assert entry.places
        assert entry.licence
        assert entry.how
        assert not any(Path(place).is_absolute() or ".." in place for place in entry.places)
        assert {*entry.inside, *entry.near, *entry.far} <= set(PREPROCESSING)
        if entry.instead_of:
            assert DATASETS[entry.instead_of].instead_of == ""
            assert "never report as" in entry.what or entry.name == "svhn_cropped"

    def test_benchmarks_of_the_paper(self) -> None:
        far = ["svhn", "textures", "places365", "lsun_crop", "lsun_resize", "isun"]
        assert catalog.members("cifar10", "far") == catalog.members("cifar100", "far") == far
        assert catalog.members("cifar100", "near") == ["cifar10_test", "tiny_imagenet"]
        assert catalog.members("cifar10", "inside") == ["cifar10_train", "cifar10_test"]
        assert catalog.members("imagenet", "far") == ["textures", "inaturalist", "sun", "places", "openimage_o"]
        assert catalog.members("imagenet", "near") == ["ssb_hard", "ninco", "imagenet_o"]
        stand_ins = catalog.members("cifar10", "far", stand_ins=True)
        assert stand_ins == ["svhn_cropped", "dtd10", "miniplaces", "lsuncats_crop"]

    def test_preprocessing_of_the_paper(self) -> None:
        assert PREPROCESSING["cifar10"].to_dict()["mean"] == [0.491, 0.482, 0.447]
        assert PREPROCESSING["cifar100"].shape == (3, 32, 32)
        assert (PREPROCESSING["imagenet"].resize, PREPROCESSING["imagenet"].size) == (256, 224)

    def test_page_is_current(self) -> None:
        page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
        assert catalog.markdown() in page, "put the text of davis.catalog.markdown() into docs/data.md"

    def test_unknown_name(self) -> None:
        with pytest.raises(ValueError, match="did you mean 'textures'"):
            catalog.dataset("texture")


class TestDirectory:
    def test_chosen_by_the_environment(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("DAVIS_DATA", str(tmp_path / "here"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        assert catalog.data_directory() == tmp_path / "here"
        monkeypatch.setenv("DAVIS_DATA", "")
        assert catalog.data_directory() == tmp_path / "cache/davis/data"
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert catalog.data_directory() == tmp_path / ".cache/davis/data"


class TestFinding:
    def test_present_missing_and_wrong_count(self, tmp_path: Path) -> None:
        save(tmp_path, "dtd10", 1200)
        save(tmp_path, "miniplaces", 7)
        rows = {row.dataset.name: row for row in catalog.inventory(tmp_path)}
        assert list(rows) == list(DATASETS)
        assert rows["dtd10"][1:] == ("present", tmp_path / "dtd10.npz", 1200, "")
        assert rows["miniplaces"][1:4] == ("wrong count", tmp_path / "miniplaces.npz", 7)
        assert rows["cifar10_test"].state == "missing"
        assert rows["cifar10_test"].how == "davis data get cifar10"
        assert "robots.ox.ac.uk" in rows["textures"].how
        assert [row.dataset.name for row in catalog.inventory(tmp_path, ["svhn"])] == ["svhn"]

    def test_errors_say_what_is_expected_and_how_to_get_it(self, tmp_path: Path) -> None:
        with pytest.raises(MissingDataset, match=r"50,000 images are expected at imagenet/val; to get it: https://"):
            catalog.find("imagenet", tmp_path)
        with pytest.raises(MissingDataset, match="davis data get cifar10"):
            catalog.find("cifar10_test", tmp_path)
        save(tmp_path, "dtd10", 1200)
        with pytest.raises(MissingDataset, match="dtd10 is there and stands in for it, under its own name"):
            catalog.find("textures", tmp_path)
        save(tmp_path, "miniplaces", 7)
        with pytest.raises(MissingDataset, match="holds 7 images, 10,000 are expected"):
            catalog.find("miniplaces", tmp_path)
        (tmp_path / "svhn.npz").write_bytes(b"PK cut off")
        with pytest.raises(MissingDataset, match="holds 0 images"):
            catalog.find("svhn_cropped", tmp_path)

    def test_counting_a_folder_says_nothing_of_other_files(self, tmp_path: Path) -> None:
        (tmp_path / "iNaturalist").mkdir()
        assert catalog.count_images(tmp_path / "iNaturalist") == 0
        Image.new("RGB", (2, 2)).save(tmp_path / "iNaturalist" / "0.png")
        (tmp_path / "iNaturalist" / "list.txt").touch()
        assert catalog.count_images(tmp_path / "iNaturalist") == 1

    def test_the_first_whole_place_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / "tiny-imagenet-200/val/images").mkdir(parents=True)  # unpacking was cut off
        save(tmp_path, "tiny_imagenet", 10_000)
        assert catalog.find("tiny_imagenet", tmp_path) == tmp_path / "tiny_imagenet.npz"

    def test_opens(self, tmp_path: Path) -> None:
        save(tmp_path, "dtd10", 1200)
        images = catalog.open_dataset("dtd10", PREPROCESSING["cifar10"], tmp_path)
        assert (images.name, len(images)) == ("dtd10", 1200)
        assert next(images.batches(0, 2))[0].shape == (2, 3, 32, 32)

    def test_a_folder_with_a_broken_picture(self, tmp_path: Path) -> None:
        folder = tmp_path / "imagenet_crops/plantdoc/leaf"
        folder.mkdir(parents=True)
        for number in range(427):
            Image.new("RGB", (2, 2)).save(folder / f"{number:03}.png")
        (folder / "000.png").write_bytes(b"")
        told: list[Path] = []
        images = catalog.open_dataset(
            "plantdoc_crops", PREPROCESSING["cifar10"], tmp_path, on_error=lambda place, _: told.append(place)
        )
        assert next(images.batches(0, 2))[2] == 2
        assert told == [folder / "000.png"]
        with pytest.raises(ImageError):
            next(catalog.open_dataset("plantdoc_crops", PREPROCESSING["cifar10"], tmp_path).batches(0, 2))

    def test_an_archive_is_counted_when_opened(self, tmp_path: Path) -> None:
        from test_sets import pack, write_cifar10

        write_cifar10(tmp_path / "cifar-10-python")
        pack(tmp_path / "cifar-10-python")
        assert catalog.inventory(tmp_path, ["cifar10_test"])[0][1:4] == (
            "present",
            tmp_path / "cifar-10-python.tar.gz",
            None,
        )
        with pytest.raises(MissingDataset, match="holds 2 images, 10,000 are expected"):
            catalog.open_dataset("cifar10_test", PREPROCESSING["cifar10"], tmp_path)
