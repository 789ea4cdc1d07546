"""A sample of benchmarks/sweep.py: each of its outcomes, on models that show it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

FILE = Path(__file__).resolve().parent.parent / "benchmarks" / "sweep.py"


@pytest.fixture(scope="module")
def sweep() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sweep_of_benchmarks", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("resnet10t", "convnext_atto", "mobilenetv3_small_050", "edgenext_xx_small", "regnetx_002", "repghostnet_050"),
        *("levit_128s", "swiftformer_xs", "nf_regnet_b0", "vit_wee_patch16_reg1_gap_256"),
    ],
)
def test_pooled_maps_pass(sweep: ModuleType, name: str) -> None:
    found = sweep.attempt(name)
    assert found["counts"]
    assert found["outcome"] == "passed", found
    assert found["spread"] > sweep.VARIES
    assert found["same_map"] in (True, None)
    assert found["same_map"] or name in ("swiftformer_xs", "levit_128s", "repghostnet_050", "nf_regnet_b0")


@pytest.mark.slow
def test_class_tokens_are_outside(sweep: ModuleType) -> None:
    found = sweep.attempt("vit_tiny_patch16_224")
    assert (found["counts"], found["outcome"]) == (False, "refused")
    assert found["error"].startswith("ValueError: ")


@pytest.mark.slow
def test_kinds_of_pooling(sweep: ModuleType) -> None:
    passed = sweep.attempt("resnet10t(global_pool=fastavg)")
    assert (passed["counts"], passed["outcome"]) == (True, "passed")
    refused = sweep.attempt("resnet10t(global_pool=catavgmax)")
    assert (refused["counts"], refused["outcome"]) == (True, "refused")
    assert "a maximum of its last map" in refused["error"]
    outside = sweep.attempt("vit_tiny_patch16_224(global_pool=map)")
    assert (outside["counts"], outside["outcome"]) == (False, "refused")
    assert "attention picks from its last map" in outside["error"]


@pytest.mark.slow
def test_a_map_of_one_position(sweep: ModuleType) -> None:
    assert sweep.attempt("vgg11")["outcome"] == "passed, map of one position"


def test_nothing_stays_constant(sweep: ModuleType) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm2d(4), nn.Linear(4, 3)
            nn.init.zeros_(self.head.weight)

        def get_classifier(self) -> nn.Module:
            return self.head

    model = sweep.randomised(Net())
    for tensor in model.state_dict().values():
        if tensor.ndim:
            assert tensor.float().std() > 1e-3
    assert (model.norm.running_var > 0).all()
    assert not model.training
    assert torch.isfinite(model.head.weight).all()
