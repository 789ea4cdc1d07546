"""The spec language: a detector as one line of text, and back.

spec   = branch ('|' branch)* ['|' term]     '|' fuses whole detectors by their p-values; the last term says how
branch = term ('+' term)*            order: perturb, pool, shapes, head, score
term   = name [ '(' key=value (',' key=value)* ')' ]
value  = number | true | false | none | word | '[' number (',' number)* ']'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import pairwise

from davis.branch import Branch, Composition
from davis.stages import REGISTRY, Fisher, Fuse, Linear, Mean, Stage
from davis.stages.base import Value

_LONGEST = 2000
ORDER = ("perturb", "pool", "shape", "head", "score")
KINDS = (*ORDER, "fuse")

_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def parse(text: str) -> Composition:
    """The branches that a spec names and what fuses them, unfitted; most specs have one branch.

    >>> parse("max + scale(p=85) + energy(t=2)").text()
    'max + scale + energy(t=2)'
    """
    if not isinstance(text, str):
        raise TypeError(f"a spec is text such as 'max + energy', got {type(text).__name__}")
    if len(text) > _LONGEST:
        raise ValueError(f"a spec of {len(text)} characters: {_short(text)}; the longest allowed has {_LONGEST}")
    if not text.strip():
        raise ValueError("the spec is empty; write a score at least, such as 'energy' or 'max + energy'")
    *branches, last = text.split("|")
    fuse = _fuse(last, text)
    if fuse is None:
        branches.append(last)
    if not branches:
        raise ValueError(
            f"{_short(text)} fuses no detectors; write them before it, as in 'max + energy | knn | fisher'"
        )
    return _composed([_branch(part, text) for part in branches], fuse, text)


def canonical(text: str) -> str:
    """The one spelling of a spec.

    >>> canonical("energy")
    'mean + energy'
    """
    return parse(text).text()


def _fuse(part: str, text: str) -> Fuse | None:
    """The last part where it is a fusion by itself."""
    name = part.partition("(")[0].strip()
    if name not in REGISTRY or REGISTRY[name].kind != "fuse" or len(_joined(part.split("+"))) > 1:
        return None
    stage = _stage(part, text)
    return stage if isinstance(stage, Fuse) else None


def _composed(branches: list[Branch], fuse: Fuse | None, text: str) -> Composition:
    if len(branches) == 1:
        if fuse is not None:
            raise ValueError(f"{_short(text)} fuses one detector; name two at least, joined by '|'")
        return Composition(branches)
    fuse = Fisher() if fuse is None else fuse
    if fuse.weights is not None and len(fuse.weights) != len(branches):
        raise ValueError(
            f"{fuse.name} has {len(fuse.weights)} weights for {len(branches)} detectors in {_short(text)}; "
            "give one each"
        )
    for branch in branches:
        if branch.needs_pixels:
            raise ValueError(
                f"{branch.text()!r} moves the images in passes of its own, and fused detectors share one pass; "
                f"leave it out of {_short(text)}"
            )
    texts = [branch.text() for branch in branches]
    if len(set(texts)) < len(texts):
        again = next(one for place, one in enumerate(texts) if one in texts[:place])
        raise ValueError(f"{again!r} stands twice in {_short(text)}; weights say that one counts for more")
    return Composition(branches, fuse)


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
    name, bracket, body = (part.strip() for part in term.partition("("))
    closed = body.endswith(")") and not set(body[:-1]) & set("()") if bracket else True
    if not _WORD.fullmatch(name) or not closed:
        raise ValueError(f"cannot read {_short(term)} in {_short(text)}; a term is name or name(key=value, ...)")
    if name not in REGISTRY:
        raise ValueError(f"unknown stage {_short(name)} in {_short(text)}; {_suggest(name, REGISTRY)}")
    stage = REGISTRY[name]
    known = stage.parameters_of()
    settings: dict[str, Value] = {}
    for key, value in _settings(body[:-1], text):
        if key not in known:
            allowed = _suggest(key, known) if known else f"{name} takes none"
            raise ValueError(f"unknown setting {key!r} of {name} in {_short(text)}; {allowed}")
        if key in settings:
            raise ValueError(f"{name} has {key!r} twice in {_short(text)}")
        settings[key] = value
    try:
        return stage(**settings)
    except ValueError as error:
        raise ValueError(f"{error}, in {_short(text)}") from None


def _settings(body: str, text: str) -> Iterator[tuple[str, Value]]:
    for part in _parts(body) if body.strip() else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        inside = value[1:-1] if value.startswith("[") and value.endswith("]") else value
        if not _WORD.fullmatch(key) or not equals or not value or set(inside) & set("=[]"):
            raise ValueError(
                f"cannot read {_short(part)} in {_short(text)}; settings are written key=value, as in p=85"
            )
        yield key, _value(value, text)


def _parts(body: str) -> Iterator[str]:
    """The pieces between commas that stand outside square brackets."""
    start = depth = 0
    for place, letter in enumerate(body):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield body[start:place]
            start = place + 1
    yield body[start:]


def _value(word: str, text: str) -> Value:
    if word.startswith("["):
        parts = [_value(part.strip(), text) for part in word[1:-1].split(",")]
        numbers = tuple(part for part in parts if isinstance(part, int | float) and not isinstance(part, bool))
        if len(numbers) != len(parts):
            raise ValueError(f"{word[:200]} in {_short(text)} must be a list of numbers")
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
    for stage in stages:
        if stage.kind not in ORDER:
            raise ValueError(
                f"{stage.name} fuses whole detectors; in {_short(text)} write it alone, after the last '|'"
            )
    for before, after in pairwise(stages):
        if ORDER.index(before.kind) > ORDER.index(after.kind):
            raise ValueError(
                f"{before.name} ({before.kind}) stands before {after.name} ({after.kind}) in {_short(text)}; "
                f"the order is {', '.join(ORDER)}"
            )
    for kind in ("perturb", "pool", "head", "score"):
        names = [stage.name for stage in stages if stage.kind == kind]
        if len(names) > 1:
            raise ValueError(
                f"{_short(text)} has {len(names)} stages of kind {kind} ({', '.join(names)}); one is allowed"
            )
    kinds = [stage.kind for stage in stages]
    if "score" not in kinds:
        raise ValueError(f"{_short(text)} ends without a score; append one, such as '+ energy'")
    defaults = [stage for kind, stage in (("pool", Mean), ("head", Linear)) if kind not in kinds]
    return sorted([*stages, *(stage() for stage in defaults)], key=lambda stage: ORDER.index(stage.kind))


def _short(text: str) -> str:
    """The text in quotes, cut where it is too long for a line."""
    text = text.strip()
    return repr(text if len(text) <= 200 else text[:200] + "...")


def _suggest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name.lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
