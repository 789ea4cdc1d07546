"""The spec language: its grammar, its one spelling, and what it says about mistakes."""

from __future__ import annotations

import inspect
import re
import time
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import golden
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from davis.spec import canonical, parse
from davis.stages import REGISTRY, Stage, stages_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("energy", "mean + energy"),
        ("max+energy", "max + energy"),
        ("  max  +   energy  ", "max + energy"),
        ("max\n+\tenergy\n", "max + energy"),
        ("linear + energy", "mean + energy"),
        ("max + linear + energy", "max + energy"),
        ("energy()", "mean + energy"),
        ("energy( )", "mean + energy"),
        ("energy (t=2)", "mean + energy(t=2)"),
        ("energy( t = 2 , multiply = false )", "mean + energy(t=2, multiply=false)"),
        ("energy(multiply=false, t=2)", "mean + energy(t=2, multiply=false)"),
        ("energy(t=1)", "mean + energy"),
        ("energy(t=1.0, multiply=true)", "mean + energy"),
        ("energy(t=1e+3)", "mean + energy(t=1000)"),
        ("energy(t=1e3)", "mean + energy(t=1000)"),
        ("energy(t=+2)", "mean + energy(t=2)"),
        ("energy(t=.5)", "mean + energy(t=0.5)"),
        ("energy(t=2.)", "mean + energy(t=2)"),
        ("energy(t=5e-324)", "mean + energy(t=5e-324)"),
        ("energy(t=1e+300) ", "mean + energy(t=1e+300)"),
        ("laps(m=-3) + energy", "mean + laps(m=-3) + energy"),
        ("davis(gamma=0.50) + scale(p=85) + energy", "davis(gamma=0.5) + scale + energy"),
        ("davis(gamma=3) + react(p=95.5) + dice(p=70) + energy", "davis(gamma=3) + react(p=95.5) + dice + energy"),
        ("react + ash_s + scale + energy", "mean + react + ash_s + scale + energy"),
        ("scale + react + scale + energy", "mean + scale + react + scale + energy"),  # shapes in any order, repeated
        ("vim(d=auto)", "mean + vim"),
        ("vim(d=12)", "mean + vim(d=12)"),
        ("vim(d=12.0)", "mean + vim(d=12)"),
        ("knn(k=1e2)", "mean + knn(k=100)"),
        ("odin(input_std=none) + msp", "odin + mean + msp"),
        ("odin(input_std=[.5,0.25, 1]) + max + msp", "odin(input_std=[0.5, 0.25, 1]) + max + msp"),
        ("odin(eps=0.002, input_std=[1,2], t=1e+2)+msp", "odin(eps=0.002, t=100, input_std=[1, 2]) + mean + msp"),
        ("energy | max + energy", "mean + energy | max + energy"),
        ("energy|max+energy|fisher", "mean + energy | max + energy"),
        ("energy | knn | stouffer( weights=[2,1] )", "mean + energy | mean + knn | stouffer(weights=[2, 1])"),
        ("energy | knn | fisher(tail=exponential)", "mean + energy | mean + knn"),
        ("energy | knn | min", "mean + energy | mean + knn | min"),
    ],
)
def test_one_spelling(text: str, expected: str) -> None:
    assert canonical(text) == expected
    assert canonical(expected) == expected
    assert parse(text).text() == expected


def test_parse_fills_in_pool_and_head() -> None:
    (branch,) = parse("react + energy")
    assert [stage.kind for stage in branch.stages] == ["pool", "shape", "head", "score"]
    assert [stage.name for stage in branch.stages] == ["mean", "react", "linear", "energy"]


def test_values_have_their_python_types() -> None:
    (branch,) = parse(
        "odin(input_std=[1, 0.5]) + davis(gamma=2) + scale(p=7.5, rule=quantile_higher) + knn(squared=true)"
    )
    odin, davis, scale, _, knn = branch.stages
    assert odin.settings() == {"eps": 0.0014, "t": 1000, "second_pass": "same", "input_std": (1, 0.5)}
    assert davis.settings() == {"gamma": 2, "ddof": 1, "signed": False}
    assert scale.settings() == {"p": 7.5, "rule": "quantile_higher", "rectify": False}
    assert knn.settings() == {"k": 50, "normalize": True, "reduction": "kth", "squared": True}


def test_parsing_twice_gives_separate_stages() -> None:
    one, other = parse("react + energy | react + msp")
    assert not {id(stage) for stage in one.stages} & {id(stage) for stage in other.stages}


# -- generated specs ---------------------------------------------------------------------------------


FLOATS = st.one_of(
    st.integers(1, 100).map(float),
    st.floats(1e-300, 100, exclude_min=True),
    st.sampled_from([1e-5, 1 / 3, 0.1 + 0.2, 99.99999999999999]),
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that most settings of this type allow."""
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is tuple:
        return st.lists(FLOATS, min_size=1, max_size=4).map(tuple)
    if get_args(hint):
        return st.one_of([values_of(choice) for choice in get_args(hint)])
    return {float: FLOATS, int: st.integers(1, 10**6), bool: st.booleans(), type(None): st.none()}[hint]


@st.composite
def stage_of(draw: st.DrawFn, kind: str) -> Stage:
    stage = draw(st.sampled_from(list(stages_of(kind))))
    hints = get_type_hints(inspect.unwrap(stage.__init__))
    settings = {name: values_of(hints[name]) for name in stage.parameters_of()}
    chosen = draw(st.fixed_dictionaries({}, optional=settings))
    while True:  # some settings have a narrower range: leave those out
        try:
            return stage(**chosen)
        except ValueError as error:
            refused = str(error).split("(")[1].split("=")[0]
        if chosen.pop(refused, None) is None:  # refused beside another one
            chosen.clear()


@st.composite
def stages_in_order(draw: st.DrawFn) -> list[Stage]:
    perturb = draw(st.lists(stage_of("perturb"), max_size=1))
    shapes = draw(st.lists(stage_of("shape"), max_size=3))
    return [*perturb, draw(stage_of("pool")), *shapes, draw(stage_of("head")), draw(stage_of("score"))]


@given(stages_in_order())
def test_round_trip(stages: list[Stage]) -> None:
    text = " + ".join(stage.text() for stage in stages)
    (branch,) = parse(text)
    assert [stage.settings() for stage in branch.stages] == [stage.settings() for stage in stages]
    assert [type(stage) for stage in branch.stages] == [type(stage) for stage in stages]
    once = canonical(text)
    assert canonical(once) == once


@given(st.lists(stages_in_order(), min_size=2, max_size=3), stage_of("fuse"))
def test_round_trip_of_several_branches(branches: list[list[Stage]], fuse: Stage) -> None:
    text = "|".join("+".join(stage.text() for stage in stages) for stages in branches)
    try:
        parsed = parse(f"{text} | {fuse.text()}")
    except ValueError as error:  # what only some lists of branches may have
        assume(not re.search("weights for|moves the images|stands twice", str(error)))
        raise
    assert len(parsed) == len(branches)
    assert parsed.fuse is not None
    assert parsed.fuse.settings() == fuse.settings()
    for branch, stages in zip(parsed, branches, strict=True):
        assert [stage.settings() for stage in branch.stages] == [stage.settings() for stage in stages]
    assert canonical(parsed.text()) == parsed.text()


@given(st.text(alphabet="maxenrgyscl+|()[]=,.0123 \n_", max_size=40))
def test_junk_is_a_value_error_or_a_spec(text: str) -> None:
    try:
        spelling = canonical(text)
    except ValueError:
        return
    assert canonical(spelling) == spelling


# -- mistakes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the spec is empty; write a score at least"),
        ("  \n", "the spec is empty"),
        ("max+scal+energy", "unknown stage 'scal' in 'max+scal+energy'; did you mean 'scale'?"),
        ("Energy", "unknown stage 'Energy' in 'Energy'; did you mean 'energy'?"),
        ("ENERGY", "did you mean 'energy'?"),
        ("qqqq", "unknown stage 'qqqq' in 'qqqq'; known: "),
        ("scale(q=3) + energy", "unknown setting 'q' of scale in 'scale(q=3) + energy'; known: p, rule, rectify"),
        (
            "energy(multipl=true)",
            "unknown setting 'multipl' of energy in 'energy(multipl=true)'; did you mean 'multiply'?",
        ),
        ("mean(gamma=3) + energy", "unknown setting 'gamma' of mean in 'mean(gamma=3) + energy'; mean takes none"),
        ("energy(t=hot)", "energy(t=hot): t must be a number, in 'energy(t=hot)'"),
        ("energy(t=true)", "energy(t=true): t must be a number, in "),
        ("energy(t=none)", "energy(t=none): t must be a number, in "),
        ("energy(t=nan)", "energy(t=nan): t must be a number, in "),
        ("energy(t=inf)", "energy(t=inf): t must be a number, in "),
        ("energy(t=1e999)", "energy(t=inf): t must be a number, in "),
        ("energy(t=[1, 2])", "energy(t=[1, 2]): t must be a number, in "),
        ("energy(t=1_000)", "energy(t=1_000): t must be a number, in "),
        ("energy(multiply=1)", "energy(multiply=1): multiply must be true or false, in "),
        ("energy(multiply=True)", "energy(multiply=True): multiply must be true or false, in "),
        ("knn(k=2.5)", "knn(k=2.5): k must be a whole number, in "),
        ("knn(k=0)", "knn(k=0): k must be greater than 0, in "),
        ("vim(d=half)", "vim(d=half): d must be a whole number or auto, in "),
        ("vim(d=0)", "vim(d=0): d must be greater than 0, in "),
        ("scale(rule=top) + energy", "scale(rule=top): rule must be topk or quantile_higher, in "),
        ("scale(p=101) + energy", "scale(p=101): p must be a percent from 0 to 100, in "),
        (
            "odin(input_std=3) + msp",
            "odin(input_std=3): input_std must be a list of numbers such as [0.5, 0.5] or none",
        ),
        ("odin(input_std=[1, a]) + msp", "[1, a] in 'odin(input_std=[1, a]) + msp' must be a list of numbers"),
        ("odin(input_std=[1, true]) + msp", "must be a list of numbers"),
        ("odin(input_std=[]) + msp", "must be a list of numbers"),
        ("odin(input_std=[1,]) + msp", "must be a list of numbers"),
        ("odin(input_std=[[1]]) + msp", "cannot read 'input_std=[[1]]'"),
        ("odin(input_std=[1) + msp", "cannot read 'input_std=[1'"),
        ("energy(t=1, t=2)", "energy has 't' twice in 'energy(t=1, t=2)'"),
        ("energy(2)", "cannot read '2' in 'energy(2)'; settings are written key=value, as in p=85"),
        ("energy(t)", "cannot read 't' in "),
        ("energy(t=)", "cannot read 't=' in "),
        ("energy(=2)", "cannot read '=2' in "),
        ("energy(t=1=2)", "cannot read 't=1=2' in "),
        ("energy(t=1,)", "cannot read '' in "),
        ("energy(,)", "cannot read '' in "),
        ("energy(t=1", "cannot read 'energy(t=1' in 'energy(t=1'; a term is name or name(key=value, ...)"),
        ("scale(p=85 + energy", "cannot read 'scale(p=85 + energy' in "),
        ("energy)", "cannot read 'energy)' in "),
        ("energy(t=(1))", "cannot read 'energy(t=(1))' in "),
        ("energy(t=1)(t=2)", "cannot read 'energy(t=1)(t=2)' in "),
        ("max energy", "cannot read 'max energy' in "),
        ("max + + energy", "cannot read '' in 'max + + energy'"),
        ("+ energy", "cannot read '' in "),
        ("energy +", "cannot read '' in "),
        ("3 + energy", "cannot read '3' in "),
        ("max; energy", "cannot read 'max; energy' in "),
        ("energy | ", "cannot read '' in "),
        ("max", "'max' ends without a score; append one, such as '+ energy'"),
        ("max + scale", "ends without a score"),
        ("energy | max", "ends without a score"),
        ("energy | fisher", "'energy | fisher' fuses one detector; name two at least"),
        ("fisher", "'fisher' fuses no detectors; write them before it"),
        ("fisher | energy", "fisher fuses whole detectors; in 'fisher | energy' write it alone, after the last '|'"),
        ("energy | max + fisher", "fisher fuses whole detectors"),
        ("energy | knn | fisher(weights=[1])", "fisher has 1 weights for 2 detectors"),
        ("energy | knn | fisher(weights=[1, 0])", "weights must be greater than 0"),
        ("energy | mean + energy", "'mean + energy' stands twice"),
        ("energy | odin + msp", "'odin + mean + msp' moves the images in passes of its own"),
        (
            "energy + max",
            "energy (score) stands before max (pool) in 'energy + max'; the order is perturb, pool, shape, head",
        ),
        ("scale + max + energy", "scale (shape) stands before max (pool) in "),
        ("dice + react + energy", "dice (head) stands before react (shape) in "),
        ("max + odin + msp", "max (pool) stands before odin (perturb) in "),
        ("max + mean + energy", "'max + mean + energy' has 2 stages of kind pool (max, mean); one is allowed"),
        ("energy + msp", "has 2 stages of kind score (energy, msp); one is allowed"),
        ("dice + linear + energy", "has 2 stages of kind head (dice, linear); one is allowed"),
        ("odin + odin + msp", "has 2 stages of kind perturb (odin, odin); one is allowed"),
    ],
)
def test_errors_speak(text: str, message: str) -> None:
    with pytest.raises(ValueError) as error:
        parse(text)
    assert message in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize("value", [None, 3, b"energy", ["energy"]])
def test_a_spec_is_text(value: Any) -> None:
    with pytest.raises(TypeError, match="a spec is text such as 'max \\+ energy'"):
        parse(value)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 20_000,
        "(" * 20_000,
        ")" * 20_000,
        "+" * 20_000,
        "|" * 20_000,
        "max(" * 5_000,
        "energy(" + "," * 20_000 + ")",
        "energy(" + "[" * 20_000 + ")",
        "energy(t=" + "1" * 20_000 + "x)",
        "energy(t=" + "[1," * 7_000 + ")",
        "energy(t=" + "9" * 20_000 + ")",
        "energy" + " " * 20_000 + "!",
        "energy(t=" + " " * 2_000 + "=)",
        "energy(t " + " " * 20_000 + "!)",
        "energy(t=1" + " " * 2_000 + "=)",
    ],
    ids=range(15),
)
def test_long_junk_is_refused_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises(ValueError):
        parse(text)
    assert time.process_time() - start < 2


# -- every stage, and the golden specs ----------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_stage_is_in_the_language(name: str) -> None:
    stage = REGISTRY[name]
    text = {"score": name, "fuse": f"energy | max + energy | {name}"}.get(stage.kind, f"{name} + energy")
    assert any(type(part) is stage for part in parse(text).stages)
    assert canonical(canonical(text)) == canonical(text)


LANGUAGE = """
odin(eps=0.0014, t=1000, second_pass=same, input_std=none)
mean
max(signed=false)
davis(gamma=1, ddof=1, signed=false)
unified(gamma=1, ddof=1)
median(ties=lower)
entropy(variant=official)
react(p=90)
ash_s(p=90, rectify=false)
ash_p(p=90)
ash_b(p=90)
scale(p=85, rule=topk, rectify=false)
bats(lam=3.25)
laps(lam=1.5, m=13, n=0)
linear
dice(p=70, contribution=gap)
energy(t=1, multiply=true)
msp(t=1)
maxlogit
gen(gamma=0.1, m=100)
gradnorm(target=ones, t=1)
lts(p=95)
knn(k=50, normalize=true, reduction=kth, squared=false)
mahalanobis(shrinkage=0)
vim(d=auto)
nnguide(k=10, ratio=0.01)
fdbd(normalizer=distance)
nci(alpha=0.0001)
caref
cadref(logit=energy)
optfs(score=vanilla)
gradorth(eps=0.97)
combood(k=50, reg=1)
godin(score=h)
adascale_a(p_min=60, p_max=85, k_shift=1, k_correction=5, lam=10, o=0.05, eps=0.5)
adascale_l(p_min=60, p_max=85, k_shift=1, k_correction=5, lam=10, o=0.05, eps=0.5)
fisher(weights=none, tail=exponential)
min(weights=none, tail=exponential)
stouffer(weights=none, tail=exponential)
"""


def test_the_language_and_its_defaults_are_as_published() -> None:
    terms = LANGUAGE.split("\n")[1:-1]
    assert {re.match(r"\w+", term)[0] for term in terms} == set(REGISTRY)  # type: ignore[index]
    for term in terms:
        name = re.match(r"\w+", term)[0]  # type: ignore[index]
        kind = REGISTRY[name].kind
        text = {"score": term, "fuse": f"energy | max + energy | {term}"}.get(kind, f"{term} + energy")
        stage = next(part for part in parse(text).stages if part.name == name)
        assert stage.text() == name, "a published default is not the default"
        assert len(stage.parameters_of()) == term.count("="), term


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("odin(second_pass={})", "same gap"),
        ("median(ties={})", "lower mean"),
        ("entropy(variant={})", "official softmax paper"),
        ("scale(rule={})", "topk quantile_higher"),
        ("dice(contribution={})", "gap pooled"),
        ("gradnorm(target={})", "ones uniform"),
        ("knn(reduction={})", "kth mean"),
        ("fdbd(normalizer={})", "distance feature"),
        ("cadref(logit={})", "energy maxlogit msp gen"),
        ("optfs(score={})", "vanilla energy"),
        ("godin(score={})", "h g"),
    ],
)
def test_words_are_as_published(setting: str, words: str) -> None:
    ending = "" if REGISTRY[setting.split("(")[0]].kind == "score" else " + energy"
    for word in words.split():
        parse(setting.format(word) + ending)
    with pytest.raises(ValueError, match=f"must be {' or '.join(words.split())}, in"):
        parse(setting.format("nonsense") + ending)


def test_golden_specs(shared: Path) -> None:
    specs = [entry["spec"] for entry in golden.entries() if entry["spec"]]
    assert len(specs) == 811
    for spec in specs:
        once = canonical(spec)
        assert canonical(once) == once, spec
