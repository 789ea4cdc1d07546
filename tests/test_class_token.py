"""Class-token transformers, read on request: which tokens are the map, and what is checked."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import davis
from davis.backbone import Backbone
from davis.torchvision_ops import declare_missing_operators

CLASSES, SIZE = 5, 32


def images(batch: int = 3, seed: int = 0) -> Tensor:
    return torch.randn((batch, 3, SIZE, SIZE), generator=torch.Generator().manual_seed(seed))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class TinyViT(nn.Module):
    """A transformer with ``first`` tokens before the patches and ``rest`` after; it reads token ``read``."""

    def __init__(self, *, first: int = 1, rest: int = 0, read: int = 0, depth: int = 3, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Conv2d(3, width, 8, 8)
        self.first, self.rest = (nn.Parameter(torch.randn(1, count, width)) for count in (first, rest))
        self.position = nn.Parameter(torch.randn(1, first + 16 + rest, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head, self.read = nn.LayerNorm(width), nn.Linear(width, CLASSES), read
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)
        self.eval()

    def entering(self, x: Tensor) -> Tensor:
        """What enters the last block."""
        patches = self.embed(x).flatten(2).transpose(1, 2)
        own = (self.first.expand(len(x), -1, -1), patches, self.rest.expand(len(x), -1, -1))
        x = torch.cat(own, 1) + self.position
        for block in self.blocks[:-1]:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks[-1](self.entering(x)))[:, self.read])


@pytest.mark.parametrize(
    ("settings", "patches"),
    [
        ({}, slice(1, 17)),
        ({"depth": 1}, slice(1, 17)),
        ({"first": 5}, slice(5, 21)),  # with registers
        ({"first": 2, "read": 1}, slice(2, 18)),
        ({"first": 0, "rest": 1, "read": 16}, slice(0, 16)),
    ],
)
def test_the_map_is_the_patches_that_enter_the_last_block(settings, patches):
    model = TinyViT(**settings)
    backbone = Backbone(model, tokens="class")
    activations = backbone(images())
    with torch.no_grad():
        assert torch.equal(activations.logits, model(images()))
        entering = model.entering(images())[:, patches].numpy()
        torch.testing.assert_close(activations.mean, torch.from_numpy(entering.mean(1)), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(activations.max, torch.from_numpy(entering.max(1)), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(activations.std, torch.from_numpy(entering.std(1, ddof=1)), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(backbone.neck(activations.max), model.norm(activations.max))
    assert torch.equal(backbone.classifier.weight, model.head.weight)
    found = backbone.describe()
    assert (found["kind"], found["map_shape"], found["head"]) == ("class token", [16, 16], "head")
    assert json.loads(json.dumps(found)) == found
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert len(backbone(images(1)).mean) == 1


def test_a_norm_after_the_token_is_taken():
    for settings in ({"first": 2, "read": 4}, {"first": 0, "read": 1}):  # a patch is what the head reads
        with pytest.raises(ValueError, match="patches cannot be told from its class token"):
            Backbone(TinyViT(**settings), tokens="class")(images())

    class Late(TinyViT):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.norm(self.blocks[-1](self.entering(x))[:, 0]).tanh())

    model = Late()
    backbone = Backbone.wrap(Backbone(model, tokens="class"), images())
    with torch.no_grad():
        torch.testing.assert_close(backbone.neck(torch.ones(2, 16)), model.norm(torch.ones(2, 16)).tanh())


def test_half_precision():
    model = TinyViT().bfloat16()
    activations = Backbone(model, tokens="class")(images().bfloat16())
    assert activations.mean.dtype == torch.float32
    assert activations.logits.dtype == torch.bfloat16


def test_without_the_option_the_error_names_it():
    with pytest.raises(ValueError, match=r"one class token .* nothing to pool; .*tokens='class' \(--tokens class\)"):
        Backbone(TinyViT())(images())


def test_every_batch_is_checked():
    model = TinyViT()
    backbone = Backbone.wrap(Backbone(model, tokens="class"), images())
    with torch.no_grad():
        model.norm.weight.mul_(2)
    backbone(images())  # live
    model.norm = nn.Identity()
    with pytest.raises(ValueError, match="do not give the model's logits"):
        backbone(images())
    nn.init.zeros_(model.head.weight)
    with pytest.raises(ValueError, match="gives the same logits"):
        Backbone(model, tokens="class")(images())


def test_what_is_refused():
    convolution = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()
    with pytest.raises(ValueError, match="do not come from one class token; leave tokens= out"):
        Backbone(convolution, tokens="class")(images())
    with pytest.raises(ValueError, match="tokens='mean' is not known; 'class'"):
        Backbone(convolution, tokens="mean")
    with pytest.raises(ValueError, match="give it alone"):
        Backbone(convolution, tap="0", head="3", tokens="class")

    class Late(TinyViT):
        """The class token joins when no block is left."""

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x).flatten(2).transpose(1, 2)
            token = self.first + x.mean(1, keepdim=True)
            return self.head(self.norm(torch.cat((token, x), 1))[:, 0])

    with pytest.raises(ValueError, match="cannot be told from its class token"):
        Backbone(Late(), tokens="class")(images())


def test_copies_inference_mode_and_gradients():
    backbone = Backbone.wrap(Backbone(TinyViT(), tokens="class"), images())
    for other in (copy.deepcopy(backbone), pickle.loads(pickle.dumps(backbone))):
        assert torch.equal(other(images()).max, backbone(images()).max)
    model = TinyViT()
    with torch.inference_mode():
        assert Backbone(model, tokens="class")(images()).mean.shape == (3, 16)
    batch = images().requires_grad_()
    features = backbone(batch, gradients=True).max
    (gradient,) = torch.autograd.grad(features.sum(), batch)
    assert gradient.any()


def test_a_detector_remembers_the_option(tmp_path):
    detector = davis.Detector(Backbone(TinyViT(), tokens="class"), "davis(gamma=0.5) + react(p=90) + energy")
    detector.fit([images(20, seed=1)])
    folder = davis.save(detector, tmp_path / "saved")
    again = davis.load(folder, TinyViT())
    assert again.backbone.kind == "class token"
    torch.testing.assert_close(again.score_images(images()), detector.score_images(images()))


def timm_model(name: str, **settings: object) -> nn.Module:
    timm = pytest.importorskip("timm")
    return timm.create_model(name, num_classes=CLASSES, depth=2, **settings)


def hugging_face() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"image_size": SIZE, "hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(num_hidden_layers=2, num_labels=CLASSES, **sizes)
    return transformers.ViTForImageClassification(config)


ZOOS: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "timm": (lambda: timm_model("vit_tiny_patch16_224", img_size=SIZE), "blocks.0", 4),
    "deit": (lambda: timm_model("deit_tiny_patch16_224", img_size=SIZE), "blocks.0", 4),
    "torchvision": (
        lambda: pytest.importorskip("torchvision.models").VisionTransformer(
            SIZE, 16, 2, 2, 24, 32, num_classes=CLASSES
        ),
        "encoder.layers.encoder_layer_0",
        4,
    ),
    "transformers": (hugging_face, "layer", 4),
}


@pytest.mark.parametrize("name", ZOOS)
def test_zoos(name):
    declare_missing_operators()
    build, tap, patches = ZOOS[name]
    assert_read(build, tap, patches, SIZE)


LARGE: dict[str, tuple[Callable[[], nn.Module], str, int]] = {
    "vit_b_16": (lambda: pytest.importorskip("torchvision.models").vit_b_16(), "encoder.layers.encoder_layer_10", 196),
    "registers": (lambda: timm_model("vit_small_patch14_reg4_dinov2", img_size=224), "blocks.0", 256),
    "beit": (lambda: timm_model("beit_base_patch16_224", global_pool="token"), "blocks.0", 196),
    "eva": (lambda: timm_model("eva02_tiny_patch14_224", global_pool="token"), "blocks.0", 256),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_ones(name):
    declare_missing_operators()
    build, tap, patches = LARGE[name]
    assert_read(build, tap, patches, 224)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (None, "it averages one position that it picks from many"),  # transformers has it as a list of one token
        ("class", "takes all tokens together, not the class token alone"),
    ],
)
def test_a_list_of_one_class_token(tokens, message):
    transformers = pytest.importorskip("transformers")
    config = transformers.CvtConfig(embed_dim=[8, 16, 24], num_heads=[1, 2, 3], depth=[1, 2, 3], num_labels=CLASSES)
    model = transformers.CvtForImageClassification(config).eval()
    with pytest.raises(ValueError, match=message):
        Backbone(model, tokens=tokens)(images())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "deit_tiny_distilled_patch16_224",
            "its logits join those of several last layers",
        ),  # two tokens, a head for each
        ("cait_xxs24_224", "its patches cannot be told from its class token"),
    ],
)
def test_tokens_that_cannot_be_read(name, message):
    model = timm_model(name, img_size=SIZE).eval()
    with pytest.raises(ValueError, match=message):
        Backbone(model, tokens="class")(images())


def assert_read(build: Callable[[], nn.Module], tap: str, patches: int, size: int) -> None:
    torch.manual_seed(0)
    model = build().eval()
    for parameter in model.parameters():
        if not parameter.any():  # a head of zeros, or a token
            nn.init.normal_(parameter, std=0.1)
    batch = torch.randn((2, 3, size, size), generator=torch.Generator().manual_seed(0))
    backbone = Backbone(model, tokens="class")
    activations = backbone(batch)
    assert activations.positions.tolist() == [patches] * 2
    found = str(backbone.describe()["tap"])
    assert tap in found
    captured: list[Tensor] = []
    with torch.no_grad():
        hook = model.get_submodule(found).register_forward_hook(lambda m, i, o: captured.append(o))
        model(batch)
        hook.remove()
    torch.testing.assert_close(activations.max, captured[0][:, -patches:].amax(1), rtol=1e-4, atol=1e-5)
