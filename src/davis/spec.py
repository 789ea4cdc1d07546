"""The spec language: a detector as one line of text, and back.

spec   = branch ('|' branch)*        one branch today; '|' will fuse whole detectors
branch = term ('+' term)*            order: perturb, pool, shapes, head, score
term   = name [ '(' key=value (',' key=value)* ')' ]
value  = number | true | false | none | word | '[' number (',' number)* ']'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import pairwise

from davis.branch import Branch
from davis.stages import REGISTRY, Linear, Mean, Stage
from davis.stages.base import Value

ORDER = ("perturb", "pool", "shape", "head", "score")

_TERM = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*(?:\((?P<settings>[^()]*)\))?\s*")
_SETTING = re.compile(r"\s*(?P<key>[A-Za-z_]\w*)\s*=\s*(?P<value>\[[^\[\]]*\]|[^,\[\]=]+?)\s*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def parse(text: str) -> list[Branch]:
    """The branches that a spec names, unfitted; most specs have one.

    >>> parse("max + scale(p=85) + energy(t=2)")[0].text()
    'max + scale + energy(t=2)'
    """
    if not isinstance(text, str):
        raise TypeError(f"a spec is text such as 'max + energy', got {type(text).__name__}")
    if not text.strip():
        raise ValueError("the spec is empty; write a score at least, such as 'energy' or 'max + energy'")
    return [_branch(part, text) for part in text.split("|")]


def write(branches: Iterable[Branch]) -> str:
    """The one spelling of a detector: pool shown, plain head and default settings left out."""
    return " | ".join(branch.text() for branch in branches)


def canonical(text: str) -> str:
    """The one spelling of a spec.

    >>> canonical("energy")
    'mean + energy'
    """
    return write(parse(text))


def _branch(part: str, text: str) -> Branch:
    return Branch(_in_order([_stage(term, text) for term in _joined(part.split("+"))], text))


def _joined(terms: Iterable[str]) -> list[str]:
    """Terms cut at '+', with those put together again that were cut inside brackets (t=1e+3)."""
    whole: list[str] = []
    for term in terms:
        if whole and whole[-1].count("(") > whole[-1].count(")"):
            whole[-1] += "+" + term
        else:
            whole.append(term)
    return whole


def _stage(term: str, text: str) -> Stage:
    match = _TERM.fullmatch(term)
    if match is None:
        raise ValueError(f"cannot read {term.strip()!r} in {text!r}; a term is name or name(key=value, ...)")
    name = match["name"]
    if name not in REGISTRY:
        raise ValueError(f"unknown stage {name!r} in {text!r}; {_suggest(name, REGISTRY)}")
    stage = REGISTRY[name]
    known = stage.parameters_of()
    settings: dict[str, Value] = {}
    for key, value in _settings(match["settings"], text):
        if key not in known:
            allowed = _suggest(key, known) if known else f"{name} takes none"
            raise ValueError(f"unknown setting {key!r} of {name} in {text!r}; {allowed}")
        if key in settings:
            raise ValueError(f"{name} has {key!r} twice in {text!r}")
        settings[key] = value
    try:
        return stage(**settings)
    except ValueError as error:
        raise ValueError(f"{error}, in {text!r}") from None


def _settings(body: str | None, text: str) -> list[tuple[str, Value]]:
    if body is None or not body.strip():
        return []
    parts = re.split(r",(?![^\[]*\])", body)
    settings = []
    for part in parts:
        match = _SETTING.fullmatch(part)
        if match is None:
            raise ValueError(f"cannot read {part.strip()!r} in {text!r}; settings are written key=value, as in p=85")
        settings.append((match["key"], _value(match["value"], text)))
    return settings


def _value(word: str, text: str) -> Value:
    if word.startswith("["):
        parts = [_value(part.strip(), text) for part in word[1:-1].split(",")]
        numbers = tuple(part for part in parts if isinstance(part, int | float) and not isinstance(part, bool))
        if len(numbers) != len(parts):
            raise ValueError(f"{word} in {text!r} must be a list of numbers")
        return numbers
    if word in ("true", "false"):
        return word == "true"
    if word == "none":
        return None
    if _NUMBER.fullmatch(word):
        number = float(word)
        return int(number) if number.is_integer() and abs(number) < 1e15 else number
    return word


def _in_order(stages: list[Stage], text: str) -> list[Stage]:
    """The stages with pool and head filled in, or an error where they cannot follow one another."""
    for before, after in pairwise(stages):
        if ORDER.index(before.kind) > ORDER.index(after.kind):
            raise ValueError(
                f"{before.name} ({before.kind}) stands before {after.name} ({after.kind}) in {text!r}; "
                f"the order is {', '.join(ORDER)}"
            )
    for kind in ("perturb", "pool", "head", "score"):
        names = [stage.name for stage in stages if stage.kind == kind]
        if len(names) > 1:
            raise ValueError(f"{text!r} has {len(names)} stages of kind {kind} ({', '.join(names)}); one is allowed")
    kinds = [stage.kind for stage in stages]
    if "score" not in kinds:
        raise ValueError(f"{text!r} ends without a score; append one, such as '+ energy'")
    defaults = [stage for kind, stage in (("pool", Mean), ("head", Linear)) if kind not in kinds]
    return sorted([*stages, *(stage() for stage in defaults)], key=lambda stage: ORDER.index(stage.kind))


def _suggest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name.lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
