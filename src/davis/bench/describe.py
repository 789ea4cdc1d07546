"""Benchmarks described in TOML: a model, images it knows, images it does not, methods.

::

    name = "my-benchmark"
    methods = ["energy", "max + energy", "davis(gamma=0.5) + scale + energy", "knn(k=50)"]

    [model]
    name = "my_package.models:make"      # or a torchvision, timm or hf: name
    weights = "weights.safetensors"      # or "default", "none"

    [id]
    fit = "images/train"                 # or images = "folder" alone: half of it is fitted on, half tested
    test = "images/val"
    calibration = "images/held"          # optional; beside images, true takes a third of them

    [far]
    textures = "images/textures"

Paths are looked up beside the file, then in the data directory. A word without a slash may be the name of a dataset
(``davis data list``). ``[near]`` holds the OOD sets that are close to the ID set, ``[preprocessing]`` overrides the
model's own, and the method ``presets`` stands for all rows of the paper of the pair that ``paper`` names. A field that
is missing is taken from the benchmark that ``base`` names (a shipped one, or a file beside this one), a table whole.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from davis.backbone import Backbone
from davis.bench.cache import ImageSet
from davis.bench.results import Group
from davis.bench.run import Benchmark
from davis.catalog import DATASETS, MissingDataset, find, open_dataset
from davis.data import OnError, Preprocessing
from davis.models import is_version, load_model, place_on, preprocessing_of
from davis.presets import presets
from davis.sets import FolderSet, open_set
from davis.spec import canonical, parse
from davis.zoo.weights import WEIGHTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FIELDS: dict[str, Any] = {
    "name": str,
    "model": dict,
    "id": dict,
    "near": dict,
    "far": dict,
    "methods": list,
    "without": list,
    "preprocessing": dict,
    "paper": list,
    "gamma": (int, float),
    "pixel_images": int,
    "capacity": int,
}


def shipped() -> dict[str, str]:
    """The benchmarks that come with the package: name -> TOML."""
    folder = resources.files("davis.bench") / "specs"
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    return {name.removesuffix(".toml"): (folder / name).read_text(encoding="utf-8") for name in files}


def read(source: str) -> tuple[dict[str, Any], Path]:
    """The checked description of a shipped benchmark or a file, and the folder that its paths start from."""
    known = shipped()
    if source in known:
        text, folder, place = known[source], Path.cwd(), source
    else:
        file = Path(source)
        if not file.is_file():
            raise FileNotFoundError(f"no benchmark {source!r}: no such file, and shipped are {', '.join(known)}")
        text, folder, place = file.read_text(encoding="utf-8"), file.resolve().parent, str(file)
    return check(_with_base(text, place, folder, known), place), folder


def _with_base(
    text: str, place: str, folder: Path, known: Mapping[str, str], above: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The fields of a description, those that it lacks from its base."""
    try:
        description = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{place} is not TOML: {error}") from None
    base = description.pop("base", None)
    if base is None:
        return description
    if not isinstance(base, str) or base in above:
        raise ValueError(f"{place}: base is {base!r}; it must name another benchmark, one that does not build on this")
    if base not in known and not (folder / base).is_file():
        raise FileNotFoundError(
            f"{place}: no base {base!r}: no such file in {folder}, and shipped are {', '.join(known)}"
        )
    below = known[base] if base in known else (folder / base).read_text(encoding="utf-8")
    return _with_base(below, base, folder, known, (*above, base)) | description


def check(description: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The description, or one line on what is wrong with it."""
    for key, value in description.items():
        if key not in _FIELDS:
            raise ValueError(f"{place}: unknown field {key!r}; known: {', '.join(_FIELDS)}")
        if not isinstance(value, _FIELDS[key]) or isinstance(value, bool):
            raise ValueError(f"{place}: {key} is {value!r}, which is not what that field takes")
    for key in ("name", "model", "id", "methods"):
        if key not in description:
            raise ValueError(f"{place} lacks {key!r}")
    wanted = [
        ("model", "name"),
        *([("id", "images")] if "images" in description["id"] else [("id", "fit"), ("id", "test")]),
    ]
    for key, inner in wanted:
        if not isinstance(description[key].get(inner), str):
            raise ValueError(f"{place}: [{key}] lacks {inner!r}")
    identity = dict(description["id"])
    calibration = identity.pop("calibration", None)
    if {*identity} - {inner for key, inner in wanted if key == "id"}:
        raise ValueError(
            f"{place}: [id] takes fit and test, or images alone, which are then split; and calibration beside them"
        )
    if calibration is True and "images" not in identity:
        raise ValueError(f"{place}: calibration = true takes a third of images; beside fit and test, give a path")
    if {*description["model"]} - {"name", "weights", "title"}:
        raise ValueError(f"{place}: [model] takes name, weights and title, not {', '.join(description['model'])}")
    near, far = description.get("near", {}), description.get("far", {})
    texts = [*description["methods"], *description.get("without", []), *near.values(), *far.values()]
    texts += [*description["model"].values(), *identity.values()]
    texts += [] if calibration is None or calibration is True else [calibration]
    wrong = [value for value in texts if not isinstance(value, str)]
    if wrong:
        raise ValueError(f"{place}: {wrong[0]!r} stands where a text is expected")
    if {*near} & {*far}:
        raise ValueError(f"{place}: {', '.join({*near} & {*far})} is both near and far; choose one")
    if len(description.get("paper", ["id", "arch"])) != 2:
        raise ValueError(f'{place}: paper is [id, arch], such as ["cifar10", "densenet101"]')
    used = [value for value in (*identity.values(), calibration) if isinstance(value, str)]
    if len({*used}) < len(used):
        raise ValueError(
            f"{place}: [id] names the same images twice; give others, or images = FOLDER (and calibration = true) to "
            "split one folder"
        )
    for key, value in {**near, **far}.items():
        if value in used:
            raise ValueError(f"{place}: the OOD set {key} names the ID images {value!r}; give other images")
    for key in ("capacity", "pixel_images"):
        if description.get(key, 1) < 1:
            raise ValueError(f"{place}: {key} must be at least 1")
    if Path(description["name"]).name != description["name"]:
        raise ValueError(f"{place}: {description['name']!r} cannot name a benchmark: a folder is named after it")
    if not {**near, **far}:
        raise ValueError(f"{place} has no OOD set; add a table [far] or [near] with name = path")
    return dict(description)


def build(
    description: Mapping[str, Any],
    folder: Path,
    *,
    data: Path,
    weights: str | None = None,
    device: str | None = None,
    batch: int = 100,
    on_error: OnError | None = None,
) -> Benchmark:
    """The benchmark that a description means, with its model loaded and its images found."""
    specs = methods(description)
    name, chosen = description["model"]["name"], weights or description["model"].get("weights", "default")
    own = chosen not in ("default", "none") and not is_version(chosen)
    given = Path.cwd() / chosen  # on the command line, paths start where the user is
    beside = own and not (weights and given.is_file())
    _check_there(description, [chosen] if beside else [], folder, data)  # before weights are fetched for nothing
    if own:
        chosen = str(_locate(chosen, folder, data) if beside else given)
    with contextlib.redirect_stdout(sys.stderr):  # a user's module may print, and stdout is for results
        model = place_on(load_model(name, weights=chosen), device)
    preprocessing = preprocessing_of(name, model)
    if "preprocessing" in description:
        preprocessing = Preprocessing.from_dict(preprocessing.to_dict() | description["preprocessing"])

    def images(key: str, source: str) -> ImageSet:
        if source in DATASETS:
            return open_dataset(source, preprocessing, data, on_error=on_error)
        return open_set(_locate(source, folder, data), preprocessing, name=key, on_error=on_error)

    ood: dict[str, tuple[ImageSet, Group]] = {}
    groups: tuple[Group, ...] = ("far", "near")
    for group in groups:
        for key, source in description.get(group, {}).items():
            ood[key] = (images(key, source), group)
    fit, calibration, test = _known(description["id"], images)
    _check_apart([part for part in (fit, calibration, test) if part is not None], [part for part, _ in ood.values()])
    paper = description.get("paper")
    return Benchmark(
        name=description["name"],
        model=description["model"].get("title", name),
        backbone=Backbone(model),
        fit=fit,
        calibration=calibration,
        test=test,
        ood=ood,
        specs=specs,
        paper=None if paper is None else (str(paper[0]), str(paper[1])),
        gamma=float(description.get("gamma", 1)),
        pixel_images=description.get("pixel_images", 2000),
        capacity=description.get("capacity", 50_000),
        batch=batch,
    )


def methods(description: Mapping[str, Any]) -> list[str]:
    """The canonical specs, ``presets`` written out, each once."""
    found: dict[str, None] = {}
    for method in description["methods"]:
        if method == "presets":
            if "paper" not in description:
                raise ValueError("the method 'presets' needs paper = [id, arch], the pair whose rows are meant")
            id, arch = description["paper"]
            found.update(dict.fromkeys(row.spec for row in presets(id=id, arch=arch)))
        else:
            found[canonical(method)] = None
    left_out = {canonical(method) for method in description.get("without", [])}
    return [spec for spec in found if spec not in left_out]


def without_pixels(specs: list[str]) -> list[str]:
    """The specs that can be scored from a cache."""
    return [spec for spec in specs if not any(branch.needs_pixels for branch in parse(spec))]


def _known(
    identity: Mapping[str, Any], images: Callable[[str, str], ImageSet]
) -> tuple[ImageSet, ImageSet | None, ImageSet]:
    """The images to fit on, to set thresholds with, and to test with; never the same ones."""
    held = identity.get("calibration")
    if "images" in identity:
        shares = ("fit", "calibration", "test") if held is True else ("fit", "test")
        parts = {name: images(name, identity["images"]) for name in shares}
        for place, (name, part) in enumerate(parts.items()):
            if not isinstance(part, FolderSet):
                raise ValueError(f"{identity['images']!r} is no folder to be split; give [id] fit and test")
            count = len(part)
            part.keep(place, len(parts))
            if len(part) == 0:
                raise ValueError(
                    f"{count} pictures in {identity['images']} are too few for {', '.join(shares)}; give more, or "
                    "images to fit on of their own"
                )
            if identity["images"] in DATASETS:  # which gave all parts its own name
                part.name += f"_{name}"
    else:
        parts = {name: images(_stem(identity[name]) or name, identity[name]) for name in ("fit", "test")}
    if isinstance(held, str):
        parts["calibration"] = images(_stem(held) or "calibration", held)
    names = [part.name for part in parts.values()]
    for name in ("fit", "calibration"):
        if name in parts and names.count(parts[name].name) > 1:
            parts[name].name += f"-{name}"
    return parts["fit"], parts.get("calibration"), parts["test"]


def _check_there(description: Mapping[str, Any], files: Sequence[str], folder: Path, data: Path) -> None:
    """One error for all that is missing, a line for each; how to get it is said once where it is the same."""
    identity = [source for source in description["id"].values() if isinstance(source, str)]
    ood = [source for group in ("far", "near") for source in description.get(group, {}).values()]
    missing: list[MissingDataset] = []
    for source in dict.fromkeys([*files, *identity, *ood]):
        try:
            if source in DATASETS and source not in files:
                find(source, data)
            else:
                _locate(source, folder, data)
        except MissingDataset as error:
            missing.append(error)
    if len(missing) == 1:
        raise missing[0]
    if missing:
        lines = [f"({number}) {each.item}" for number, each in enumerate(missing, 1)]
        wanting: dict[str, list[int]] = {}
        for number, each in enumerate(missing, 1):
            wanting.setdefault(each.origin, []).append(number)
        for origin, numbers in wanting.items():
            if len(numbers) == 1:
                lines[numbers[0] - 1] += f"; {origin}"
            else:
                lines.append(f"{', '.join(f'({number})' for number in numbers)}: {origin}")
        raise MissingDataset(f"{len(missing)} things are missing; the data directory is {data}", lines=lines)


def _check_apart(known: Sequence[ImageSet], unknown: Sequence[ImageSet]) -> None:
    """Refuse pictures that are fitted on and tested, or ID and OOD, at once."""
    files = [(images, _identities(images)) for images in (*known, *unknown)]
    for place, (images, mine) in enumerate(files[: len(known)]):
        for other, theirs in files[place + 1 :]:
            if shared := len(mine & theirs):
                raise ValueError(
                    f"{shared} of the {len(theirs)} pictures of {other.name} are also in {images.name}; "
                    "give images that are not shared"
                )


def _identities(images: ImageSet) -> set[tuple[int, int]]:
    """The files of a folder by device and number, which links and nested folders share; empty for other sets."""
    if not isinstance(images, FolderSet):
        return set()
    found = (file.stat() for file in images.files if file.exists())
    return {(entry.st_dev, entry.st_ino) for entry in found}


def _stem(path: str) -> str:
    return Path(path).name.split(".")[0]


def _locate(path: str, folder: Path, data: Path) -> Path:
    for place in (folder / path, data / path):
        if place.exists():
            return place
    advice = "; `davis train` writes it, or give another by --weights FILE" if Path(path).name == WEIGHTS else ""
    raise MissingDataset(
        f"no {path!r} beside the benchmark ({folder}) or in the data directory ({data}){advice}",
        item=repr(path),
        origin=f"looked for beside the benchmark ({folder}) and in the data directory{advice}",
    )
