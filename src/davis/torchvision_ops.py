"""Two operators that ``import torchvision`` asks for and that its wheel does not bring beside a CPU torch."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class _BeforeTorchvision(MetaPathFinder):
    """Declares the operators when torchvision is about to be imported, by whomever; finds nothing itself."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            declare_missing_operators()
        return None


def watch_imports() -> None:
    """Let any later ``import torchvision`` work; costs nothing until then."""
    if not any(isinstance(finder, _BeforeTorchvision) for finder in sys.meta_path):
        sys.meta_path.insert(0, _BeforeTorchvision())


def declare_missing_operators() -> None:
    """Make ``import torchvision`` work where its compiled operators do not load; else do nothing.

    Call it before any import of torchvision, timm included, as often as you like. Only the names
    are declared (pytorch/vision#9085): models, transforms and datasets work, box operators do not.
    """
    import torch

    # The search for torchvision's own files below must not come back here.
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _BeforeTorchvision)]
    if torch.version.cuda is None and torch.version.hip is None:
        _declare()


@functools.cache  # the declaration lasts as long as the library object, which the cache keeps
def _declare() -> torch.library.Library | None:
    import torch

    if _operators_load():
        return None
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def _operators_load() -> bool:
    """Whether torchvision is absent, or its operators are there once its compiled file is loaded."""
    import torch

    package = importlib.util.find_spec("torchvision")
    if package is None or package.origin is None:
        return True
    for compiled in Path(package.origin).parent.glob("_C.*"):
        with contextlib.suppress(OSError):
            torch.ops.load_library(compiled)
    try:
        return bool(torch.ops.torchvision.nms)
    except (AttributeError, RuntimeError):
        return False
