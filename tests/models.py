"""Small classifiers for the tests."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES, CHANNELS = 5, 24


class SmallNet(nn.Module):
    """Convolution, batch norm, ReLU, average pooling, dropout, linear."""

    def __init__(self, classes: int = CLASSES, channels: int = CHANNELS) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, channels, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        activations = torch.relu(self.norm(self.conv(images)))
        return self.head(self.drop(activations.mean((2, 3))))


class MapNet(nn.Module):
    """A classifier whose last map is its input."""

    def __init__(self, channels: int = CHANNELS, classes: int = CLASSES) -> None:
        super().__init__()
        self.body = nn.Identity()
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))


def small_net(seed: int = 0) -> SmallNet:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = SmallNet()
        model.norm.running_mean.uniform_(-0.5, 0.5)
        model.norm.running_var.uniform_(0.5, 2)
    return model.eval()


def map_net(seed: int = 0, channels: int = CHANNELS) -> MapNet:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MapNet(channels).eval()


def settled(model: nn.Module, *shape: int) -> nn.Module:
    """The model with batch norms that have seen images of a shape and no head of zeros.

    An untrained network gives every image the same logits, and those cannot be checked.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    generator = torch.Generator().manual_seed(9)
    noise = torch.randn((4, *shape), generator=generator) * torch.tensor([0.5, 1, 2, 1]).view(-1, *[1] * len(shape))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for parameter in model.parameters():
            if parameter.ndim == 2 and not parameter.any():
                parameter.normal_(std=0.05)
        for norm in norms:
            norm.momentum = 1.0
        model.train()(noise)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    return model.eval()


def photos(count: int, seed: int = 0, size: int = 12) -> Tensor:
    return torch.randn((count, 3, size, size), generator=torch.Generator().manual_seed(seed))


def maps(count: int, seed: int = 0, channels: int = CHANNELS, size: int = 3) -> Tensor:
    return torch.randn((count, channels, size, size), generator=torch.Generator().manual_seed(seed)).relu()


# One detector for every score, shape, head and pool that the language has.
EVERY_SPEC = [
    "mean + energy",
    "max + energy(t=2)",
    "davis(gamma=0.5) + energy",
    "max(signed=true) + energy",
    "davis(gamma=0.5, signed=true) + energy",
    "unified(gamma=0.5) + energy",
    "median + energy",
    "entropy + energy",
    "msp",
    "maxlogit",
    "gen(m=3)",
    "gradnorm",
    "lts(p=80)",
    "knn(k=5)",
    "max + knn(k=5, normalize=false, reduction=mean)",
    "mahalanobis",
    "vim",
    "nnguide(k=5, ratio=0.5)",
    "fdbd",
    "nci",
    "caref",
    "cadref",
    "cadref(logit=gen)",
    "optfs",
    "optfs(score=energy)",
    "gradorth",
    "combood(k=5)",
    "react(p=80) + energy",
    "ash_s(p=60) + energy",
    "ash_p(p=60) + energy",
    "ash_b(p=60) + energy",
    "scale(p=60) + energy",
    "scale(p=60, rule=quantile_higher) + energy",
    "bats(lam=1) + energy",
    "laps(lam=1.5, m=0.5, n=0.3) + energy",
    "dice(p=40) + energy",
    "max + react(p=90) + dice(p=40) + vim",
    "davis(gamma=2) + ash_s(p=60) + mahalanobis",
]
PIXEL_SPECS = [
    "odin(eps=0.01) + mean + msp(t=1000)",
    "odin(eps=0.01, second_pass=gap) + max + msp(t=1000)",
    "odin(eps=0.01) + davis(gamma=0.5) + react(p=90) + msp(t=10)",
    "adascale_a(k_shift=10, k_correction=20)",
    "max + adascale_l(k_shift=10, k_correction=20)",
]
