"""Weights that come with the package, or from the folder of a training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from davis import zoo
from davis.models import load_model, preprocessing_of
from davis.zoo import weights


def write(folder: Path, stem: str | None = None) -> torch.nn.Module:
    torch.manual_seed(0)
    model = zoo.build("resnet18(width=4)", classes=10).eval()
    file = folder / (f"{stem}.safetensors" if stem else "weights.safetensors")
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, file)
    card = {"arch": "resnet18(width=4)", "classes": 10, "head": "linear", "sha256": weights.sha256_of(file)}
    (folder / (f"{stem}.json" if stem else "card.json")).write_text(json.dumps(card))
    return model


def test_a_shipped_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write(tmp_path, "cifar10-resnet18_width4")
    monkeypatch.setattr(weights, "_folder", lambda: tmp_path)
    assert list(zoo.shipped()) == ["cifar10-resnet18_width4"]
    loaded = zoo.load("resnet18(width=4)", "cifar10")
    images = torch.randn(2, 3, 32, 32)
    assert not loaded.training
    assert torch.equal(loaded(images), model(images))


def test_a_shipped_network_is_a_model_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = zoo.build("mobilenet_v2", classes=100).eval()
    file = tmp_path / "cifar100-mobilenet_v2.safetensors"
    safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, file)
    card = {"arch": "mobilenet_v2", "classes": 100, "head": "linear", "sha256": weights.sha256_of(file)}
    file.with_suffix(".json").write_text(json.dumps(card))
    monkeypatch.setattr(weights, "_folder", lambda: tmp_path)
    name, images = "davis.zoo:cifar100_mobilenet_v2", torch.randn(2, 3, 32, 32)
    loaded = load_model(name)
    assert torch.equal(loaded(images), model(images))
    assert preprocessing_of(name, loaded).size == 32
    assert not torch.equal(load_model(name, weights="none")(images), model(images))
    with pytest.raises(ValueError, match="has its own classes"):
        load_model(name, classes=7)


def test_what_is_not_there_is_said_with_what_is_and_how_to_train() -> None:
    there = ", ".join(zoo.shipped()) or "none yet"
    with pytest.raises(FileNotFoundError) as error:
        zoo.load("resnet18(act=tanh)", "cifar100")
    assert f"there are: {there}; train them with `davis train 'resnet18(act=tanh)' cifar100`" in str(error.value)
    assert "\n" not in str(error.value)


def test_every_shipped_card_is_true() -> None:
    assert {"cifar10-mobilenet_v2", "cifar100-mobilenet_v2"} <= zoo.shipped().keys()
    for stem, card in zoo.shipped().items():
        dataset, arch = stem.split("-")
        assert zoo.slug(card["arch"]) == arch
        model = zoo.load(card["arch"], dataset)
        assert model.head.out_features == zoo.CLASSES[dataset]  # type: ignore[union-attr]
        told = preprocessing_of(f"davis.zoo:{dataset}_{arch}", model).to_dict()
        assert json.loads(json.dumps(told)) == card["preprocessing"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what ships."""
    copied = shutil.copytree(weights._folder(), tmp_path / "trained")
    monkeypatch.setattr(weights, "_folder", lambda: copied)
    return copied


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\x00", b"[]", b'{"arch": "mobilenet_v2"}'])
def test_one_damaged_card_harms_no_other_network(package: Path, content: bytes) -> None:
    (package / "cifar100-mobilenet_v2.json").write_bytes(content)
    zoo.load("mobilenet_v2", "cifar10")
    for call in (zoo.shipped, lambda: zoo.load("mobilenet_v2", "cifar100")):
        with pytest.raises(ValueError, match=r"cifar100-mobilenet_v2\.json is .*; install davis again") as error:
            call()
        assert "\n" not in str(error.value)


def test_a_network_under_the_name_of_another(package: Path) -> None:
    for kind in ("json", "safetensors"):
        shutil.copy(package / f"cifar100-mobilenet_v2.{kind}", package / f"cifar10-mobilenet_v2.{kind}")
    with pytest.raises(ValueError, match=r"cifar10-mobilenet_v2\.json is the card of another network; install davis"):
        zoo.load("mobilenet_v2", "cifar10")


def test_weights_of_the_package_that_are_gone_or_changed(package: Path) -> None:
    file = package / "cifar10-mobilenet_v2.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="its sha256 differs; install davis again"):
        zoo.load("mobilenet_v2", "cifar10")
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"is missing, which .* describes; install davis again"):
        zoo.load("mobilenet_v2", "cifar10")


def test_heads_are_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"no weights of 'mobilenet_v2' with head godin .* --head godin`"):
        zoo.load("mobilenet_v2", "cifar10", head="godin")
    with pytest.raises(ValueError, match="unknown head 'foo'; known: linear, godin"):
        zoo.load("mobilenet_v2", "cifar10", head="foo")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["cifar10_mobilenet_v2", "cifar10-mobilenet_v2"])
def test_the_name_without_its_module_is_understood(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown model '{name}'; did you mean 'davis.zoo:cifar10_mobilenet_v2'"):
        load_model(name)


@pytest.mark.slow
def test_a_shipped_network_is_as_good_as_its_card_says(shared: Path) -> None:
    """On a tenth of the test set, prepared as the card says."""
    labels = torch.from_numpy(np.load(shared / "data" / "32px" / "cifar100_test.labels.npy")[:1000])
    mosaic = np.asarray(Image.open(shared / "data" / "32px" / "cifar100_test.0.webp").convert("RGB"))
    rows, columns = mosaic.shape[0] // 32, mosaic.shape[1] // 32
    tiles = mosaic.reshape(rows, 32, columns, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)[:1000]
    card = zoo.shipped()["cifar100-mobilenet_v2"]
    mean, std = (torch.tensor(card["preprocessing"][key])[:, None, None] for key in ("mean", "std"))
    images = (torch.from_numpy(tiles).permute(0, 3, 1, 2) / 255 - mean) / std
    with torch.inference_mode():
        right = zoo.load("mobilenet_v2", "cifar100")(images).argmax(1) == labels
    assert right.double().mean().item() == pytest.approx(card["accuracy"], abs=0.045)  # three standard errors


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    file = tmp_path / "weights.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="sha256 differs"):
        zoo.load_trained(tmp_path)


def test_an_unfinished_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no finished training: card\.json is missing"):
        zoo.load_trained(tmp_path)


def test_weights_that_are_gone(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"weights\.safetensors is missing, which card\.json describes"):
        zoo.load_trained(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "{}", "[]"])
def test_a_broken_card_is_named(tmp_path: Path, content: str) -> None:
    write(tmp_path)
    (tmp_path / "card.json").write_text(content)
    with pytest.raises(ValueError, match=r"card\.json is .*; remove it and train anew"):
        zoo.load_trained(tmp_path)


def test_the_authors_densenet(shared: Path) -> None:
    """Every key of their checkpoint finds its place, by the documented mapping."""
    state = torch.load(shared / "weights" / "davis_densenet101_cifar10.pt", map_location="cpu", weights_only=True)
    model = zoo.build("densenet101", classes=10)
    tensors = state.get("state_dict", state)
    model.load_state_dict(zoo.from_authors(tensors))
    assert torch.equal(model.head.bias, tensors["output_layer.bias"])  # type: ignore[union-attr]
