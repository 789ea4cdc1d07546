"""The paper's rows as detector texts: what is published and, where that does not reproduce, what does.

A preset is a pool and a method. Both are tables of rules read from the top: the first rule that fits the data set, the
architecture and the pool gives the text. Nothing here computes; `davis.spec` reads the text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Values = Literal["published", "reproducing"]

_RESNET18 = ("resnet18", "resnet18_silu", "resnet18_gelu", "resnet18_tanh")
_CIFAR = ("densenet101", *_RESNET18, "resnet34", "wrn28_10", "mobilenet_v2")
_IMAGENET = ("resnet50", "densenet121", "mobilenet_v2", "efficientnet_b0", "swin_b", "convnext_base")
ARCHS = {"cifar10": _CIFAR, "cifar100": _CIFAR, "imagenet1k": _IMAGENET}

# Asked for by name, these say why there is no preset.
OUT_OF_SCOPE = {
    "GODIN": "it needs a network trained with its own head; with one, use the score `godin`",
    "CORES": "it reads inner convolution maps, not pooled features, and has no official code",
    "Standard": "it is the untouched classifier of the accuracy tables, not a detector",
    "CIDER": "it is a training objective, not a post-hoc score",
    "SSN": "it is a training objective, not a post-hoc score",
    "OECC": "it trains on outliers, and this library is post-hoc",
    "Outlier Exposure": "it trains on outliers, and this library is post-hoc",
    "Deep Ensembles": "it needs several trained networks",
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A row of the paper as text; `str(preset)` is that text, so a preset goes wherever a spec is wanted."""

    name: str
    id: str
    arch: str
    spec: str
    values: Values
    source: str

    def __str__(self) -> str:
        return self.spec


class _Rule(NamedTuple):
    """A text for one name where `fits`, a pattern over "id/arch/pool", matches."""

    name: str
    text: str
    source: str
    fits: str


_TEXT = "paper, Reproducibility Statement"
_GAMMA = "gamma: paper, Hyperparameter Selection"
_GRID = "gamma: paper, Analysis of the Hyperparameter gamma"
_SUM = "sum: authors' code; gamma as for DAVIS(mu,sigma)"
_ODIN = f"T, eps: {_TEXT}; second pass through GAP, sign(0)=0: authors' code"
_KNN = f"k: {_TEXT}; raw features, mean distance: paper, Description of Baseline Methods"
_OTHER = "gives other numbers on CIFAR DenseNet-101"
_FLOAT64 = "score without hyper-parameters, in float64: the tables' float32 softmax saturates (CIFAR DenseNet-101)"
_STARRED = f"p=70: {_TEXT}; the starred cell of the CIFAR averages is ASH-S"
_UNSIGNED = "softmax shares, as in the authors' code: the text's fail on signs"
_STATISTICS = "paper, Alternate Statistics"
_NONE = "score without hyper-parameters"
_DEFAULT = "default of the original method; the paper gives no value"
_CADREF = "setting of CADRef's code, from which the paper quotes its row"
_MEASURED = "measured against the tables with the authors' CIFAR DenseNet-101"

# Pools by the word that `fits` sees, and how the name of a row spells them.
_PREFIX = {"mean": "", "max": "DAVIS(m)+", "davis": "DAVIS(mu,sigma)+"}
_PREFIX |= {word: f"{word}+" for word in ("unified", "median", "entropy")}
_PREFIX |= {f"gamma{g}": f"DAVIS(mu,{g}sigma)+" for g in ("0.5", "1", "1.5", "2", "3", "4")}

_MODERN = "imagenet1k/(swin_b|convnext_base|efficientnet_b0)/.*"
_SIGNED = ".*/(swin_b|convnext_base|efficientnet_b0|resnet18_.*)/.*"  # last maps with negative values

_POOLS = (
    _Rule("mean", "mean", "", ".*"),
    _Rule("max", "max", "", ".*"),
    _Rule("davis", "davis(gamma=3)", _GAMMA, "cifar.*"),
    _Rule("davis", "davis(gamma=2)", _GAMMA, _MODERN),
    _Rule("davis", "davis(gamma=0.5)", _GAMMA, ".*"),
    _Rule("unified", "unified(gamma=3)", _SUM, "cifar.*"),
    _Rule("unified", "unified(gamma=2)", _SUM, _MODERN),
    _Rule("unified", "unified(gamma=0.5)", _SUM, ".*"),
    _Rule("median", "median", f"{_STATISTICS}; printed there as entropy", "cifar10/densenet101/.*"),
    _Rule("median", "median", _STATISTICS, ".*"),
    _Rule("entropy", "entropy(variant=softmax)", _UNSIGNED, _SIGNED),
    _Rule("entropy", "entropy(variant=paper)", f"{_STATISTICS}; {_OTHER}", ".*"),
    _Rule("gamma0.5", "davis(gamma=0.5)", _GRID, "imagenet1k.*"),
    _Rule("gamma1", "davis", _GRID, ".*"),
    _Rule("gamma1.5", "davis(gamma=1.5)", _GRID, "imagenet1k.*"),
    _Rule("gamma2", "davis(gamma=2)", _GRID, ".*"),
    _Rule("gamma3", "davis(gamma=3)", _GRID, "cifar.*"),
    _Rule("gamma4", "davis(gamma=4)", _GRID, "cifar.*"),
)

# The methods of the paper's text go with both DAVIS pools on every pair, printed in a table or not; energy goes with
# every pool (the ablations); what the paper only quotes goes with the mean.
_GAP, _DAVIS, _TEXT_POOLS = ".*/mean", ".*/(max|davis)", ".*/(mean|max|davis)"

_METHODS = (
    _Rule("MSP", "{pool} + msp", _NONE, _GAP),
    _Rule("MSP", "{pool} + msp", _FLOAT64, _DAVIS),
    _Rule("ODIN", "odin(eps=0.004, second_pass=gap) + {pool} + msp(t=1000)", _ODIN, f"cifar{_TEXT_POOLS}"),
    _Rule("ODIN", "odin(eps=0.0015, second_pass=gap) + {pool} + msp(t=1000)", _ODIN, _TEXT_POOLS),
    _Rule("Energy", "{pool} + energy", _NONE, ".*"),
    _Rule("GradNorm", "{pool} + gradnorm", f"{_NONE}; the text's uniform target gives the same order", _TEXT_POOLS),
    _Rule("KNN", "{pool} + knn(normalize=false, reduction=mean)", f"{_KNN}; {_OTHER}", _TEXT_POOLS),
    _Rule("KNN(davis-paper)", "{pool} + knn(normalize=false, reduction=mean)", _KNN, _TEXT_POOLS),
    _Rule("ReAct", "{pool} + react + energy", f"p=90 without DAVIS: {_TEXT}", _GAP),
    _Rule("ReAct", "{pool} + react(p=95) + energy", f"p=95 with DAVIS: {_TEXT}", _DAVIS),
    _Rule("DICE", "{pool} + dice + energy", _STARRED, f"cifar100/mobilenet_v2{_DAVIS}"),
    _Rule("DICE", "{pool} + dice + energy", f"p=70: {_TEXT}", _TEXT_POOLS),
    _Rule("ReAct+DICE", "{pool} + react + dice + energy", f"each method's p: {_TEXT}", _GAP),
    _Rule("ReAct+DICE", "{pool} + react(p=95) + dice + energy", f"each method's p: {_TEXT}", _DAVIS),
    _Rule("ASH-S", "{pool} + ash_s(p=50) + energy", f"p: {_TEXT}", f".*/efficientnet_b0{_TEXT_POOLS}"),
    _Rule("ASH-S", "{pool} + ash_s(p=70) + energy", f"p: {_TEXT}", f"cifar10/mobilenet_v2{_TEXT_POOLS}"),
    _Rule("ASH-S", "{pool} + ash_s(p=80) + energy", f"p: {_TEXT}", f"cifar.*/(resnet|wrn){_TEXT_POOLS}"),
    _Rule("ASH-S", "{pool} + ash_s(p=80) + energy", f"p with DAVIS: {_TEXT}", f"cifar100/densenet101{_DAVIS}"),
    _Rule("ASH-S", "{pool} + ash_s(p=85) + energy", f"p with DAVIS: {_TEXT}", f"cifar100/mobilenet_v2{_DAVIS}"),
    _Rule("ASH-S", "{pool} + ash_s + energy", f"p=90: {_TEXT}", _TEXT_POOLS),
    # The authors' code counts by a quantile (rule=quantile_higher): at most one channel away from SCALE's own top-k.
    _Rule("SCALE", "{pool} + scale + energy", f"p=85: {_TEXT}; top-k as in SCALE's own code", _TEXT_POOLS),
    _Rule("MaxLogit", "{pool} + maxlogit", _NONE, _GAP),
    _Rule("GEN", "{pool} + gen(m=10)", _CADREF, f"cifar{_GAP}"),
    _Rule("GEN", "{pool} + gen", _DEFAULT, _GAP),
    _Rule("OptFS", "{pool} + optfs(score=energy)", _CADREF, _GAP),
    _Rule("CARef", "{pool} + caref", _NONE, _GAP),
    _Rule("CADRef", "{pool} + cadref", _DEFAULT, _GAP),
    _Rule("ViM", "{pool} + vim", f"D by the feature size: {_DEFAULT}", _GAP),
    _Rule("Mahalanobis", "{pool} + mahalanobis", _DEFAULT, _GAP),
    _Rule("NNGuide", "{pool} + nnguide", f"{_DEFAULT} (ResNet-50: after ReAct)", "imagenet1k/resnet50/mean"),
    _Rule("NNGuide", "{pool} + nnguide", _DEFAULT, _GAP),
    _Rule("fDBD", "{pool} + fdbd", _DEFAULT, _GAP),
    _Rule("NCI", "{pool} + nci", _DEFAULT, _GAP),
    _Rule("BATS", "{pool} + bats + energy", _DEFAULT, f"cifar{_GAP}"),
    _Rule("BATS", "{pool} + bats(lam=1.05) + energy", _DEFAULT, _GAP),
    _Rule("LAPS", "{pool} + laps + energy", "released for ImageNet ResNet-50; no values for other models", _GAP),
    _Rule("LTS", "{pool} + lts", _DEFAULT, _GAP),
    _Rule("AdaSCALE-A", "{pool} + adascale_a", _DEFAULT, _GAP),
    _Rule("AdaSCALE-L", "{pool} + adascale_l", _DEFAULT, _GAP),
    _Rule("CombOOD", "{pool} + combood", _DEFAULT, _GAP),
    _Rule("GradOrth", "{pool} + gradorth", "no official code: this library's reading, experimental", _GAP),
)

# What gives the tables' numbers where the text does not. A tuned percentile holds where it was measured; a reading of
# a formula (KNN, entropy) holds for one code base, so it is offered everywhere.
_REPRODUCING = (
    _Rule("KNN", "{pool} + knn", f"unit norm, k-th neighbour: {_MEASURED}", _TEXT_POOLS),
    _Rule("ReAct", "{pool} + react(p=98) + energy", f"p: {_MEASURED}", f"cifar.*/densenet101{_TEXT_POOLS}"),
    _Rule("ReAct+DICE", "{pool} + react(p=98) + dice + energy", f"p: {_MEASURED}", f"cifar.*/densenet101{_TEXT_POOLS}"),
    _Rule("SCALE", "{pool} + scale(p=90) + energy", f"p: {_MEASURED}", f"cifar10/densenet101{_TEXT_POOLS}"),
    _Rule(
        "entropy",
        "entropy(variant=softmax)",
        f"softmax shares: {_MEASURED}; CIFAR-10 prints it as median",
        f"(?!{_SIGNED}).*",
    ),
)


def preset(name: str, *, id: str, arch: str, values: Values = "published") -> Preset:
    """The paper's row `name` on one in-distribution set and architecture, as a detector text.

    A name is a method or combination, after `DAVIS(m)+` or `DAVIS(mu,sigma)+` where the row has one. Case, spaces,
    hyphens and the order around `+` do not matter; `max` and `davis` are short for the two pools, `mean` for none.
    With `values="reproducing"`, the values that give the table's numbers where the published ones do not; elsewhere
    the published ones, and the preset says so.

    >>> row = preset("DAVIS(mu,sigma)+SCALE", id="imagenet1k", arch="resnet50")
    >>> row.spec, row.values
    ('davis(gamma=0.5) + scale + energy', 'published')
    >>> print(preset("SCALE", id="cifar10", arch="densenet101", values="reproducing"))
    mean + scale(p=90) + energy
    """
    if values not in get_args(Values):
        raise ValueError(f"unknown values {values!r}; known: {', '.join(get_args(Values))}")
    id = _known("id", id, ARCHS, {"imagenet": "imagenet1k"})
    arch = _known(f"arch for {id}", arch, ARCHS[id], _ARCH_ALIASES)
    pool, method = _parse(name)
    found = _compose(pool, method, id, arch, values)
    if found is None:
        offered = [prefix + method for key, prefix in _PREFIX.items() if _compose(key, method, id, arch, values)]
        raise ValueError(
            f"no row {_PREFIX[pool] + method!r} for {id}; known: {', '.join(offered)}; write another pool as a spec"
        )
    return found


def presets(*, id: str | None = None, arch: str | None = None) -> list[Preset]:
    """All rows, published and reproducing, or those of one in-distribution set or architecture.

    >>> [row.spec for row in presets(id="cifar10", arch="densenet101") if row.name == "SCALE"]
    ['mean + scale + energy', 'mean + scale(p=90) + energy']
    """
    ids = ARCHS if id is None else (_known("id", id, ARCHS, {"imagenet": "imagenet1k"}),)
    if arch is not None:
        known = dict.fromkeys(name for each in ids for name in ARCHS[each])
        arch = _known("arch" if id is None else f"arch for {next(iter(ids))}", arch, known, _ARCH_ALIASES)
    return [row for each in ids for name in ARCHS[each] if arch in (None, name) for row in _rows(each, name)]


def _rows(id: str, arch: str) -> Iterator[Preset]:
    for method in dict.fromkeys(rule.name for rule in _METHODS):
        for pool in _PREFIX:
            published = _compose(pool, method, id, arch, "published")
            if published is None:
                continue
            yield published
            reproducing = _compose(pool, method, id, arch, "reproducing")
            if reproducing is not None and reproducing.values == "reproducing":
                yield reproducing


def _compose(pool: str, method: str, id: str, arch: str, values: Values) -> Preset | None:
    """The preset of one pool and method; None where there is no such row."""
    where = f"{id}/{arch}/{pool}"
    instead = _REPRODUCING if values == "reproducing" else ()
    of_pool, of_method = _first(instead + _POOLS, pool, where), _first(instead + _METHODS, method, where)
    if of_pool is None or of_method is None:
        return None
    return Preset(
        name=_PREFIX[pool] + method,
        id=id,
        arch=arch,
        spec=of_method.text.format(pool=of_pool.text),
        values="reproducing" if of_pool in instead or of_method in instead else "published",
        source="; ".join(filter(None, (of_method.source, of_pool.source))),
    )


def _first(rules: tuple[_Rule, ...], name: str, where: str) -> _Rule | None:
    return next((rule for rule in rules if rule.name == name and re.fullmatch(rule.fits, where)), None)


# Reading names. Spelling is squashed to letters, digits, dots and commas; the words left decide.

_ARCH_ALIASES = {"wideresnet2810": "wrn28_10", "convnextb": "convnext_base", "swinb": "swin_b"}
_POOL_WORDS = {word: pool for pool, prefix in _PREFIX.items() if (word := prefix.rstrip("+").lower())}
_POOL_WORDS |= {"max": "max", "davis(max)": "max", "davis": "davis", "mean": "mean", "gap": "mean"}
_ALIASES = {"ash": "ashs", "davispaper": "knn(davispaper)", "mds": "mahalanobis"}


def _squash(text: str) -> str:
    letters = text.lower().replace("μ", "mu").replace("σ", "sigma")
    return re.sub(r"[^a-z0-9.,()+]", "", letters)


def _words(name: str) -> frozenset[str]:
    words = re.split(r"\+(?![^(]*\))", _squash(name))
    return frozenset(_ALIASES.get(word, word) for word in words)


def _parse(name: str) -> tuple[str, str]:
    """The pool and the method that a row name means."""
    words = _words(name)
    for outside, reason in OUT_OF_SCOPE.items():
        if _squash(outside) in words:
            raise ValueError(f"no preset for {outside!r}: {reason}")
    pools = [_POOL_WORDS[word] for word in words if word in _POOL_WORDS]
    methods = {_words(rule.name): rule.name for rule in _METHODS}
    method = methods.get(words.difference(_POOL_WORDS))
    if method is None or len(pools) > 1:
        if words <= _POOL_WORDS.keys():
            raise ValueError(f"{name!r} names pools only; write one pool and a method, as in 'DAVIS(m)+Energy'")
        rows = dict.fromkeys(row.name for row in presets())
        known = f"{_did_you_mean(name, rows)}known methods: {', '.join(methods.values())}"
        raise ValueError(f"unknown row {name!r}; {known}")
    return (pools or ["mean"])[0], method


def _known(what: str, given: str, known: Iterable[str], aliases: dict[str, str]) -> str:
    """The canonical spelling of an id or architecture."""
    known = list(known)
    spelled = {_squash(name): name for name in known}
    found = spelled.get(_squash(given)) or aliases.get(_squash(given))
    if found not in known:
        raise ValueError(f"unknown {what}: {given!r}; {_did_you_mean(given, known)}known: {', '.join(known)}")
    return found


def _did_you_mean(given: str, known: Iterable[str]) -> str:
    spelled = {_squash(name): name for name in known}
    close = difflib.get_close_matches(_squash(given), list(spelled), n=1)
    return f"did you mean {spelled[close[0]]!r}? " if close else ""
