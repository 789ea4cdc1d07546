"""The model families that discovery is tested on: for reading and for tests. Discovery itself needs no names."""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    """A family of a model zoo and one small model of it, as ``davis fit`` takes it."""

    zoo: str
    family: str
    example: str
    size: int  # of the images that the test shows it


def _of(zoo: str, examples: dict[str, str], *, size: int = 96) -> tuple[Family, ...]:
    return tuple(Family(zoo, family, example, size) for family, example in examples.items())


FAMILIES = (
    *_of(
        "torchvision",
        {
            "ResNet": "resnet18",
            "ResNeXt": "resnext50_32x4d",
            "DenseNet": "densenet121",
            "MobileNetV2": "mobilenet_v2",
            "MobileNetV3": "mobilenet_v3_small",
            "EfficientNet": "efficientnet_b0",
            "EfficientNetV2": "efficientnet_v2_s",
            "ConvNeXt": "convnext_tiny",
            "Swin": "swin_t",
            "SwinV2": "swin_v2_t",
            "RegNet": "regnet_y_400mf",
            "ShuffleNetV2": "shufflenet_v2_x0_5",
            "MNASNet": "mnasnet0_5",
            "GoogLeNet": "googlenet",
        },
    ),
    *_of("torchvision", {"MaxViT": "maxvit_t"}, size=224),
    *_of(
        "timm",
        {
            "ResNet": "timm:resnet18",
            "ResNetV2": "resnetv2_50",
            "DenseNet": "timm:densenet121",
            "MobileNetV3": "mobilenetv3_small_050",
            "EfficientNet": "timm:efficientnet_b0",
            "EfficientNet-Lite": "tf_efficientnet_lite0",
            "ConvNeXt": "convnext_atto",
            "ConvNeXtV2": "convnextv2_atto",
            "RegNet": "regnetx_002",
            "RepVGG": "repvgg_a0",
            "GhostNet": "ghostnet_050",
            "PoolFormer": "poolformer_s12",
            "EdgeNeXt": "edgenext_xx_small",
            "DLA": "dla34",
            "ReXNet": "rexnet_100",
            "MobileOne": "mobileone_s0",
            "MambaOut": "mambaout_femto",
        },
    ),
    *_of(
        "timm",
        {
            "Swin": "swin_tiny_patch4_window7_224",
            "MobileViT": "mobilevit_xxs",
            "FastViT": "fastvit_t8",
            "MLP-Mixer": "mixer_s32_224",
        },
        size=224,
    ),
)
