"""Real photographs that come inside scikit-image's and scikit-learn's wheels; nothing is downloaded."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

Shows = Literal["known", "between", "unknown"]  # one of ImageNet's 1,000 classes, something near, nothing of the kind


class Photograph(NamedTuple):
    """A picture, and what a person sees in it."""

    name: str
    file: str  # inside its package
    shows: Shows
    what: str


_SCIKIT_IMAGE = (
    Photograph("chelsea", "chelsea.png", "known", "a cat"),
    Photograph("coffee", "coffee.png", "known", "a cup of espresso"),
    Photograph("camera", "camera.png", "known", "a man with a camera on its tripod"),
    Photograph("motorcycle", "motorcycle_left.png", "known", "a motorcycle in a garage"),
    Photograph("rocket", "rocket.jpg", "known", "a rocket before its launch"),
    Photograph("astronaut", "astronaut.png", "between", "an astronaut; ImageNet has no people"),
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
_PLACES = (("skimage", "data", _SCIKIT_IMAGE), ("sklearn", "datasets/images", _SCIKIT_LEARN))
_ORDER = ("known", "between", "unknown")


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
    return sorted(found, key=lambda each: _ORDER.index(each[0].shows))
