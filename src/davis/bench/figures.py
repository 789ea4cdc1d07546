"""The report's figures, as SVG to put into a page: text takes the page's colour, so they read in light and in dark.

Dense marks (points, lines over many channels) are drawn as a picture inside the SVG where that is smaller.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from davis.bench.analysis import Gaps, Values, features, gaps
from davis.bench.results import Results
from davis.metrics import curve
from davis.spec import canonical

ID, OOD = "#2483bd", "#d55e00"  # after Okabe and Ito: told apart by every kind of eye, on white and on black
LINES = ((ID, "-"), (OOD, "--"), ("#009e73", "-."), ("#cc79a7", ":"), ("#e69f00", (0, (5, 1, 1, 1))))

_INK = "#010203"  # stands for the page's text colour
_MANY = 512  # channels from which on a line is smaller as a picture
_BINS = 64
_LABEL = 40  # letters of a legend
_STYLE = {
    "svg.hashsalt": "davis",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.labelsize": 9.0,
    "axes.titlesize": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "savefig.transparent": True,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
}
_STATISTICS = {"mean": "mean μ", "std": "standard deviation σ", "max": "maximum m"}
_EMBEDDING = {"init": "pca", "max_iter": 500, "random_state": 0}


class Picture(NamedTuple):
    """An SVG element and what it shows."""

    svg: str
    caption: str


def optional(module: str) -> Any:
    """A package of the ``bench`` extra, imported when it is needed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"the report needs {error.name}: pip install 'davis-ood[bench]'") from error


def pictures(results: Results, ood: str, chosen: Sequence[str], *, embed: bool) -> dict[str, list[Picture]]:
    """All figures of one OOD set by heading: some detectors' scores, then those of the paper."""
    inside, outside = results.units(results.id), results.units(ood)
    id_scores, ood_scores = results.scores(results.id), results.scores(ood)
    found = gaps(inside, outside, gamma=results.gamma)
    energies = [canonical(f"{pool} + energy") for pool in ("mean", "max", f"davis(gamma={results.gamma:g})")]
    energies = [spec for spec in energies if spec in results.specs]
    both = f"μ + {results.gamma:g}σ"

    def densities(specs: Sequence[str]) -> list[Picture]:
        return [histogram(id_scores[spec], ood_scores[spec], detector=spec, ood=ood) for spec in specs]

    drawn = {
        "Scores of the best detectors": [
            *densities(chosen),
            roc(id_scores, ood_scores, specs=list(dict.fromkeys([*chosen, *energies[:1]])), ood=ood),
        ],
        "Energy before and after DAVIS": densities(energies),
        "Channel statistics": [
            units(inside[key], outside[key], statistic=label, ood=ood) for key, label in _STATISTICS.items()
        ],
        "Separation gap": [
            gap_lines(found, feature=feature, label=label, ood=ood)
            for feature, label in (("m", "m"), ("mu_sigma", both))
        ],
    }
    if embed:
        sides = [features(side, results.gamma) for side in (inside, outside)]
        drawn["t-SNE of single images"] = [
            embedding(*(side[feature] for side in sides), statistic=label, ood=ood)
            for feature, label in (("mu", "μ"), ("m", "m"), ("mu_sigma", both))
        ]
    return {heading: made for heading, made in drawn.items() if made}


def histogram(id_scores: Values, ood_scores: Values, *, detector: str, ood: str) -> Picture:
    """The densities of one detector's scores."""
    both = np.concatenate([id_scores, ood_scores])
    low, high = np.quantile(both, [0.002, 0.998])
    if high - low <= 1e-9 * abs(low):  # equal, or apart by less than bins can be
        high = low + max(1.0, 1e-3 * abs(low))
    edges = np.linspace(low, high, _BINS + 1)

    def draw(axes: Any) -> None:
        for scores, colour, name in ((id_scores, ID, "ID"), (ood_scores, OOD, ood)):
            counts, _ = np.histogram(scores, edges)
            density = counts / len(scores) / np.diff(edges)
            axes.stairs(density, edges, color=colour, fill=True, alpha=0.35)
            axes.stairs(density, edges, color=colour, label=name, linewidth=1.2)
        axes.set(xlabel="score (higher: more in-distribution)", ylabel="density")
        axes.set_yticks([])
        axes.legend()

    return _picture(draw, f"Scores of {detector}: ID against {ood}")


def roc(
    id_scores: Mapping[str, Values], ood_scores: Mapping[str, Values], *, specs: Sequence[str], ood: str
) -> Picture:
    """How many ID images pass against how many OOD images do, as the threshold falls."""

    def draw(axes: Any) -> None:
        axes.axhline(95, color=_INK, linewidth=0.6, alpha=0.5)
        axes.plot([0, 100], [0, 100], color=_INK, linewidth=0.6, alpha=0.5, linestyle=":")
        for spec, (colour, dashes) in zip(specs, LINES, strict=False):
            whole = curve(id_scores[spec], ood_scores[spec])
            passed = np.linspace(0, 1, 201)
            reached = np.interp(passed, np.append(0, whole.ood / whole.ood[-1]), np.append(0, whole.id / whole.id[-1]))
            axes.plot(100 * passed, 100 * reached, color=colour, linestyle=dashes, label=_short(spec), linewidth=1.6)
        axes.set(xlabel=f"{ood} images that pass, %", ylabel="ID images that pass, %", xlim=(0, 100), ylim=(0, 101))
        axes.legend(loc="lower right")

    return _picture(draw, f"ROC curves, {ood}; the line marks 95% of ID images")


def units(inside: NDArray[Any], outside: NDArray[Any], *, statistic: str, ood: str) -> Picture:
    """One statistic per channel, averaged over images; channels sorted by their ID value."""
    order = np.argsort(-inside, kind="stable")

    def draw(axes: Any) -> None:
        for values, colour, name, front in ((inside, ID, "ID", 3), (outside, OOD, ood, 2)):
            axes.plot(
                values[order], color=colour, label=name, linewidth=1.2, zorder=front, rasterized=len(order) > _MANY
            )
        axes.set(xlabel="channel, sorted by ID value", ylabel=statistic)
        axes.legend()

    return _picture(draw, f"{statistic} per channel, ID against {ood}")


def gap_lines(found: Gaps, *, feature: str, label: str, ood: str) -> Picture:
    """The separation gap of a DAVIS feature against that of the mean, channel by channel."""
    wide = getattr(found, feature)
    order = np.argsort(-wide, kind="stable")

    def draw(axes: Any) -> None:
        axes.axhline(0, color=_INK, linewidth=0.6, alpha=0.6)
        for values, colour, name, front in ((wide, ID, f"Δ of {label}", 3), (found.mu, OOD, "Δ of μ", 2)):
            axes.plot(
                values[order], color=colour, label=name, linewidth=1.2, zorder=front, rasterized=len(order) > _MANY
            )
        axes.set(xlabel=f"channel, sorted by the gap of {label}", ylabel="ID − OOD")
        axes.legend()

    return _picture(draw, f"Separation gap of {label} and of μ, {ood}")


def embedding(inside: NDArray[Any], outside: NDArray[Any], *, statistic: str, ood: str) -> Picture:
    """t-SNE of one statistic of some ID and OOD images, seeded; neighbours on the page are neighbours in features."""
    places = _tsne(np.concatenate([inside, outside]).astype(np.float64))

    def draw(axes: Any) -> None:
        for part, colour, name, mark in (
            (places[: len(inside)], ID, "ID", "o"),
            (places[len(inside) :], OOD, ood, "^"),
        ):
            axes.scatter(*part.T, s=7, c=colour, marker=mark, label=name, alpha=0.6, linewidths=0, rasterized=True)
        axes.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
        axes.legend(markerscale=1.8)

    return _picture(draw, f"t-SNE of {statistic}, ID against {ood}")


def _short(text: str) -> str:
    return text if len(text) <= _LABEL else f"{text[: _LABEL - 1]}…"


def _tsne(values: Values) -> Values:
    manifold, decomposition = optional("sklearn.manifold"), optional("sklearn.decomposition")
    # One thread: sums over several depend on who finishes first, and the report must be the same every time.
    with optional("threadpoolctl").threadpool_limits(1):
        count, width = values.shape
        if not values.std(axis=0).any():
            return np.zeros((count, 2))
        reduced = decomposition.PCA(min(30, width, count), random_state=0).fit_transform(values)
        model = manifold.TSNE(**_EMBEDDING, perplexity=min(30.0, (count - 1) / 3))
        places: Values = model.fit_transform(reduced)
    return places


def _picture(draw: Callable[[Any], None], caption: str) -> Picture:
    matplotlib = optional("matplotlib")
    figure_module = optional("matplotlib.figure")
    with matplotlib.rc_context(matplotlib.rcParamsDefault | _STYLE | {"backend": "agg"}):
        figure = figure_module.Figure(figsize=(4.4, 2.9), layout="constrained")
        draw(figure.add_subplot())
        stream = io.StringIO()
        figure.savefig(stream, format="svg", dpi=100, metadata={"Date": None, "Creator": None})
    return Picture(_inline(stream.getvalue(), caption), caption)


def _inline(svg: str, caption: str) -> str:
    """The bare element: no prologue, no namespaces (HTML knows them), no names but those referred to."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", svg, flags=re.S)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"| version="[^"]*"', "", svg).replace("xlink:href", "href")
    used = set(re.findall(r"#(\w+)", svg))
    svg = re.sub(r' id="(\w+)"', lambda found: found[0] if found[1] in used else "", svg)
    svg = svg.replace(_INK, "currentColor")
    svg = re.sub(r' (d|x|y)="[^"]*"', lambda found: _shortened(found[0]), svg)
    svg = re.sub(r' font-family: [^;"]*;| transform="rotate\(-0 [^"]*"', "", svg)  # the page chooses the family
    opening = f' role="img" aria-label="{escape(caption)}">'
    svg = re.sub(r'<svg[^>]*( viewBox="[^"]*")[^>]*>', lambda found: "<svg" + found[1] + opening, svg)
    return re.sub(r">\s+<", "><", re.sub(r"[ \n]+", " ", svg)).strip()


def _shortened(attribute: str) -> str:
    """Coordinates to a tenth of a point; the letter of a straight line goes without saying."""
    attribute = re.sub(r"(\.\d)\d+", r"\1", attribute)
    return attribute if set("CQ") & set(attribute) else attribute.replace(" L ", " ")
