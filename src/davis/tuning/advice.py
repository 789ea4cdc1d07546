"""Recommend: the composition for a network and its images, picked by tuning on those images alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from davis import spec as language
from davis.backbone import Backbone
from davis.batches import Batches
from davis.data import Preprocessing
from davis.statistics import CAPACITY
from davis.tuning.bootstrap import Metric
from davis.tuning.grid import expand
from davis.tuning.proxies import parse_proxies
from davis.tuning.search import observe, tune_from_activations
from davis.tuning.surface import Tuning

PROXY = "mix, blur, colour"
"""The stand-ins whose choice loses least on real OOD images, far and near together (benchmarks/proxies.md)."""

_POOLS = "{max, davis(gamma={0.5, 1, 2, 3})}"
FUSIONS = ("max + dice + energy | max + scale + energy | energy | knn | fdbd", "max + dice + energy | energy | knn")
SHAPED = (
    f"{_POOLS} + dice(p={{70, 90}}) + energy",
    f"{_POOLS} + {{scale(p={{85, 90}}), ash_s(p={{85, 90}}), react(p={{98, 99}})}} + energy",
)
PLAIN = (f"{{mean, {_POOLS}}} + energy",)
NEIGHBOURS = ("{mean, max, davis(gamma={1, 2})} + knn(k={10, 50})",)
SIGNED = ("{max(signed=true), davis(gamma={1, 3}, signed=true)} + energy",)
"""Tried beside the others where channels have negative means (benchmarks/signed_maps.md)."""


@dataclass(frozen=True)
class Recommendation:
    """A detector for one network, why, and the table that it was picked from."""

    spec: str
    why: str
    tuning: Tuning

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {"spec": self.spec, "why": self.why, "tuning": self.tuning.to_dict()}

    def __str__(self) -> str:
        """What to read; the whole table is ``tuning``."""
        return "\n".join((self.spec, self.why, *(f"warning: {each}" for each in self.tuning.warnings)))


def recommend(
    model: nn.Module | Backbone,
    id_batches: Batches,
    *,
    preprocessing: Preprocessing | None = None,
    proxy: str | Iterable[str] = PROXY,
    select: Metric = "auroc",
    share: float = 0.3,
    capacity: int = CAPACITY,
    seed: int = 0,
) -> Recommendation:
    """The composition that suits a network, from in-distribution images it was not trained on.

    A random ``share`` of the images is held out and compared with what the ``proxy`` makes of it; the rest is fitted
    on. Give the choice to ``Detector`` and fit that on all images. Proxies are made in the colours of pictures, so
    ``preprocessing`` must be that of the batches; it is ImageNet's where none is given.
    """
    if not 0 < share < 1:
        raise ValueError(f"the share to hold out must lie between 0 and 1, got {share}")
    backbone = Backbone.wrap(model)
    specs, signed = candidates(backbone.model), expand(SIGNED)
    reads = frozenset[str]().union(*(branch.reads for spec in (*specs, *signed) for branch in language.parse(spec)))
    seen = observe(
        backbone,
        id_batches,
        proxies=parse_proxies(proxy),
        preprocessing=preprocessing or Preprocessing(),
        statistics=reads,
        share=share,
        seed=seed,
    )
    if not seen.rest or not seen.clean:
        raise ValueError(f"too few images to hold out a share of {share} and fit on the rest; give more")
    if any((activations.mean < 0).any() for activations, _ in seen.rest):
        specs += signed
    tuning = tune_from_activations(
        backbone,
        fitted=seen.rest,
        clean=seen.clean,
        proxied=seen.proxied,
        grid=specs,
        select=select,
        capacity=capacity,
        seed=seed,
    )
    return Recommendation(tuning.choice, _why(backbone.model, tuning), tuning)


def _why(model: nn.Module, tuning: Tuning) -> str:
    kind = (
        "normalises by layer, so its features are signed: neighbours and plain energies"
        if _normalises_by_layer(model)
        else "does not normalise by layer: shaped and plain energies and neighbours"
    )
    return f"{type(model).__name__} {kind} were tried. {tuning.sentences()[0]}"


def candidates(model: nn.Module) -> list[str]:
    """The few compositions worth trying on a network, the likeliest first.

    ReAct, ASH, SCALE and DICE are made for features that are not negative, as those of a network with ReLU and batch
    norm; for networks with layer norm the DAVIS paper advises neighbours.
    """
    likely = (*NEIGHBOURS, *PLAIN) if _normalises_by_layer(model) else (*FUSIONS, *SHAPED, *PLAIN, *NEIGHBOURS)
    return expand(likely)


def _normalises_by_layer(model: nn.Module) -> bool:
    """Whether it is a network of the LayerNorm kind, for which the DAVIS paper advises neighbours."""
    kinds = [type(module).__name__ for module in model.modules()]
    layers, batches = (sum(word in kind for kind in kinds) for word in ("LayerNorm", "BatchNorm"))
    return layers > batches
