"""Names become classifiers, with their weights and their preprocessing, or one line that says why not."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import safetensors.torch
import torch
from models import settled
from PIL import Image
from torch import nn

from davis import models
from davis.backbone import Backbone
from davis.data import Preprocessing
from davis.families import FAMILIES, Family
from davis.models import adjusted, load_model, place_on, preprocessing_of

TINY = """
import torch
from torch import nn

print("loading")

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))

class Zoo:
    net = make()

number = 3
def give_number(): return number
def fail(): raise KeyError("no such layer")
def wants(classes): return make()
"""


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own in the current directory, and no network."""
    name = "tiny_model_of_test_models"
    (tmp_path / f"{name}.py").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    return name


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every download fails at once, as without a network but without the zoos' own waiting and retries."""
    import huggingface_hub.constants

    def refuse(*_: object, **__: object) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)


class TestPython:
    @pytest.mark.parametrize("path", ["make", "Zoo.net"])
    def test_factories_and_models(self, tiny: str, path: str) -> None:
        model = load_model(f"{tiny}:{path}")
        assert isinstance(model, nn.Sequential)
        assert not model.training

    @pytest.mark.parametrize(
        ("path", "error", "message"),
        [
            ("made", ValueError, "has no 'made'"),
            ("number", TypeError, "gives a int; a torch.nn.Module"),
            ("give_number", TypeError, "gives a int"),
            ("fail", ValueError, r"did not make a model \(KeyError: 'no such layer'\)"),
            ("wants", ValueError, r"did not make a model \(TypeError: .*called without arguments"),
            ("", ValueError, "cannot read the model"),
        ],
    )
    def test_refuses(self, tiny: str, path: str, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            load_model(f"{tiny}:{path}")

    def test_module_that_is_not_there(self) -> None:
        with pytest.raises(ImportError, match=r"cannot import 'gone' for the model 'gone:make' \(ModuleNotFoundError"):
            load_model("gone:make")

    def test_module_that_fails(self, tmp_path: Path) -> None:
        (tmp_path / "broken_of_test_models.py").write_text("1 / 0")
        with pytest.raises(ImportError, match=r"cannot import .* \(ZeroDivisionError: division by zero\)"):
            load_model("broken_of_test_models:make")

    def test_number_of_classes_is_its_own(self, tiny: str) -> None:
        with pytest.raises(ValueError, match="not --num-classes"):
            load_model(f"{tiny}:make", classes=3)

    def test_preprocessing(self, tiny: str) -> None:
        assert preprocessing_of(f"{tiny}:make", nn.Identity()) == Preprocessing()


class TestWeights:
    @pytest.fixture
    def trained(self, tiny: str) -> nn.Module:
        model = load_model(f"{tiny}:make")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
        return model

    @pytest.mark.parametrize(
        ("name", "write"),
        [
            ("w.pth", lambda model, file: torch.save(model.state_dict(), file)),
            ("w.pt", lambda model, file: torch.save({"state_dict": model.state_dict(), "epoch": 3}, file)),
            ("w.ckpt", lambda model, file: torch.save({"model": nn.DataParallel(model).state_dict()}, file)),
            ("w.safetensors", lambda model, file: safetensors.torch.save_file(model.state_dict(), file)),
        ],
    )
    def test_file(self, tiny: str, trained: nn.Module, name: str, write: Callable[[nn.Module, str], None]) -> None:
        write(trained, name)
        loaded = load_model(f"{tiny}:make", weights=name)
        for key, value in trained.state_dict().items():
            assert torch.equal(loaded.state_dict()[key], value)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({"0.weight": torch.zeros(8, 3, 3, 3)}, "lacks '0.bias' and 2 others"),
            ([1, 2], "holds no dictionary of tensors"),
            ({"epoch": 3}, "holds no dictionary of tensors"),
            (nn.Linear(2, 2), "is no file of plain tensors"),  # a pickled object: never run
        ],
    )
    def test_refuses_other_content(self, tiny: str, content: object, message: str) -> None:
        torch.save(content, "w.pth")
        with pytest.raises(ValueError, match=message) as caught:
            load_model(f"{tiny}:make", weights="w.pth")
        assert "\n" not in str(caught.value)

    def test_refuses_unknown_and_misshapen_tensors(self, tiny: str, trained: nn.Module) -> None:
        torch.save(trained.state_dict() | {"extra": torch.zeros(1)}, "w.pth")
        with pytest.raises(ValueError, match="has unknown 'extra'"):
            load_model(f"{tiny}:make", weights="w.pth")
        torch.save(trained.state_dict() | {"4.weight": torch.zeros(9, 8)}, "w.pth")
        with pytest.raises(ValueError, match=r"'4.weight' is \(9, 8\) there and \(4, 8\) in the model.*--num-classes"):
            load_model(f"{tiny}:make", weights="w.pth")

    @pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
    def test_refuses_damaged_files(self, tiny: str, name: str) -> None:
        Path(name).write_bytes(b"damaged")
        with pytest.raises(ValueError, match="is no file of plain tensors"):
            load_model(f"{tiny}:make", weights=name)

    @pytest.mark.parametrize("kind", ["damaged", "objects", "TorchScript"])
    def test_torchs_advice_to_run_a_file_is_not_repeated(self, tiny: str, kind: str) -> None:
        if kind == "damaged":
            Path("w.pth").write_bytes(b"damaged")
        elif kind == "objects":
            torch.save(nn.Linear(2, 2), "w.pth")
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch would do away with it
                torch.jit.script(nn.Linear(2, 2)).save("w.pth")
        with pytest.raises(
            ValueError, match=r"w\.pth is no file of plain tensors .*: it is damaged, or holds more"
        ) as caught:
            load_model(f"{tiny}:make", weights="w.pth")
        assert "likely succeed" not in str(caught.value)
        assert "weights_only" not in str(caught.value)

    def test_refuses_names_that_are_numbers(self, tiny: str) -> None:
        torch.save({1: torch.zeros(2)}, "w.pth")
        with pytest.raises(ValueError, match="holds no dictionary of tensors"):
            load_model(f"{tiny}:make", weights="w.pth")

    def test_refuses_missing_files(self, tiny: str) -> None:
        with pytest.raises(FileNotFoundError, match=r"gone\.pth is no file; allowed are default, none or a file"):
            load_model(f"{tiny}:make", weights="gone.pth")


class TestZoos:
    def test_number_of_classes(self) -> None:
        assert load_model("resnet18", weights="none", classes=7).get_submodule("fc").out_features == 7
        assert load_model("timm:resnet18", weights="none", classes=7).get_submodule("fc").out_features == 7
        with pytest.raises(ValueError, match="has its own classes"):
            load_model("resnet18", classes=7)

    def test_torchvision_comes_first(self) -> None:
        assert type(load_model("resnet18", weights="none")).__module__ == "torchvision.models.resnet"
        assert type(load_model("timm:resnet18", weights="none")).__module__ == "timm.models.resnet"
        assert type(load_model("resnet18.a1_in1k", weights="none")).__module__ == "timm.models.resnet"

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("resnet19", "unknown model 'resnet19'; did you mean 'resnet1"),
            ("mobilnet_v2", "did you mean 'mobilenet_v2'"),
            ("zzzzzzzz", "a model is a torchvision or timm name, hf:ID"),
            ("timm:resnet1888", "unknown timm model 'resnet1888'; did you mean"),
            ("torchvision:convnext_atto", "unknown torchvision model 'convnext_atto'"),
        ],
    )
    def test_unknown_names(self, name: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            load_model(name, weights="none")

    @pytest.mark.usefixtures("offline")
    @pytest.mark.parametrize("name", ["resnet18", "timm:resnet18", "hf:microsoft/resnet-18"])
    def test_no_network(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(OSError, match=r"cannot get the pretrained weights of .*; use --weights FILE or") as caught:
            load_model(name)
        assert "\n" not in str(caught.value)
        assert capsys.readouterr().out == ""

    @pytest.mark.parametrize(
        ("name", "package", "extra"),
        [("resnet18", "torchvision", "timm"), ("timm:resnet18", "timm", "timm"), ("hf:x/y", "transformers", "hf")],
    )
    def test_zoo_that_is_not_installed(
        self, monkeypatch: pytest.MonkeyPatch, name: str, package: str, extra: str
    ) -> None:
        def missing(wanted: str) -> None:
            top = wanted.partition(".")[0]
            raise ModuleNotFoundError(f"No module named {top!r}", name=top)

        monkeypatch.setattr(models.importlib, "import_module", missing)
        with pytest.raises(ImportError, match=rf"{package} is not installed: pip install 'davis-ood\[{extra}\]'"):
            load_model(name, weights="none")

    def test_one_zoo_is_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = models.importlib.import_module

        def without_torchvision(wanted: str) -> object:
            if wanted.startswith("torchvision"):
                raise ModuleNotFoundError("No module named 'torchvision'", name="torchvision")
            return real(wanted)

        monkeypatch.setattr(models.importlib, "import_module", without_torchvision)
        assert type(load_model("resnet18", weights="none")).__module__ == "timm.models.resnet"

    def test_versions_of_torchvisions_weights(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        def state_dict(version: object, **_: object) -> None:
            asked.append(str(version))
            raise OSError("no network")

        monkeypatch.setattr("torchvision.models._api.WeightsEnum.get_state_dict", state_dict)
        for weights in ("IMAGENET1K_V1", "default"):
            with pytest.raises(OSError, match="cannot get the pretrained weights of 'resnet50'"):
                load_model("resnet50", weights=weights)
        assert asked == ["ResNet50_Weights.IMAGENET1K_V1", "ResNet50_Weights.IMAGENET1K_V2"]

    @pytest.mark.parametrize("name", ["timm:resnet18", "efficientnet_lite0"])
    def test_versions_are_torchvisions_only(self, name: str) -> None:
        with pytest.raises(ValueError, match="'IMAGENET1K_V1' is a version of torchvision's weights"):
            load_model(name, weights="IMAGENET1K_V1")

    def test_torchvision_preprocessing(self) -> None:
        found = preprocessing_of("efficientnet_b0", nn.Identity())
        assert (found.size, found.resize, found.interpolation) == (224, 256, "bicubic")

    @pytest.mark.parametrize("name", ["timm:resnet18", "convnext_atto", "tf_efficientnetv2_b3"])
    def test_timm_preprocessing(self, name: str) -> None:
        from timm.data import create_transform, resolve_model_data_config

        model = load_model(name, weights="none")
        ours, theirs = preprocessing_of(name, model), create_transform(**resolve_model_data_config(model))
        values = numpy.random.default_rng(0).integers(0, 256, (300, 410, 3), dtype=numpy.uint8)
        picture = Image.fromarray(values)
        torch.testing.assert_close(ours(picture), theirs(picture), rtol=0, atol=1e-5)

    def test_device_that_is_not_there(self) -> None:
        with pytest.raises(ValueError, match=r"device 'warp' cannot be used here .*; try cpu"):
            place_on(nn.Linear(2, 2), "warp")

    def test_adjusted(self) -> None:
        zoo = Preprocessing(size=224, resize=256)
        assert adjusted(zoo) == zoo
        assert adjusted(zoo, size=448).resize == 512
        assert adjusted(zoo, size=100, resize=100).resize == 100
        assert adjusted(zoo, mean=(0.5,), std=(0.5,)).shape == (1, 224, 224)


CROPPED = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}, "size": {"shortest_edge": 256}}


class TestHuggingFace:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A saved model, as `save_pretrained` leaves it."""
        from transformers import ResNetConfig, ResNetForImageClassification

        torch.manual_seed(0)
        config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5)
        ResNetForImageClassification(config).save_pretrained(tmp_path / "saved")
        return tmp_path / "saved"

    def test_folder(self, folder: Path) -> None:
        model = load_model(f"hf:{folder}")
        again = load_model(f"hf:{folder}")
        fresh = load_model(f"hf:{folder}", weights="none", classes=3)
        weights = [dict(m.named_parameters()) for m in (model, again, fresh)]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
        assert weights[2]["classifier.1.weight"].shape == (3, 16)
        backbone = Backbone(model)
        backbone.probe((3, 32, 32))
        assert backbone.describe()["classes"] == 5

    @pytest.mark.parametrize(
        ("values", "expected"),
        [
            (None, Preprocessing()),
            (CROPPED | {"resample": 3}, Preprocessing(size=224, resize=256, interpolation="bicubic")),
            (CROPPED | {"do_normalize": False}, Preprocessing(size=224, resize=256, mean=(0, 0, 0), std=(1, 1, 1))),
            ({"size": {"height": 32, "width": 32}}, Preprocessing(size=32, aspect="stretch")),
            ({"size": 32, "image_mean": [0.5] * 3}, Preprocessing(size=32, mean=(0.5, 0.5, 0.5), aspect="stretch")),
            ({"size": 224, "crop_pct": 0.875}, Preprocessing(size=224, resize=256)),
            ({"size": {"shortest_edge": 384}, "crop_pct": 1}, Preprocessing(size=384, aspect="stretch")),
        ],
    )
    def test_preprocessing(self, folder: Path, values: dict[str, object] | None, expected: Preprocessing) -> None:
        if values is not None:
            (folder / "preprocessor_config.json").write_text(json.dumps(values))
        assert preprocessing_of(f"hf:{folder}", nn.Identity()) == expected


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.example)
def test_every_listed_family_is_found(family: Family) -> None:
    backbone = Backbone(settled(load_model(family.example, weights="none"), 3, family.size, family.size))
    backbone.probe((3, family.size, family.size))
    found = backbone.describe()
    assert found["classes"] == 1000
    assert isinstance(found["map_shape"], list)
    assert min(found["map_shape"][1:]) > 1
