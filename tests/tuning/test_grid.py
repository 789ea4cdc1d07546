"""Grids by text: every alternative once, in canonical spelling."""

from __future__ import annotations

import re
from itertools import product

import pytest

from davis import spec
from davis.tuning.grid import DEFAULT, Edge, default_grid, edges_of, expand, place_of


class TestExpand:
    def test_values_multiply(self) -> None:
        found = expand("davis(gamma={0.5,1,1.5,2,3,4}) + dice(p={50,70,90}) + energy")
        wanted = product((0.5, 1, 1.5, 2, 3, 4), (50, 70, 90))
        assert found == [spec.canonical(f"davis(gamma={g}) + dice(p={p}) + energy") for g, p in wanted]

    def test_terms_nest(self) -> None:
        assert expand("{max, davis(gamma={1,3})} + {energy, knn(k={5, 9})}") == [
            "max + energy",
            "max + knn(k=5)",
            "max + knn(k=9)",
            "davis + energy",
            "davis + knn(k=5)",
            "davis + knn(k=9)",
            "davis(gamma=3) + energy",
            "davis(gamma=3) + knn(k=5)",
            "davis(gamma=3) + knn(k=9)",
        ]

    def test_an_alternative_may_be_empty_or_a_chain(self) -> None:
        assert expand("{, max} + {, react(p=95) + dice} + energy") == [
            "mean + energy",
            "mean + react(p=95) + dice + energy",
            "max + energy",
            "max + react(p=95) + dice + energy",
        ]

    @pytest.mark.parametrize("given", ["energy; max + energy; mean + energy", ["energy", "max + energy", "energy"]])
    def test_grids_join_and_say_each_spec_once(self, given: str | list[str]) -> None:
        assert expand(given) == ["mean + energy", "max + energy"]

    def test_fusions_are_spelled_out(self) -> None:
        assert expand("max + energy | knn(k={5, 9})") == [
            "max + energy | mean + knn(k=5)",
            "max + energy | mean + knn(k=9)",
        ]

    def test_lists_and_exponents_are_left_alone(self) -> None:
        assert expand("energy(t={1e+3, 2})") == ["mean + energy(t=1000)", "mean + energy(t=2)"]
        assert expand("odin(input_std=[0.2, 0.2, 0.2]) + msp") == [
            spec.canonical("odin(input_std=[0.2, 0.2, 0.2]) + msp")
        ]

    @pytest.mark.parametrize(
        ("grid", "message"),
        [
            ("{max + energy", "'{' is never closed"),
            ("max} + energy", "'}' closes nothing"),
            ("davis(gamma={1,}) + energy", "an alternative is empty"),
            ("max + + energy", "a term is missing"),
            ("davis(gama={1, 2}) + energy", "did you mean 'gamma'"),
            ([], "the grid is empty"),
            ("energy(t={" + ",".join(map(str, range(1, 2100))) + "})", "more than 2000 specs"),
        ],
    )
    def test_bad_grids_get_one_line(self, grid: str | list[str], message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)) as raised:
            expand(grid)
        assert "\n" not in str(raised.value)


class TestDefault:
    def test_size_and_values(self) -> None:
        grid = default_grid()
        assert len(grid) == len(set(grid)) == 200
        places = [place_of(text) for text in grid]
        wanted = {
            "davis.gamma": {0.5, 1, 1.5, 2, 3, 4},
            "react.p": {85, 90, 95, 98, 99},
            "ash_s.p": {50, 65, 70, 80, 85, 90, 95},
            "scale.p": {80, 85, 90, 95},
            "dice.p": {50, 70, 90},
            "knn.k": {10, 50, 100, 200},
        }
        for setting, values in wanted.items():
            assert {place.settings[setting] for place in places if setting in place.settings} == values
        assert {place.family.split(" + ")[0] for place in places} == {"mean", "max", "davis"}
        assert expand(DEFAULT) == grid


class TestEdges:
    GRID = expand("davis(gamma={1, 2, 3}) + dice(p={50, 70, 90}) + energy; davis(gamma=9) + energy")

    def test_inside(self) -> None:
        assert edges_of("davis(gamma=2) + dice + energy", self.GRID) == []

    def test_both_ends(self) -> None:
        found = edges_of("davis + dice(p=90) + energy", self.GRID)
        assert found == [Edge("davis.gamma", 1, (1, 2, 3)), Edge("dice.p", 90, (50, 70, 90))]
        assert found[0].text() == "davis.gamma = 1 is the smallest tried (1, 2, 3); lower ones may be better"
        assert "largest tried (50, 70, 90); higher" in found[1].text()

    def test_one_value_is_no_edge(self) -> None:
        assert edges_of("davis(gamma=9) + energy", self.GRID) == []

    def test_detectors_that_differ_in_words_are_not_compared(self) -> None:
        grid = expand("davis(gamma={1, 3, 9}) + energy; davis(gamma={2, 3}, signed=true) + energy")
        assert edges_of("davis(gamma=2, signed=true) + energy", grid) == [Edge("davis.gamma", 2, (2, 3))]
        assert edges_of("davis(gamma=3) + energy", grid) == []
