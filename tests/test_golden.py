"""Every golden score through the public API, in float64 and float32."""

from __future__ import annotations

from functools import cache
from typing import Any

import golden
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import davis
from davis import stages
from davis.types import Classifier

pytestmark = pytest.mark.skipif(
    not golden.entries(), reason="no folder of golden scores (shared/) beside the repository"
)

PRECISIONS = [pytest.param(torch.float64, id="float64"), pytest.param(torch.float32, id="float32")]


@cache
def backbone(case: str, network: bool, dtype: torch.dtype) -> davis.Backbone:
    return davis.Backbone((golden.ConvModel if network else golden.MapModel)(case).to(dtype))


def batches(case: str, network: bool, dtype: torch.dtype) -> list[Any]:
    if network:
        return [golden.tensor(f"in|{case}|net_val_x", dtype)]
    maps, labels = golden.tensor(f"in|{case}|train_maps", dtype), golden.tensor(f"in|{case}|train_labels")
    return list(zip(maps.split(150), labels.split(150), strict=True))


def test_images(case: str, network: bool, dtype: torch.dtype) -> Tensor:
    return golden.tensor(f"in|{case}|{'net_test_x' if network else 'test_maps'}", dtype)


test_images.__test__ = False  # type: ignore[attr-defined]


def compare(entry: dict[str, Any], actual: Tensor) -> None:
    double = actual.dtype == torch.float64 and not entry.get("single")
    rtol, atol = (entry["rtol"], entry["atol"]) if double else (1e-4, 1e-5)
    np.testing.assert_allclose(
        actual.numpy(), golden.arrays()[entry["key"]], rtol=rtol, atol=atol, err_msg=entry["key"]
    )


def of(method: str) -> list[Any]:
    return [pytest.param(entry, id=entry["key"]) for entry in golden.entries() if entry["method"] == method]


def test_there_are_950_of_which_811_are_detectors() -> None:
    assert len(golden.entries()) == 950
    assert sum(entry["spec"] is not None for entry in golden.entries()) == 811


GROUPS = sorted({(entry["case"], entry["pooling"]) for entry in golden.entries() if entry["spec"]})


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize(("case", "pooling"), GROUPS)
def test_detectors(case: str, pooling: str, dtype: torch.dtype) -> None:
    for entry in golden.entries():
        if entry["spec"] is None or (entry["case"], entry["pooling"]) != (case, pooling):
            continue
        network = golden.uses_network(entry["method"])
        detector = davis.Detector(backbone(case, network, dtype), entry["spec"]).fit(batches(case, network, dtype))
        score = detector(test_images(case, network, dtype)).score
        compare(entry | {"single": dtype == torch.float32}, score)


@pytest.mark.parametrize("case", ["relu", "signed"])
def test_fitting_all_at_once_gives_the_same_scores(case: str) -> None:
    chosen = [e for e in golden.entries() if e["spec"] and e["case"] == case and not golden.uses_network(e["method"])]
    chosen = chosen[::7]
    detectors = davis.fit_all(
        backbone(case, False, torch.float64), [e["spec"] for e in chosen], batches(case, False, torch.float64)
    )
    for entry, detector in zip(chosen, detectors, strict=True):
        compare(entry, detector(test_images(case, False, torch.float64)).score)


@pytest.mark.parametrize("entry", of("features_train") + of("features_test") + of("net_features"))
def test_features(entry: dict[str, Any]) -> None:
    case, network = entry["case"], entry["method"] == "net_features"
    detector = davis.Detector(backbone(case, network, torch.float64), f"{golden.POOLS[entry['pooling']]} + energy")
    maps = golden.tensor(f"in|{case}|train_maps") if entry["method"] == "features_train" else None
    compare(entry, detector.features(test_images(case, network, torch.float64) if maps is None else maps))


@pytest.mark.parametrize("entry", of("logits"))
def test_logits_of_a_pooling(entry: dict[str, Any]) -> None:
    detector = davis.Detector(
        backbone(entry["case"], False, torch.float64), f"{golden.POOLS[entry['pooling']]} + energy"
    )
    features = detector.features(test_images(entry["case"], False, torch.float64))
    compare(entry, detector.backbone.classifier(features).detach())


@pytest.mark.parametrize("entry", of("ash_s_p90_shaped"))
def test_shaped_features(entry: dict[str, Any]) -> None:
    spec = f"{golden.POOLS[entry['pooling']]} + ash_s(p=90) + energy"
    detector = davis.Detector(backbone(entry["case"], False, torch.float64), spec)
    compare(entry, detector.features(test_images(entry["case"], False, torch.float64)))


POOLS = {
    "pool_entropy_softmax": stages.Entropy(variant="softmax"),
    "pool_entropy_paper": stages.Entropy(variant="paper"),
    "pool_median_mid": stages.Median(ties="mean"),
    "pool_mean+3std_ddof0": stages.Davis(gamma=3, ddof=0),
}


@pytest.mark.parametrize("entry", [entry for method in POOLS for entry in of(method)])
def test_pools(entry: dict[str, Any]) -> None:
    pool = POOLS[entry["method"]]
    images = test_images(entry["case"], False, torch.float64)
    compare(entry, pool(backbone(entry["case"], False, torch.float64)(images, statistics=pool.statistics())))


@pytest.mark.parametrize("entry", of("pool_std"))
def test_std(entry: dict[str, Any]) -> None:
    activations = backbone(entry["case"], False, torch.float64)(test_images(entry["case"], False, torch.float64))
    assert activations.std is not None
    compare(entry, activations.std)


@pytest.mark.parametrize("entry", of("odin_T1000_e0.0014_std"))
def test_odin_with_input_std(entry: dict[str, Any]) -> None:
    pool = golden.POOLS[entry["pooling"]]
    spec = f"odin(eps=0.0014, t=1000, input_std=[0.2471, 0.2435, 0.2616]) + {pool} + msp(t=1000)"
    detector = davis.Detector(backbone(entry["case"], True, torch.float64), spec)
    compare(entry, detector(test_images(entry["case"], True, torch.float64)).score)


class GodinModel(nn.Module):
    """A model with a GODIN head; the golden entries fix the h part, the g part is free."""

    def __init__(self, case: str, similarity: Any) -> None:
        super().__init__()
        weight = golden.tensor(f"in|{case}|godin_h")
        self.body = nn.Identity()
        self.head = stages.GodinHead(weight.shape[1], weight.shape[0], similarity=similarity).double()
        with torch.no_grad():
            self.head.weight.copy_(weight)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))


GODIN = [entry for kind in ("cosine", "inner", "euclid") for entry in of(f"godin_{kind}_maxh")]


@pytest.mark.parametrize("entry", GODIN)
def test_godin(entry: dict[str, Any]) -> None:
    model = GodinModel(entry["case"], entry["params"]["head"])
    detector = davis.Detector(
        davis.Backbone(model, tap="body", head="head"), f"{golden.POOLS[entry['pooling']]} + godin"
    )
    compare(entry, detector(test_images(entry["case"], False, torch.float64)).score)


@pytest.mark.parametrize("entry", of("godin_cosine_softmax"))
def test_godin_softmax(entry: dict[str, Any]) -> None:
    model = GodinModel(entry["case"], "cosine")
    energy = f"{golden.POOLS[entry['pooling']]} + energy"
    detector = davis.Detector(davis.Backbone(model, tap="body", head="head"), energy)
    features = detector.features(test_images(entry["case"], False, torch.float64))
    msp = stages.Msp()(features, model.head.numerator(features), Classifier(model.head))
    compare(entry, msp.detach())


@pytest.mark.parametrize("entry", of("combood_extreme_k50"))
def test_combood_on_extremes(entry: dict[str, Any]) -> None:
    """CombOOD's other variant, put together from the parts of the stage."""
    case = entry["case"]
    model = golden.ConvModel(case)

    def extremes(images: Tensor) -> Tensor:
        with torch.no_grad():
            before, logits = model.conv(images).flatten(1), model(images)
        columns = [logits.amax(1), -logits.amin(1), -before.amin(1), before.amax(1)]
        return torch.stack(columns, 1)

    fit, test = golden.tensor(f"in|{case}|net_val_x"), test_images(case, True, torch.float64)
    combined = stages.CombOod(k=50, reg=1)
    combined.fit_transform(extremes(fit))
    neighbour = davis.Detector(model, "mean + knn(k=50, squared=true)").fit([fit])(test).score
    channels = model.head.in_features
    compare(entry, -(channels**0.5) * (-neighbour).log() - combined.distance(extremes(test)))
