"""Grids: many specs as one text, with alternatives in braces.

grid   = spec (';' spec)*            several grids joined
spec   = branch ('|' branch)*        as in the spec language, and wherever a term or a value stands
         '{' a ',' b ... '}'         one of these; an alternative may be empty or join terms by '+'
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, product
from typing import NamedTuple, TypeGuard

from davis import spec as language
from davis.stages import Linear, Stage
from davis.stages.base import write

_MOST = 2000
_POOLS = "{mean, max, davis(gamma={0.5, 1, 1.5, 2, 3, 4})}"
_SHAPES = "react(p={85, 90, 95, 98, 99}), ash_s(p={50, 65, 70, 80, 85, 90, 95}), scale(p={80, 85, 90, 95})"
_HEADS = "dice(p={50, 70, 90})"
DEFAULT = (
    f"{_POOLS} + {{energy, msp, knn(k={{10, 50, 100, 200}})}}",
    f"{_POOLS} + {{{_SHAPES}, {_HEADS}}} + energy",
)
"""Three poolings, gamma swept, under the scores and shapes of the paper's tables."""

_PAIRS = {"(": ")", "[": "]", "{": "}"}


def default_grid() -> list[str]:
    """The 200 candidates that are tried where no grid is given."""
    return expand(DEFAULT)


def expand(grid: str | Iterable[str]) -> list[str]:
    """The canonical specs that a grid, or several of them, stands for; each once, in the order of the text.

    >>> expand("{max, davis(gamma={1, 3})} + energy; knn(k={10, 50})")
    ['max + energy', 'davis + energy', 'davis(gamma=3) + energy', 'mean + knn(k=10)', 'mean + knn']
    """
    texts = [grid] if isinstance(grid, str) else list(grid)
    written = (text for whole in texts for part in _cut(whole, ";", whole) for text in _spelled(part, whole))
    found: dict[str, None] = {}
    for number, text in enumerate(written):
        found[language.canonical(text)] = None
        if len(found) > _MOST or number > 10 * _MOST:
            raise ValueError(f"the grid stands for more than {_MOST} specs; leave out some of its alternatives")
    if not found:
        raise ValueError("the grid is empty; write a spec with alternatives, such as 'davis(gamma={1, 2, 3}) + energy'")
    return list(found)


def _spelled(text: str, whole: str) -> Iterator[str]:
    branches = (_listed(_chains(branch, whole)) for branch in _cut(text, "|", whole))
    return (" | ".join(parts) for parts in product(*branches))


def _chains(text: str, whole: str) -> Iterator[str]:
    """Terms joined by '+', every alternative of each."""
    terms = [term.strip() for term in _cut(text, "+", whole)]
    if len(terms) > 1 and "" in terms:
        raise ValueError(f"a term is missing beside a '+' in {_short(whole)}")
    for parts in product(*(_listed(_alternatives(term, whole)) for term in terms)):
        yield " + ".join(part for part in parts if part)


def _listed(texts: Iterator[str]) -> list[str]:
    """All of them, unless they are too many to be meant."""
    found = list(islice(texts, 10 * _MOST + 1))
    if len(found) > 10 * _MOST:
        raise ValueError(f"the grid stands for more than {_MOST} specs; leave out some of its alternatives")
    return found


def _alternatives(term: str, whole: str) -> Iterator[str]:
    opening = term.find("{")
    if opening < 0:
        yield term
        return
    closing = _closing(term, opening, whole)
    before, inside, after = term[:opening], term[opening + 1 : closing], term[closing + 1 :]
    for part in _cut(inside, ",", whole):
        if not before and not after:
            yield from _chains(part, whole)
        elif part.strip():
            yield from _alternatives(f"{before}{part.strip()}{after}", whole)
        else:
            raise ValueError(f"an alternative is empty in {_short(term)}; write values with commas between")


def _cut(text: str, mark: str, whole: str) -> list[str]:
    """The pieces between marks that stand outside all brackets."""
    pieces, start, place = [], 0, 0
    while place < len(text):
        if text[place] in _PAIRS:
            place = _closing(text, place, whole)
        elif text[place] in _PAIRS.values():
            raise ValueError(f"a {text[place]!r} closes nothing in {_short(whole)}")
        elif text[place] == mark:
            pieces.append(text[start:place])
            start = place + 1
        place += 1
    return [*pieces, text[start:]]


def _closing(text: str, opening: int, whole: str) -> int:
    """Where the bracket that opens at a place is closed."""
    waiting: list[str] = []
    for place in range(opening, len(text)):
        letter = text[place]
        if letter in _PAIRS:
            waiting.append(letter)
        elif letter in _PAIRS.values():
            if _PAIRS[waiting[-1]] != letter:
                break
            waiting.pop()
            if not waiting:
                return place
    raise ValueError(f"a {waiting[-1]!r} is never closed in {_short(whole)}")


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "...")


# -- where a candidate stands ---------------------------------------------------------------------


class Place(NamedTuple):
    """Where a candidate stands among others: what it is made of, and the numbers it is made with."""

    family: str  # its stages without their numbers, 'davis(signed=true) + dice + energy'
    settings: dict[str, float]  # 'davis.gamma' -> 3


class Edge(NamedTuple):
    """A setting that stands at the end of the values that were tried."""

    setting: str
    value: float
    tried: tuple[float, ...]

    def text(self) -> str:
        """One line for a person."""
        side, beyond = ("smallest", "lower") if self.value == self.tried[0] else ("largest", "higher")
        values = ", ".join(f"{value:g}" for value in self.tried)
        return f"{self.setting} = {self.value:g} is the {side} tried ({values}); {beyond} ones may be better"


def place_of(spec: str) -> Place:
    """The family and the numeric settings of a spec, defaults included.

    >>> place_of("davis(signed=true) + dice(p=50) + energy").family
    'davis(signed=true) + dice + energy'
    >>> place_of("davis + dice(p=50) + energy").settings
    {'davis.gamma': 1, 'davis.ddof': 1, 'dice.p': 50, 'energy.t': 1}
    """
    branches = language.parse(spec)
    names, settings = [], {}
    for number, branch in enumerate(branches, 1):
        stages = [stage for stage in branch.stages if not isinstance(stage, Linear)]
        names.append(" + ".join(_without_numbers(stage) for stage in stages))
        prefix = f"{number}." if len(branches) > 1 else ""
        for stage in stages:
            for key, value in stage.settings().items():
                if _is_number(value):
                    settings[f"{prefix}{stage.name}.{key}"] = value
    return Place(" | ".join(names), settings)


def _without_numbers(stage: Stage) -> str:
    """A stage as in a spec, of whose settings only the words and the true and false are left."""
    defaults = {name: parameter.default for name, parameter in stage.parameters_of().items()}
    words = {key: value for key, value in stage.settings().items() if not _is_number(value) and value != defaults[key]}
    return (
        f"{stage.name}({', '.join(f'{key}={write(value)}' for key, value in words.items())})" if words else stage.name
    )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def edges_of(spec: str, specs: Iterable[str]) -> list[Edge]:
    """The settings of a spec that are the smallest or largest among candidates made of the same stages."""
    own = place_of(spec)
    alike = [place for place in map(place_of, specs) if place.family == own.family]
    found = []
    for setting, value in own.settings.items():
        tried = tuple(sorted({place.settings[setting] for place in alike}))
        if len(tried) > 1 and value in (tried[0], tried[-1]):
            found.append(Edge(setting, value, tried))
    return found
