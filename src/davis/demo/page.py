"""The demo as one self-contained page: pictures, styles and figures are all inside it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from davis import __version__
from davis.atomic import replacing
from davis.demo.gallery import Exhibit
from davis.demo.shipped import CALIBRATION, MODEL, SPECS
from davis.detector import Detector

_WIDTH, _HEIGHT, _BINS = 240, 44, 48
_RINGS = 3  # of a heat map: more cannot be told apart at 224 pixels
_MANY = 6  # pictures of yours, beyond which they are shown small

_TITLE = "davis: should this answer be trusted?"


def write_page(exhibits: Sequence[Exhibit], detectors: Mapping[str, Detector], file: Path) -> Path:
    """Write the gallery, whole or not at all."""
    jinja = _jinja2()
    folder = resources.files("davis.demo")
    environment = jinja.Environment(autoescape=True, undefined=jinja.StrictUndefined, trim_blocks=True)
    template = environment.from_string((folder / "page.html.j2").read_text(encoding="utf-8"))
    plots = {pool: _Plot(each, [e.explanations[pool].score for e in exhibits]) for pool, each in detectors.items()}
    text = template.render(
        title=_TITLE,
        css=(folder / "page.css").read_text(encoding="utf-8"),
        model=MODEL,
        specs=SPECS,
        calibration=CALIBRATION,
        version=__version__,
        tally=tally(exhibits),
        total=sum(exhibit.photograph.shows != "yours" for exhibit in exhibits),
        yours=sum(exhibit.photograph.shows == "yours" for exhibit in exhibits),
        leads=[_led(exhibit) for exhibit in leads(exhibits)],
        rings=_RINGS,
        labelled=any(exhibit.photograph.label is not None for exhibit in exhibits),
        otherwise=sum(exhibit.named_otherwise for exhibit in exhibits),
        sections=[
            (section, [_shown(exhibit, plots) for exhibit in section.members])
            for section in sections(exhibits)
            if section.members
        ],
        width=_WIDTH,
        height=_HEIGHT,
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file, alone=False) as stream:
        stream.write(text.encode("utf-8", errors="backslashreplace"))  # file names need not be text
    return file


def is_page(file: Path) -> bool:
    """Whether a file is such a page, by its title."""
    with file.open("rb") as stream:
        return f"<title>{_TITLE}</title>".encode() in stream.read(1000)


def tally(exhibits: Sequence[Exhibit]) -> list[dict[str, Any]]:
    """How many pictures of each kind every detector accepts."""
    rows = []
    for shows, kind in (("known", "pictures of the 1,000 classes"), ("unknown", "pictures of other things")):
        members = [exhibit for exhibit in exhibits if exhibit.photograph.shows == shows]
        accepted = {pool: sum(exhibit.accepted(pool) for exhibit in members) for pool in SPECS}
        rows.append({"shows": shows, "kind": kind, "count": len(members), "accepted": accepted})
    return rows


def leads(exhibits: Sequence[Exhibit]) -> list[Exhibit]:
    """What shows the point at a glance: a picture that is accepted and one that is refused, where there are such.

    Of known things one that both poolings accept under its right name, of unknown ones one that the maximum alone
    refuses; else the next best. The photographs come in an order that begins with a cat and a brick pavement.
    """
    accepted = [each for each in exhibits if each.accepted("max")]
    refused = [each for each in exhibits if not each.accepted("max")]
    accepted.sort(key=lambda each: (each.photograph.shows != "known", each.named_otherwise, not each.accepted("mean")))
    refused.sort(key=lambda each: (each.photograph.shows != "unknown", not each.accepted("mean")))
    return accepted[:1] + refused[:1]


class Section(NamedTuple):
    """Exhibits with one lesson."""

    title: str
    says: str
    members: list[Exhibit]
    compact: bool = False  # many, and all with the same lesson: small cards, the figures folded away


def sections(exhibits: Sequence[Exhibit]) -> list[Section]:
    """The exhibits by what there is to learn from them: each in one section."""
    of = {
        shows: [each for each in exhibits if each.photograph.shows == shows]
        for shows in ("yours", "known", "between", "unknown")
    }
    accepted = [each for each in of["known"] if each.accepted("max")]
    refused = [each for each in of["unknown"] if not each.accepted("max")]
    labelled = sum(each.photograph.label is not None for each in exhibits)
    decided = [each for each in refused + accepted if each.accepted("mean") != each.accepted("max")]
    return [
        Section(
            "Yours",
            "Your own pictures. What they show is for you to say; they are in no count above.",
            of["yours"],
            compact=len(of["yours"]) > _MANY,
        ),
        Section(
            "Where the pooling decides",
            "The maximum of each channel is right about these: it refuses what shows none of the 1,000 classes and "
            "accepts what shows one. The mean does the opposite.",
            decided,
        ),
        Section(
            "Known things, accepted",
            "The network has learnt what these show.",
            [each for each in accepted if each not in decided and not each.named_otherwise],
            compact=True,
        ),
        Section(
            "Unknown things that both refuse",
            "Far enough from anything the network knows that either pooling will do.",
            [each for each in refused if each not in decided],
        ),
        Section(
            "Failures: accepted, and unknown",
            "They show none of the 1,000 classes and are taken for one. No detector is free of these.",
            [each for each in of["unknown"] if each.accepted("max")],
        ),
        Section(
            "Failures: known and accepted, but named otherwise",
            "The network knows such things, and its answer is not the label that the picture came with (of all "
            f"pictures here {labelled} came with one). A detector says whether a picture is like those that were "
            "learnt, not whether the answer is right.",
            [each for each in accepted if each not in decided and each.named_otherwise],
        ),
        Section(
            "Failures: refused, though known",
            "They show a known class and are refused; by the choice of 95%, about one in twenty is.",
            [each for each in of["known"] if not each.accepted("max")],
        ),
        Section("In between", "Neither plainly known nor plainly unknown; they are in no count above.", of["between"]),
    ]


class _Plot:
    """The distribution of the calibration scores, and where a score stands in it."""

    def __init__(self, detector: Detector, scores: Sequence[float]) -> None:
        if detector.calibration is None:
            raise ValueError(f"the detector {detector.spec!r} is not calibrated; make it anew")
        values = detector.calibration.scores.numpy()
        low, high = min(values[0], *scores), max(values[-1], *scores)
        self.low, self.span = low, (high - low) or 1.0
        counts, edges = np.histogram(values, bins=_BINS, range=(low, high))
        tops = _HEIGHT - 4 - counts / counts.max() * (_HEIGHT - 10)
        steps = [
            f"{self.x(left):.1f},{top:.1f} {self.x(right):.1f},{top:.1f}"
            for left, right, top in zip(edges, edges[1:], tops, strict=False)
        ]
        base = _HEIGHT - 4
        self.outline = f"{self.x(low):.1f},{base} {' '.join(steps)} {self.x(high):.1f},{base}"
        threshold = detector.threshold
        self.threshold = self.x(low if threshold is None else threshold)

    def x(self, score: float) -> float:
        return 6 + float(score - self.low) / float(self.span) * (_WIDTH - 12)


def _led(exhibit: Exhibit) -> dict[str, Any]:
    photograph = exhibit.photograph
    name = photograph.what or photograph.title
    mean, largest = ("accepted" if exhibit.accepted(pool) else "refused" for pool in ("mean", "max"))
    return {
        "picture": _inline(Image.fromarray(exhibit.explanations["max"].picture)),
        "name": name[:1].upper() + name[1:],
        "label": exhibit.label,
        "mean": mean,
        "max": largest,
    }


def _shown(exhibit: Exhibit, plots: Mapping[str, _Plot]) -> dict[str, Any]:
    explanation = exhibit.explanations["max"]
    return {
        "exhibit": exhibit,
        "picture": _inline(Image.fromarray(explanation.picture)),
        "heat": _inline(explanation.draw(channels=_RINGS)),
        "rows": [
            {
                "spec": SPECS[pool],
                "accepted": exhibit.accepted(pool),
                "score": found.score,
                "p": f"p {found.p_text}".replace("<=", "\N{LESS-THAN OR EQUAL TO}"),
                "plot": plots[pool],
                "x": plots[pool].x(found.score),
            }
            for pool, found in sorted(exhibit.explanations.items(), reverse=True)
        ],
    }


def _inline(image: Image.Image) -> str:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _jinja2() -> Any:
    try:
        import jinja2
    except ModuleNotFoundError:
        raise ModuleNotFoundError("jinja2 is not installed: pip install 'davis-ood[demo]'", name="jinja2") from None
    return jinja2
