"""The tuner: its numbers are those of the detectors one by one, and it finds what is known to be better."""

from __future__ import annotations

import json
from collections.abc import Iterator

import models
import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

import davis
from davis import metrics
from davis.data import Preprocessing
from davis.tuning import Tuning, draw, tune
from davis.tuning.bootstrap import Bootstrap, interval
from davis.tuning.grid import expand
from davis.tuning.proxies import make, parse_proxies
from davis.tuning.surface import spearman

PLAIN = Preprocessing(size=12, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
GRID = "{mean, max, davis(gamma={0.5, 2})} + {energy, knn(k={3, 9}), react(p={80, 95}) + energy, dice(p=50) + energy}"


def pictures(count: int, seed: int, rough: float = 0.3) -> Tensor:
    """Pixels in [0, 1]: a colour each, with some texture."""
    random = torch.Generator().manual_seed(seed)
    colours = torch.rand((count, 3, 1, 1), generator=random)
    texture = torch.rand((count, 3, 12, 12), generator=random)
    return (1 - rough) * colours + rough * texture


@pytest.fixture
def model() -> torch.nn.Module:
    return models.small_net()


@pytest.fixture
def flat_model() -> torch.nn.Module:
    """Its map is the image; its logits fall with the features, so strong activations look OOD to the energy."""
    model = models.map_net(channels=3)
    with torch.no_grad():
        model.head.weight.fill_(-1)
        model.head.bias.zero_()
    return model


def run(model: torch.nn.Module | davis.Backbone, grid: str = GRID, **options: object) -> Tuning:
    fitted, held = pictures(60, 1), pictures(50, 2)
    return tune(
        model,
        [fitted[:40], fitted[40:]],
        [held[:30], held[30:]],
        grid=grid,
        preprocessing=PLAIN,
        **options,  # type: ignore[arg-type]
    )


class TestNumbers:
    @pytest.mark.parametrize("proxy", ["noise", "patches, blur"])
    def test_rows_equal_detectors_one_by_one(self, model: torch.nn.Module, proxy: str) -> None:
        ood = torch.rand((20, 3, 12, 12), generator=torch.Generator().manual_seed(9))
        found = run(model, proxy=proxy, check={"odd": [ood]})
        held = pictures(50, 2)
        proxied: dict[str, list[Tensor]] = {}
        for place, (name, kind) in enumerate(parse_proxies(proxy).items(), 1):
            generator = torch.Generator().manual_seed(place)
            proxied[name] = [make(part, [kind], PLAIN, [generator])[0] for part in (held[:30], held[30:])]
        assert {row.spec for row in found.rows} == set(expand(GRID))
        for spec in expand(GRID):
            detector = davis.Detector(model, spec).fit([pictures(60, 1)])
            clean = detector.score_images(held)
            row = found.row(spec)
            for name, parts in proxied.items():
                other = torch.cat([detector.score_images(part) for part in parts])
                self.agree(row.proxies[name], clean, other)
            self.agree(row.checks["odd"], clean, detector.score_images(ood))
            assert row.auroc == pytest.approx(np.mean([point.auroc for point in row.proxies.values()]))
            assert row.fpr95 == pytest.approx(np.mean([point.fpr95 for point in row.proxies.values()]))

    @staticmethod
    def agree(point: object, clean: Tensor, other: Tensor) -> None:
        truth = [1] * len(clean) + [0] * len(other)
        scores = torch.cat([clean, other]).numpy()
        assert point.auroc == pytest.approx(roc_auc_score(truth, scores), abs=2e-3)  # type: ignore[attr-defined]
        false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
        assert point.fpr95 == pytest.approx(false[np.argmax(true >= 0.95)], abs=0.03)  # type: ignore[attr-defined]

    def test_best_first_by_either_metric(self, model: torch.nn.Module) -> None:
        by_auroc, by_fpr = run(model), run(model, select="fpr95")
        assert [row.auroc for row in by_auroc.rows] == sorted((row.auroc for row in by_auroc.rows), reverse=True)
        assert [row.fpr95 for row in by_fpr.rows] == sorted(row.fpr95 for row in by_fpr.rows)
        assert by_auroc.choice == by_auroc.rows[0].spec
        assert by_fpr.metric == "FPR95"

    def test_the_seed_decides(self, model: torch.nn.Module) -> None:
        first, again, other = run(model), run(model), run(model, seed=5)
        assert first.to_json() == again.to_json()
        assert first.to_json() != other.to_json()

    def test_each_image_is_seen_once_and_once_more_for_each_proxy(self, model: torch.nn.Module) -> None:
        seen = 0

        def count(module: object, inputs: tuple[Tensor, ...]) -> None:
            nonlocal seen
            seen += len(inputs[0])

        backbone = davis.Backbone(model)
        backbone.probe((3, 12, 12))
        model.register_forward_pre_hook(count)
        run(backbone, proxy="noise, mix", check={"odd": [pictures(7, 3)]})
        assert seen == 60 + 3 * 50 + 7

    def test_batches_may_be_read_once_only(self, model: torch.nn.Module) -> None:
        def once(images: Tensor) -> Iterator[Tensor]:
            yield from images.split(20)

        found = tune(model, once(pictures(60, 1)), once(pictures(50, 2)), grid=GRID, preprocessing=PLAIN)
        assert found.images == {"fit": 60, "holdout": 50, "noise": 50}


class TestChoice:
    def test_the_known_better_pooling_is_found(self, flat_model: torch.nn.Module) -> None:
        """Noise leaves the mean of a map nearly alone and raises its maximum."""
        found = run(flat_model, "{mean, max} + energy", proxy="noise(std=0.3)")
        assert found.choice == "max + energy"
        assert found.runner_up == "mean + energy"
        assert found.lead is not None
        assert found.lead_interval is not None
        assert found.lead == pytest.approx(found.rows[0].auroc - found.rows[1].auroc)
        assert 0 < found.lead_interval[0] < found.lead < found.lead_interval[1]
        assert found.interval[0] <= found.rows[0].auroc <= found.interval[1]
        assert "a clear lead" in " ".join(found.sentences())

    def test_a_choice_at_the_edge_is_warned_of(self, flat_model: torch.nn.Module) -> None:
        found = run(flat_model, "davis(gamma={0.1, 0.2, 0.5}) + energy", proxy="noise(std=0.1)")
        assert found.choice == "davis(gamma=0.5) + energy"
        assert found.warnings[0].startswith("davis.gamma = 0.5 is the largest tried (0.1, 0.2, 0.5); higher")
        assert "Beware: davis.gamma" in found.to_markdown()

    def test_a_choice_inside_is_not(self, flat_model: torch.nn.Module) -> None:
        found = run(flat_model, "davis(gamma={-3, 0.5, 0}) + energy", proxy="noise(std=0.1)")
        assert found.choice == "davis(gamma=0.5) + energy"
        inside = run(flat_model, "davis(gamma={-3, 0.5, -300}) + energy; max + energy", proxy="noise(std=0.1)")
        assert inside.choice in ("davis(gamma=0.5) + energy", "max + energy")

    def test_ties_take_the_shorter_text_and_are_said(self, flat_model: torch.nn.Module) -> None:
        found = run(flat_model, "max + scale(p=0) + energy; max + react(p=100) + energy; max + energy")
        assert found.rows[0].point == found.rows[1].point
        assert found.choice == "max + energy"
        assert found.lead == 0

    def test_a_proxy_that_is_too_easy_is_warned_of(self, flat_model: torch.nn.Module) -> None:
        grid = "davis(gamma={100, 200, 300}) + energy"
        found = run(flat_model, grid, proxy="noise(std=1)")
        assert found.rows[-1].auroc >= 0.999
        assert any("3 candidates reach an AUROC of 99.9 or more: noise(std=1)" in text for text in found.warnings)
        harder = run(flat_model, grid, proxy="mix")
        assert harder.rows[0].auroc < 0.999
        assert not any("reach an AUROC" in text for text in harder.warnings)

    def test_hindsight(self, flat_model: torch.nn.Module) -> None:
        dark = pictures(40, 4, rough=0.0) * 0.02 + 0.9
        found = run(flat_model, "{mean, max} + energy", proxy="noise(std=0.3)", check={"dark": [dark]})
        seen = found.hindsight
        assert seen is not None
        real = {row.spec: row.checks["dark"].auroc for row in found.rows}
        assert seen.best == max(real, key=lambda spec: real[spec])
        assert seen.loss == pytest.approx(max(real.values()) - real[found.choice])
        assert seen.rank == 1 + sum(value > real[found.choice] for value in real.values())
        assert run(flat_model, "{mean, max} + energy").hindsight is None


class TestBadInput:
    def test_candidates_that_fail_are_left_out_with_the_reason(self, model: torch.nn.Module) -> None:
        found = run(model, "knn(k={3, 500}); odin + msp; energy; max + energy | energy")
        assert {row.spec for row in found.rows} == {"mean + knn(k=3)", "mean + energy"}
        assert "k=500 neighbours of 60" in found.refused["mean + knn(k=500)"]
        assert set(found.refused) == {"mean + knn(k=500)", "odin + mean + msp", "max + energy | mean + energy"}

    def test_none_works(self, model: torch.nn.Module) -> None:
        with pytest.raises(ValueError, match=r"none of the 2 candidates works; the first, 'mean \+ knn\(k=500\)'"):
            run(model, "knn(k={500, 600})")

    def test_empty_sets(self, model: torch.nn.Module) -> None:
        with pytest.raises(ValueError, match="the fit data are empty"):
            tune(model, [], [pictures(5, 1)], grid="knn(k=2)", preprocessing=PLAIN)
        with pytest.raises(ValueError, match="the set 'holdout' is empty"):
            tune(model, [], [], grid="energy", preprocessing=PLAIN)

    def test_wrong_words(self, model: torch.nn.Module) -> None:
        with pytest.raises(ValueError, match="select must be one of auroc, fpr95; got 'f1'"):
            run(model, select="f1")
        with pytest.raises(ValueError, match="two sets of images have the same name"):
            run(model, "energy", check={"noise": [pictures(5, 1)]})
        with pytest.raises(TypeError, match="one tensor was given where batches"):
            tune(model, [pictures(5, 1)], pictures(5, 1), grid="energy", preprocessing=PLAIN)  # type: ignore[arg-type]


class TestReports:
    def test_json_round_trip(self, model: torch.nn.Module) -> None:
        found = run(model, check={"odd": [pictures(7, 3)]})
        text = found.to_json()
        assert Tuning.from_json(text) == found
        assert Tuning.from_json(text).to_json() == text
        record = json.loads(text)
        assert record["choice"] == found.choice
        assert record["hindsight"]["best"] == found.hindsight.best  # type: ignore[union-attr]
        with pytest.raises(ValueError, match="tune again"):
            Tuning.from_json("{}")

    def test_markdown_has_every_candidate(self, model: torch.nn.Module) -> None:
        found = run(model, proxy="noise, blur", check={"odd": [pictures(7, 3)]})
        lines = found.to_markdown().splitlines()
        columns = [f"{name}{metric}" for name in ("", "noise ", "blur ", "real ") for metric in ("AUROC", "FPR95")]
        assert lines[0] == f"| candidate | {' | '.join(columns)} |"
        assert [line.split("`")[1] for line in lines if line.startswith("| `")] == [row.spec for row in found.rows]
        assert len({line.count("|") for line in lines if line.startswith("|")}) == 1

    @pytest.mark.parametrize(
        "grid", [GRID, "energy", "davis(gamma={1, 2}) + react(p={80, 90}) + dice(p={50, 70}) + energy"]
    )
    def test_a_drawing(self, model: torch.nn.Module, grid: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
        found = run(model, grid)
        draw(found, tmp_path / "surface.svg")
        assert "<svg" in (tmp_path / "surface.svg").read_text()


class TestBootstrap:
    @pytest.mark.parametrize("metric", ["auroc", "fpr95"])
    def test_equals_metrics_of_the_drawn_images(self, metric: str) -> None:
        random = np.random.default_rng(0)
        clean, other = random.normal(size=40).round(1), random.normal(-1, size=30).round(1)
        bootstrap = Bootstrap(40, {"noise": 30}, resamples=20, seed=3)
        found = bootstrap.values(clean, {"noise": other}, metric)  # type: ignore[arg-type]
        for value, ids, oods in zip(found, bootstrap._clean, bootstrap._proxied["noise"], strict=True):
            drawn = np.repeat(clean, ids), np.repeat(other, oods)
            wanted = metrics.auroc(*drawn) if metric == "auroc" else metrics.fpr_at_tpr(*drawn)
            assert value == pytest.approx(wanted)

    def test_interval_is_that_of_metrics(self) -> None:
        random = np.random.default_rng(1)
        clean, other = random.normal(size=300), random.normal(-1, size=200)
        values = Bootstrap(300, {"x": 200}, resamples=2000).values(clean, {"x": other}, "auroc")
        assert interval(values) == pytest.approx(metrics.interval(clean, other, resamples=2000), abs=5e-3)

    def test_spearman(self) -> None:
        random = np.random.default_rng(2)
        first, second = random.integers(0, 9, 50).astype(float), random.normal(size=50)
        assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
        assert spearman(np.ones(5), np.arange(5.0)) is None
