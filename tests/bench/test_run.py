"""The cache, the grid and the run: equal to scoring images directly, and indifferent to being killed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import torch

import davis
from davis.bench import cache, results
from davis.bench.run import Benchmark, _some, run
from davis.data import Preprocessing
from davis.joint_fit import fit_from_activations
from davis.locks import alone_in
from davis.scoring import accuracies, score_all
from davis.sets import ArraySet

PREPARED = Preprocessing(size=12, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))


def pictures(name: str, count: int, seed: int, bright: int = 256, labelled: bool = False) -> ArraySet:
    random = np.random.default_rng(seed)
    images = random.integers(0, bright, (count, 12, 12, 3), dtype=np.uint8)
    labels = random.integers(0, models.CLASSES, count) if labelled else None
    return ArraySet(name, images, labels, PREPARED)


def tensors(images: ArraySet) -> torch.Tensor:
    return torch.cat([batch for batch, _, _ in images.batches(0, 32)])


@pytest.fixture
def backbone() -> davis.Backbone:
    return davis.Backbone(models.small_net())


def benchmark(backbone: davis.Backbone, specs: list[str]) -> Benchmark:
    return Benchmark(
        name="small",
        model="SmallNet",
        backbone=backbone,
        fit=pictures("train", 150, 1, labelled=True),
        test=pictures("test", 70, 2, labelled=True),
        ood={"dark": (pictures("dark", 60, 3, bright=90), "far"), "odd": (pictures("odd", 45, 4), "near")},
        specs=specs,
        batch=32,
        pixel_images=40,
    )


class TestCache:
    def test_rows_equal_a_pass(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        images = pictures("test", 70, 2, labelled=True)
        kept = cache.fill(tmp_path, backbone, images, batch=32)
        assert (len(kept), kept.record["complete"]) == (70, True)
        assert images.labels is not None
        assert torch.equal(kept.labels, torch.from_numpy(images.labels))  # type: ignore[arg-type]
        fresh = [backbone(batch, statistics=cache.STATISTICS) for batch, _, _ in images.batches(0, 32)]
        for name in ("logits", "mean", "std", "max", "median", "entropy", "positions"):
            whole = torch.cat([getattr(part, name) for part in fresh])
            assert torch.equal(getattr(kept.activations(), name), whole), name
        parts = [part.mean for part, _ in kept.stream(20)]
        assert torch.equal(torch.cat(parts), kept.activations().mean)

    def test_a_set_is_passed_over_once(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        images = pictures("test", 70, 2)
        first = cache.fill(tmp_path, backbone, images, batch=32)
        asked: list[int] = []
        again = cache.fill(tmp_path, backbone, images, batch=32, progress=lambda done, total: asked.append(done))
        assert again.folder == first.folder
        assert asked == []

    @pytest.mark.parametrize("change", ["weights", "pixels", "preprocessing", "dtype", "labels"])
    def test_its_key_is_its_content(self, backbone: davis.Backbone, tmp_path: Path, change: str) -> None:
        images = pictures("test", 40, 2, labelled=True)
        first = cache.fill(tmp_path, backbone, images).folder
        dtype: cache.Dtype = "float32"
        if change == "weights":
            with torch.no_grad():
                backbone.model.get_parameter("conv.weight")[0, 0, 0, 0] += 1
        elif change == "pixels":
            images.images[-1, 0, 0, 0] += 1
        elif change == "preprocessing":
            images.preprocessing = Preprocessing(size=12, mean=(0.4, 0.5, 0.5), std=(0.25, 0.25, 0.25))
        elif change == "labels":
            assert images.labels is not None
            images.labels[0] = (images.labels[0] + 1) % models.CLASSES
        else:
            dtype = "float16"
        assert cache.fill(tmp_path, backbone, images, dtype=dtype).folder != first

    def test_an_interrupted_pass_goes_on_where_it_was(
        self, backbone: davis.Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache, "_SAVE_EVERY", 0.0)
        images = pictures("test", 200, 2, labelled=True)
        whole = cache.fill(tmp_path / "whole", backbone, images, batch=32)

        def stop(done: int, total: int) -> None:
            if done >= 96:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            cache.fill(tmp_path / "cut", backbone, images, batch=32, progress=stop)
        seen: list[int] = []
        cut = cache.fill(tmp_path / "cut", backbone, images, batch=32, progress=lambda done, total: seen.append(done))
        assert seen[0] == 128  # three batches were kept
        for name in cut.record["columns"]:
            assert (cut.folder / f"{name}.npy").read_bytes() == (whole.folder / f"{name}.npy").read_bytes()

    def test_half_precision_costs_little(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        images = pictures("test", 60, 2)
        single, half = (cache.fill(tmp_path, backbone, images, dtype=dtype) for dtype in ("float32", "float16"))  # type: ignore[arg-type]
        torch.testing.assert_close(half.activations().max, single.activations().max, rtol=1e-3, atol=1e-3)
        assert (half.folder / "max.npy").stat().st_size < 0.6 * (single.folder / "max.npy").stat().st_size
        with pytest.raises(ValueError, match="float32 or float16"):
            cache.fill(tmp_path, backbone, images, dtype="int8")  # type: ignore[arg-type]


class TestGrid:
    def test_equal_to_one_by_one(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        train, test = pictures("train", 150, 1, labelled=True), pictures("test", 70, 2, labelled=True)
        kept = {*cache.STATISTICS, "min"}
        fitted, scored = (cache.fill(tmp_path, backbone, images, statistics=kept) for images in (train, test))
        specs = [*models.EVERY_SPEC, "knn(k=9)", "knn(k=9, squared=true)", "combood(k=20)"]
        detectors = [davis.Detector(backbone, spec) for spec in specs]
        fit_from_activations(detectors, fitted.stream(64))
        together = score_all(detectors, scored.stream(32))
        for detector in detectors:
            alone = torch.cat([detector.score(part) for part, _ in scored.stream(32)]).numpy()
            np.testing.assert_allclose(together[detector.spec], alone, rtol=1e-12, err_msg=detector.spec)
        found = accuracies(detectors, scored.stream())
        expected = (scored.activations().logits.argmax(1) == scored.labels).double().mean().item()
        assert found["model"] == pytest.approx(expected)
        assert found["by_spec"]["mean + energy"] == pytest.approx(expected)

    def test_equal_banks_are_searched_once(
        self, backbone: davis.Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from davis.stages import neighbours

        kept = cache.fill(tmp_path, backbone, pictures("train", 100, 1))
        detectors = [davis.Detector(backbone, spec) for spec in ("knn(k=5)", "knn(k=20)", "combood(k=9)")]
        fit_from_activations(detectors, kept.stream())
        searches = 0
        original = neighbours._nearest

        def counted(*inputs: Any) -> torch.Tensor:
            nonlocal searches
            searches += 1
            return original(*inputs)

        monkeypatch.setattr(neighbours, "_nearest", counted)
        score_all(detectors, kept.stream())
        assert searches == 1

    def test_methods_that_move_images_are_refused(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        kept = cache.fill(tmp_path, backbone, pictures("train", 40, 1))
        with pytest.raises(ValueError, match="moves the images themselves"):
            score_all([davis.Detector(backbone, "odin + msp")], kept.stream())
        with pytest.raises(ValueError, match="is fitted on images"):
            fit_from_activations([davis.Detector(backbone, "adascale_a")], kept.stream())


class TestRun:
    def test_rows_are_what_the_library_says(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        specs = [
            "mean + energy",
            "max + react(p=80) + energy",
            "mean + knn(k=5)",
            "adascale_l(k_shift=10)",
            "odin + msp",
        ]
        described = benchmark(backbone, specs)
        found = run(described, tmp_path / "run", cache=tmp_path / "cache")
        assert found.specs == [davis.canonical(spec) for spec in specs]
        assert len(found.rows) == 10
        train = [(batch, labels) for batch, labels, _ in described.fit.batches(0, 32)]
        detector = davis.Detector(backbone, specs[1]).fit(train)  # type: ignore[arg-type]
        dark, _ = described.ood["dark"]
        ids, oods = (detector(tensors(images)).score for images in (described.test, dark))  # type: ignore[arg-type]
        row = found.row(detector.spec, "dark")
        assert row.auroc == pytest.approx(davis.metrics.auroc(ids, oods), abs=1e-9)
        assert (row.id_images, row.ood_images, row.group) == (70, 60, "far")
        moved = found.row("mean + adascale_l(k_shift=10)", "odd")
        assert (moved.id_images, moved.ood_images, moved.group) == (40, 40, "near")
        again = results.load(tmp_path / "run")
        assert again.rows == found.rows
        assert again.units("dark")["sample_max"].shape == (60, models.CHANNELS)
        assert again.head()["weight"].shape == (models.CLASSES, models.CHANNELS)

    def test_thresholds_are_set_on_the_calibration_images(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        specs = ["max + energy", "mean + knn(k=5)", "odin + msp"]
        held = pictures("held", 90, 8)
        described = replace(benchmark(backbone, specs), calibration=held)
        found = run(described, tmp_path / "run", cache=tmp_path / "cache")
        train = [batch for batch, _, _ in described.fit.batches(0, 32)]
        for spec in specs[:2]:
            detector = davis.Detector(backbone, spec).fit(train)
            detector.calibrate([tensors(held)], tpr=0.95)
            row = found.row(detector.spec, "dark")
            for share, images in ((row.id_accepted, described.test), (row.ood_accepted, described.ood["dark"][0])):
                is_ood = detector(tensors(images)).is_ood  # type: ignore[arg-type]
                assert is_ood is not None
                assert share == pytest.approx(1 - is_ood.double().mean().item())
        assert found.facts["calibration"] == {"set": "held", "images": 90, "tpr": 0.95}
        few = replace(described, pixel_images=18)
        moved = run(few, tmp_path / "few", cache=tmp_path / "cache").row("odin + mean + msp", "dark")
        assert moved.id_accepted is None  # 19 images are needed to promise 95%
        with pytest.raises(ValueError, match="18 calibration images are too few to accept 95% of ID images; 19 are"):
            run(replace(described, calibration=pictures("held", 18, 8)), tmp_path / "no", cache=tmp_path / "cache")

    def test_methods_that_cannot_work_are_left_out(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        specs = ["mean + knn(k=500)", "energy", "max + nnguide(k=400)", "mean + knn(k=5)", "odin + msp"]
        found = run(benchmark(backbone, specs), tmp_path / "run", cache=tmp_path / "cache")
        assert found.specs == ["mean + energy", "mean + knn(k=5)", "odin + mean + msp"]
        assert list(found.facts["left_out"]) == ["mean + knn(k=500)", "max + nnguide(k=400)"]
        assert "150" in found.facts["left_out"]["mean + knn(k=500)"]  # as many as there are
        alone = run(benchmark(backbone, specs[1:2] + specs[3:]), tmp_path / "alone", cache=tmp_path / "cache")
        assert alone.rows == found.rows
        assert run(benchmark(backbone, specs), tmp_path / "run", cache=tmp_path / "cache").rows == found.rows
        with pytest.raises(ValueError, match=r"none of the 1 methods works here; the first, 'mean \+ knn\(k=500\)'"):
            run(benchmark(backbone, specs[:1]), tmp_path / "none", cache=tmp_path / "cache")
        assert not (tmp_path / "none").exists()

    def test_methods_that_break_while_scoring_are_left_out(
        self, backbone: davis.Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from davis.stages import MaxLogit

        forward = MaxLogit.forward

        def overflow(self: Any, features: torch.Tensor, *rest: Any) -> torch.Tensor:
            scores = forward(self, features, *rest)
            return torch.where(features.mean(1) < features.mean(1).median(), scores / 0, scores)

        monkeypatch.setattr(MaxLogit, "forward", overflow)
        found = run(benchmark(backbone, ["energy", "maxlogit", "msp"]), tmp_path / "run", cache=tmp_path / "cache")
        assert found.specs == ["mean + energy", "mean + msp"]
        assert "NaN or infinity" in found.facts["left_out"]["mean + maxlogit"]
        assert set(found.facts["accuracy_by_spec"]) == set(found.specs)

    def test_what_methods_warn_of_is_kept_with_their_names(
        self, backbone: davis.Backbone, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        specs = ["mean + knn(k=500)", "energy", "max + mahalanobis", "vim", "mahalanobis | energy | knn(k=2)"]
        five = pictures("train", 5, 1, labelled=True)
        five.labels = np.arange(5)  # one image of each class: nothing varies within them
        described = replace(benchmark(backbone, specs), fit=five, calibration=pictures("held", 90, 8))
        found = run(described, tmp_path / "run", cache=tmp_path / "cache")
        assert list(found.facts["left_out"]) == [
            "mean + knn(k=500)",
            "mean + mahalanobis | mean + energy | mean + knn(k=2)",
        ]
        few = "5 images for 24 channels; their covariance is singular, fit on more images"
        said = found.facts["warnings"]
        assert list(said) == ["max + mahalanobis", "mean + vim"]
        assert said["max + mahalanobis"][:2] == [
            f"mahalanobis: {few}",
            "mahalanobis: features do not vary within classes; every image scores 0: fit on more images",
        ]
        assert said["max + mahalanobis"][2].startswith("all 90 held-out scores are 0: the detector cannot tell")
        assert said["mean + vim"][0] == f"vim: {few}"
        assert len(said["max + mahalanobis"]) == 3
        assert len(set(said["mean + vim"])) == len(said["mean + vim"])
        assert caplog.text == ""  # the caller says them, once
        written = (tmp_path / "run" / "results.json").read_bytes()
        for lost in (["results.json"], ["results.json", "scores/dark.npz"], ["results.json", "scores/odd.npz"]):
            for name in lost:
                (tmp_path / "run" / name).unlink()
            run(described, tmp_path / "run", cache=tmp_path / "cache")
            assert (tmp_path / "run" / "results.json").read_bytes() == written, lost

    def test_a_method_that_moves_images_may_warn_while_it_scores(
        self, backbone: davis.Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from davis.stages import MaxLogit

        forward = MaxLogit.forward

        def loud(self: Any, *inputs: torch.Tensor) -> torch.Tensor:
            warnings.warn("odd", stacklevel=1)
            self.warn("even")
            return forward(self, *inputs)

        described = benchmark(backbone, ["odin + maxlogit", "odin + msp", "energy"])
        calm = run(described, tmp_path / "calm", cache=tmp_path / "cache")
        assert calm.facts["warnings"] == {}
        assert json.loads((tmp_path / "calm" / "warnings.json").read_text()) == {}
        monkeypatch.setattr(MaxLogit, "forward", loud)
        found = run(described, tmp_path / "run", cache=tmp_path / "cache")
        assert found.facts["warnings"] == {"odin + mean + maxlogit": ["maxlogit: even", "odd"]}
        assert found.rows == calm.rows

    def test_labels_outside_the_models_classes_are_refused(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        for role, name in (("fit", "train"), ("test", "test")):
            images = pictures(name, 70, 9, labelled=True)
            assert images.labels is not None
            images.labels += 1
            described = replace(benchmark(backbone, ["energy"]), **{role: images})  # type: ignore[arg-type]
            message = rf"the labels of {name} lie in 1\.\.5 and the model's classes in 0\.\.4; number them from 0"
            with pytest.raises(ValueError, match=message):
                run(described, tmp_path / role, cache=tmp_path / "cache")
            assert not (tmp_path / role).exists()

    def test_labels_of_ood_images_may_be_any(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        odd = pictures("odd", 30, 9, labelled=True)
        assert odd.labels is not None
        odd.labels += 90
        run(replace(benchmark(backbone, ["energy"]), ood={"odd": (odd, "far")}), tmp_path / "run", cache=tmp_path / "c")

    def test_the_same_images_as_id_and_ood(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        for count, seed, name in ((70, 2, "test"), (150, 1, "train")):
            described = replace(
                benchmark(backbone, ["energy"]), ood={"same": (pictures("same", count, seed, labelled=True), "far")}
            )
            with pytest.raises(ValueError, match=f"the OOD set same is the ID set {name}: give other images"):
                run(described, tmp_path / "run", cache=tmp_path / "cache")
        assert not (tmp_path / "run").exists()

    def test_pixels_are_taken_from_all_over_a_set(self) -> None:
        images = pictures("sorted", 70, 5)
        chosen = torch.cat(list(_some(images, 20, 32)))
        everything = tensors(images)
        places = [int((everything == one).flatten(1).all(1).nonzero()) for one in chosen]
        assert len(places) == 20
        assert places == sorted(set(places))
        assert max(b - a for a, b in pairwise(places)) <= 4
        assert places[0] == 0
        assert len(torch.cat(list(_some(images, 500, 32)))) == 70

    def test_a_folder_belongs_to_one_benchmark(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        run(benchmark(backbone, ["energy"]), tmp_path / "run", cache=tmp_path / "cache")
        with pytest.raises(ValueError, match="holds another benchmark"):
            run(benchmark(backbone, ["msp"]), tmp_path / "run", cache=tmp_path / "cache")
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "thesis.txt").write_text("x")
        with pytest.raises(ValueError, match="not empty"):
            run(benchmark(backbone, ["energy"]), tmp_path / "mine", cache=tmp_path / "cache")
        with pytest.raises(ValueError, match="twice"):
            run(benchmark(backbone, ["energy", "mean + energy"]), tmp_path / "two", cache=tmp_path / "cache")

    @pytest.mark.parametrize("name", ["farood", "nearood", "..", "a/b", ""])
    def test_names_that_mean_something_else(self, backbone: davis.Backbone, tmp_path: Path, name: str) -> None:
        made = benchmark(backbone, ["energy"])
        far = next(iter(made.ood.values()))
        with pytest.raises(ValueError, match=r"give the image set another name|cannot name an image set"):
            run(replace(made, ood={name: far}), tmp_path / "run", cache=tmp_path / "cache")
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("left", ["lock", "benchmark.json.next"])
    def test_killed_before_the_folder_was_its_own(self, backbone: davis.Backbone, tmp_path: Path, left: str) -> None:
        (tmp_path / "run" / "cache").mkdir(parents=True)
        (tmp_path / "run" / left).touch()
        run(benchmark(backbone, ["energy"]), tmp_path / "run", cache=tmp_path / "run" / "cache")
        assert not (tmp_path / "run" / left).exists()

    def test_one_process_at_a_time(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        made = benchmark(backbone, ["energy"])
        with (
            alone_in(tmp_path / "run", "benchmarks in"),
            pytest.raises(ValueError, match=r"another process benchmarks in .*run; wait for it"),
        ):
            run(made, tmp_path / "run", cache=tmp_path / "cache")
        run(made, tmp_path / "run", cache=tmp_path / "cache")
        assert not (tmp_path / "run" / "lock").exists()

    def test_known_sets_must_differ(self, backbone: davis.Backbone, tmp_path: Path) -> None:
        made = benchmark(backbone, ["energy"])
        twin = ArraySet("twin", made.fit.images, made.fit.labels, PREPARED)  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match=r"the ID set twin is the ID set train: give other images"):
            run(replace(made, test=twin), tmp_path / "run", cache=tmp_path / "cache")

    @pytest.mark.parametrize(
        ("file", "content"),
        [
            *(("results.json", text) for text in (b"{", b"[]", b'{"format": 1, "rows": []}')),
            *(("units/dark.npz", content) for content in (b"", b"PK", b"x" * 99)),
        ],
    )
    def test_a_damaged_file_is_named_where_it_is_read(
        self, backbone: davis.Backbone, tmp_path: Path, file: str, content: bytes
    ) -> None:
        run(benchmark(backbone, ["energy"]), tmp_path / "run", cache=tmp_path / "cache")
        (tmp_path / "run" / file).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{file} is damaged .*; remove it and run the benchmark again"):
            results.load(tmp_path / "run").units("dark")

    @pytest.mark.parametrize("file", ["scores/dark.npz", "accuracy.json", "overhead.json", "benchmark.json"])
    def test_a_damaged_file_is_named_where_a_run_goes_on(
        self, backbone: davis.Backbone, tmp_path: Path, file: str
    ) -> None:
        made = benchmark(backbone, ["energy"])
        run(made, tmp_path / "run", cache=tmp_path / "cache")
        before = digest(tmp_path / "run" / "results.json")
        (tmp_path / "run" / file).write_bytes(b"")
        with pytest.raises(ValueError, match=rf"{file} is damaged .*; (remove it and run|choose another folder)"):
            run(made, tmp_path / "run", cache=tmp_path / "cache")
        if file != "benchmark.json":  # which says whose the folder is
            (tmp_path / "run" / file).unlink()
            run(made, tmp_path / "run", cache=tmp_path / "cache")
            assert digest(tmp_path / "run" / "results.json") == before

    @pytest.mark.parametrize(
        "file", ["left_out.json", "warnings.json", "units/dark.npz", "scores/dark.npz", "head.npz"]
    )
    def test_a_lost_file_is_made_again(self, backbone: davis.Backbone, tmp_path: Path, file: str) -> None:
        few = pictures("train", 20, 1, labelled=True)  # for 24 channels: vim warns
        made = replace(benchmark(backbone, ["energy", "knn(k=999)", "vim"]), fit=few)
        run(made, tmp_path / "run", cache=tmp_path / "cache")
        before = {path: digest(path) for path in (tmp_path / "run").rglob("*") if path.name != "timings.json"}
        assert json.loads((tmp_path / "run" / "left_out.json").read_text())
        assert json.loads((tmp_path / "run" / "warnings.json").read_text())
        (tmp_path / "run" / file).unlink()
        run(made, tmp_path / "run", cache=tmp_path / "cache")
        after = {path: digest(path) for path in (tmp_path / "run").rglob("*") if path.name != "timings.json"}
        assert after == before

    @pytest.mark.parametrize("file", ["record.json", "mean.npy"])
    def test_a_damaged_cache_is_named(self, backbone: davis.Backbone, tmp_path: Path, file: str) -> None:
        images = pictures("test", 70, 2)
        kept = cache.fill(tmp_path, backbone, images)
        (kept.folder / file).write_bytes(b"[]")
        with pytest.raises(ValueError, match=rf"{file} is .*; remove .* and run again"):
            cache.fill(tmp_path, backbone, images)

    @pytest.mark.slow
    def test_killed_at_any_moment_it_ends_with_the_same_bytes(self, tmp_path: Path) -> None:
        """SIGKILL at random moments until it is done; every file equals that of an undisturbed run."""
        script = (
            "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); sys.path.insert(0, sys.argv[2])\n"
            "import torch; torch.set_num_threads(1)\n"
            "import davis, models, test_run as t; from davis.bench import cache; cache._SAVE_EVERY = 0.0\n"
            "specs = ['energy', 'max + knn(k=5)', 'odin + msp', 'vim', 'knn(k=999)']\n"
            "b = t.benchmark(davis.Backbone(models.small_net()), specs)\n"
            "b = t.replace(b, fit=t.pictures('train', 20, 1, labelled=True))\n"  # too few for ViM, which says so
            "print('begun', flush=True)\n"
            "folder = Path(sys.argv[3]); t.run(b, folder / 'run', cache=folder / 'cache')\n"
        )
        here = Path(__file__).resolve().parent
        command = [sys.executable, "-c", script, str(here.parent), str(here)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}

        def begin(folder: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen([*command, str(tmp_path / folder)], env=environment, stdout=subprocess.PIPE)
            assert process.stdout is not None
            with process.stdout:
                assert process.stdout.readline() == b"begun\n"  # the imports take most of the time, and vary
            return process

        calm, started = begin("calm"), time.monotonic()
        assert calm.wait() == 0
        takes = time.monotonic() - started
        random.seed(0)
        kills = 0
        for share in (0.05, 0.2, 0.3, 0.4, 0.5, 0.6):  # what is left gets less, and so does the chance to hit it
            rough = begin("rough")
            try:
                rough.wait(timeout=random.uniform(0.5, 1.0) * share * takes)
            except subprocess.TimeoutExpired:
                rough.kill()
                rough.wait()
                kills += 1
        assert kills > 0
        assert list(results.load(tmp_path / "calm" / "run").facts["warnings"]) == ["mean + vim"]
        assert begin("rough").wait() == 0
        for part in (
            "run/results.json",
            "run/scores",
            "run/units",
            "run/accuracy.json",
            "run/head.npz",
            "run/warnings.json",
        ):
            assert digest(tmp_path / "rough" / part) == digest(tmp_path / "calm" / part), part


def digest(path: Path) -> str:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return json.dumps([(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files])
