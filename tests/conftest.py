"""What every test may rely on: one thread per worker, the same random examples each run, the shared reference data."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import hypothesis
import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent

# A busy machine must not fail a test, and a failure must be the same one tomorrow.
hypothesis.settings.register_profile("davis", deadline=None, derandomize=True)
hypothesis.settings.load_profile("davis")


def pytest_configure(config: pytest.Config) -> None:
    """Keep workers from fighting over cores, and make torchvision importable beside a CPU build of torch."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"  # subprocesses
    if importlib.util.find_spec("davis.torchvision_ops"):
        from davis.torchvision_ops import declare_missing_operators

        declare_missing_operators()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run."""
    if not torch.cuda.is_available():
        skip(items, "gpu", "no accelerator")
    if not os.environ.get("DAVIS_TEST_NETWORK"):
        skip(items, "network", "set DAVIS_TEST_NETWORK=1 to run tests that download")


def skip(items: list[pytest.Item], marker: str, reason: str) -> None:
    for item in items:
        if item.get_closest_marker(marker):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference data beside the repository; tests that want it skip where it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("no folder of reference data (shared/) beside the repository")
    return folder
