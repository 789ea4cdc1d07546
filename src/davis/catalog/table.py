"""The datasets of the paper and their stand-ins: what they are, what is expected where, and the preprocessing."""

from __future__ import annotations

from dataclasses import dataclass

from davis.data import Preprocessing
from davis.sets import Split

CIFAR = Preprocessing(size=32, mean=(0.491, 0.482, 0.447), std=(0.247, 0.244, 0.262))
PREPROCESSING = {
    "cifar10": CIFAR,
    "cifar100": CIFAR,
    "imagenet": Preprocessing(size=224, resize=256),
    "imagenet_crops": Preprocessing(size=224),  # the pictures were resized to 256 and cut when the set was made
}
"""What the paper's code does to the pictures of a benchmark, its OOD sets among them, by ID dataset."""

_CIFARS = ("cifar10", "cifar100")
_RESEARCH = "non-commercial research"
_MADE = "not distributed; made from the named source"
_CROPS = "not distributed: see docs/imagenet.md"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """One image set: what it is, where it is looked for, and what the paper does with it."""

    name: str
    what: str
    count: int
    places: tuple[str, ...]  # files or folders under the data directory; the first that is there is read
    licence: str
    source: str
    classes: int = 0  # 0: labels mean nothing or are absent
    split: Split | None = None  # which half, where a place holds both
    fetch: str = ""  # the name that `fetch.get` knows it by
    inside: tuple[str, ...] = ()  # benchmarks in which it is in-distribution
    near: tuple[str, ...] = ()  # benchmarks in which it is near-OOD
    far: tuple[str, ...] = ()  # benchmarks in which it is far-OOD
    instead_of: str = ""  # the published set that it stands in for, and is not

    @property
    def role(self) -> str:
        """In words."""
        parts = (("ID", self.inside), ("near-OOD", self.near), ("far-OOD", self.far))
        return "; ".join(f"{role} of {', '.join(benchmarks)}" for role, benchmarks in parts if benchmarks)

    @property
    def origin(self) -> str:
        """Where it is to be had; the same for all that come together."""
        return f"davis data get {self.fetch}" if self.fetch else self.source

    @property
    def how(self) -> str:
        """What to do to have it."""
        return self.origin if self.fetch else f"{self.origin}; put it at {self.places[0]}"


def _halves(
    family: str, what: str, counts: tuple[int, int], places: tuple[str, ...], *, classes: int, licence: str, source: str
) -> list[Dataset]:
    inside = (family,) if family in PREPROCESSING else ()
    near = tuple(other for other in _CIFARS if inside and other != family)
    train, test = (
        Dataset(
            name=f"{family}_{split}",
            what=f"{what}, {split} images",
            count=count,
            places=(f"{family}_{split}.npz", *places),
            licence=licence,
            source=source,
            classes=classes,
            split=split,
            fetch=family,
            inside=inside,
            near=near if split == "test" else (),
        )
        for split, count in zip(_SPLITS, counts, strict=True)
    )
    return [train, test]


_SPLITS: tuple[Split, Split] = ("train", "test")
_KRIZ = "https://www.cs.toronto.edu/~kriz/cifar.html"
_MOS = "http://pages.cs.wisc.edu/~huangrui/imagenet_ood_dataset"
_DROPBOX = "https://www.dropbox.com/s"
_OPENOOD = "https://github.com/Jingkang50/OpenOOD"

DATASETS = {
    dataset.name: dataset
    for dataset in [
        *_halves(
            "cifar10",
            "CIFAR-10",
            (50_000, 10_000),
            ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
            classes=10,
            licence="none stated",
            source=_KRIZ,
        ),
        *_halves(
            "cifar100",
            "CIFAR-100, fine labels",
            (50_000, 10_000),
            ("cifar-100-python", "cifar-100-python.tar.gz"),
            classes=100,
            licence="none stated",
            source=_KRIZ,
        ),
        *_halves(
            "mnist",
            "MNIST digits",
            (60_000, 10_000),
            ("mnist", "MNIST/raw"),
            classes=10,
            licence="CC BY-SA 3.0",
            source="http://yann.lecun.com/exdb/mnist",
        ),
        *_halves(
            "fashion_mnist",
            "Fashion-MNIST",
            (60_000, 10_000),
            ("fashion-mnist", "FashionMNIST/raw"),
            classes=10,
            licence="MIT",
            source="https://github.com/zalandoresearch/fashion-mnist",
        ),
        Dataset(
            name="imagenet",
            what="ILSVRC-2012 validation, one folder per class (WordNet id)",
            count=50_000,
            places=("imagenet/val",),
            licence=_RESEARCH,
            source="https://image-net.org/download (after registration)",
            classes=1000,
            inside=("imagenet",),
        ),
        Dataset(
            name="svhn",
            what="SVHN test digits; the paper draws 10,000 of them at random",
            count=26_032,
            places=("svhn_test.npz", "svhn/test"),
            licence="non-commercial use",
            source="http://ufldl.stanford.edu/housenumbers/test_32x32.mat (docs/data.md turns it into .npz)",
            classes=10,
            far=_CIFARS,
        ),
        Dataset(
            name="textures",
            what="DTD, all 47 classes",
            count=5_640,
            places=("dtd/images", "dtd-r1.0.1.tar.gz"),
            licence="research",
            source="https://www.robots.ox.ac.uk/~vgg/data/dtd/download/dtd-r1.0.1.tar.gz",
            classes=47,
            far=(*_CIFARS, "imagenet"),
        ),
        Dataset(
            name="places365",
            what="10,000 of the 328,500 test images of Places365, drawn at random",
            count=10_000,
            places=("places365",),
            licence="research and education",
            source="http://data.csail.mit.edu/places/places365/test_256.tar",
            far=_CIFARS,
        ),
        Dataset(
            name="lsun_crop",
            what="LSUN test scenes, random crops (ODIN's LSUN-C)",
            count=10_000,
            places=("LSUN", "LSUN.tar.gz"),
            licence="none stated",
            source=f"{_DROPBOX}/fhtsw1m3qxlwj6h/LSUN.tar.gz",
            far=_CIFARS,
        ),
        Dataset(
            name="lsun_resize",
            what="LSUN test scenes, resized (ODIN's LSUN-R)",
            count=10_000,
            places=("LSUN_resize", "LSUN_resize.tar.gz"),
            licence="none stated",
            source=f"{_DROPBOX}/moqh2wh8696c3yl/LSUN_resize.tar.gz",
            far=_CIFARS,
        ),
        Dataset(
            name="isun",
            what="iSUN, resized",
            count=8_925,
            places=("iSUN", "iSUN.tar.gz"),
            licence="none stated",
            source=f"{_DROPBOX}/ssz7qxfqae0cca5/iSUN.tar.gz",
            far=_CIFARS,
        ),
        Dataset(
            name="tiny_imagenet",
            what="Tiny-ImageNet validation; shares classes with CIFAR",
            count=10_000,
            places=("tiny-imagenet-200/val/images", "tiny_imagenet.npz"),
            licence=_RESEARCH,
            source="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            near=_CIFARS,
        ),
        Dataset(
            name="inaturalist",
            what="iNaturalist plants, the subset of MOS",
            count=10_000,
            places=("iNaturalist", "iNaturalist.tar.gz"),
            licence="of each photograph; mostly non-commercial",
            source=f"{_MOS}/iNaturalist.tar.gz",
            far=("imagenet",),
        ),
        Dataset(
            name="sun",
            what="SUN scenes, the subset of MOS",
            count=10_000,
            places=("SUN", "SUN.tar.gz"),
            licence="research",
            source=f"{_MOS}/SUN.tar.gz",
            far=("imagenet",),
        ),
        Dataset(
            name="places",
            what="Places scenes, the subset of MOS",
            count=10_000,
            places=("Places", "Places.tar.gz"),
            licence="research and education",
            source=f"{_MOS}/Places.tar.gz",
            far=("imagenet",),
        ),
        Dataset(
            name="openimage_o",
            what="OpenImage-O, all of it (OpenOOD tests on 15,869 of them)",
            count=17_632,
            places=("openimage_o",),
            licence="CC BY 2.0 (OpenImages)",
            source=f"{_OPENOOD} (its download script)",
            far=("imagenet",),
        ),
        Dataset(
            name="ssb_hard",
            what="SSB-Hard: ImageNet-21k classes close to those of ImageNet-1k",
            count=49_000,
            places=("ssb_hard",),
            licence=_RESEARCH,
            source=f"{_OPENOOD} (its download script)",
            near=("imagenet",),
        ),
        Dataset(
            name="ninco",
            what="NINCO: cleaned of ImageNet-1k objects by hand, 64 classes",
            count=5_879,
            places=("ninco",),
            licence="of each source",
            source="https://github.com/j-cb/NINCO",
            near=("imagenet",),
        ),
        Dataset(
            name="imagenet_o",
            what="ImageNet-O: ImageNet-21k images that ResNet-50 takes for ImageNet-1k",
            count=2_000,
            places=("imagenet-o", "imagenet-o.tar"),
            licence=_RESEARCH,
            source="https://github.com/hendrycks/natural-adv-examples",
            near=("imagenet",),
        ),
        Dataset(
            name="svhn_cropped",
            what="SVHN test digits cut out of the full-frame pictures; not the pixels of test_32x32.mat",
            count=10_000,
            places=("svhn.npz",),
            licence="non-commercial use",
            source=_MADE,
            far=_CIFARS,
            instead_of="svhn",
        ),
        Dataset(
            name="dtd10",
            what="10 of the 47 DTD classes at 32 px; never report as Textures",
            count=1_200,
            places=("dtd10.npz",),
            licence="research",
            source=_MADE,
            far=_CIFARS,
            instead_of="textures",
        ),
        Dataset(
            name="miniplaces",
            what="MIT's 100-category subset of Places, validation, at 32 px; never report as Places365",
            count=10_000,
            places=("miniplaces.npz",),
            licence="research and education",
            source=_MADE,
            far=_CIFARS,
            instead_of="places365",
        ),
        Dataset(
            name="lsuncats_crop",
            what="9 of LSUN's categories taken from MiniPlaces, random 32 px crops; never report as LSUN",
            count=8_100,
            places=("lsuncats_crop.npz",),
            licence="research and education",
            source=_MADE,
            far=_CIFARS,
            instead_of="lsun_crop",
        ),
        Dataset(
            name="imagenet_crops",
            what="1,500 ILSVRC-2012 validation images, 224 px crops as WebP, by class; never report as ImageNet",
            count=1_500,
            places=("imagenet_crops/val",),
            licence=_RESEARCH,
            source=_CROPS,
            classes=1000,
            inside=("imagenet_crops",),
            instead_of="imagenet",
        ),
        Dataset(
            name="dtd10_crops",
            what="half of 10 DTD classes, 224 px crops as WebP; never report as Textures",
            count=600,
            places=("imagenet_crops/dtd",),
            licence="research",
            source=_CROPS,
            far=("imagenet_crops",),
            instead_of="textures",
        ),
        Dataset(
            name="sun5_crops",
            what="half of five SUN scenes, 224 px crops as WebP; never report as SUN",
            count=500,
            places=("imagenet_crops/sun5",),
            licence="research",
            source=_CROPS,
            far=("imagenet_crops",),
            instead_of="sun",
        ),
        Dataset(
            name="plantdoc_crops",
            what="a sixth of PlantDoc's leaves, 224 px crops as WebP; never report as iNaturalist",
            count=427,
            places=("imagenet_crops/plantdoc",),
            licence="CC BY 4.0",
            source=_CROPS,
            far=("imagenet_crops",),
            instead_of="inaturalist",
        ),
    ]
}
