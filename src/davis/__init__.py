"""davis: knowing when an image classifier should not be trusted.

>>> import davis
>>> davis.canonical("max+energy")
'max + energy'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from davis.torchvision_ops import watch_imports

__version__ = "0.1.0"

watch_imports()

if TYPE_CHECKING:
    from davis.artifact import load as load
    from davis.artifact import save as save
    from davis.backbone import Backbone as Backbone
    from davis.detector import Detector as Detector
    from davis.detector import fit_all as fit_all
    from davis.explaining import explain as explain
    from davis.presets import preset as preset
    from davis.spec import canonical as canonical
    from davis.stages.base import NotFittedError as NotFittedError
    from davis.statistics import Statistics as Statistics
    from davis.tuning import recommend as recommend
    from davis.tuning import tune as tune
    from davis.types import Activations as Activations
    from davis.types import Output as Output

_HOMES = {
    "Activations": "davis.types",
    "Backbone": "davis.backbone",
    "Detector": "davis.detector",
    "NotFittedError": "davis.stages.base",
    "Output": "davis.types",
    "Statistics": "davis.statistics",
    "canonical": "davis.spec",
    "explain": "davis.explaining",
    "fit_all": "davis.detector",
    "load": "davis.artifact",
    "preset": "davis.presets",
    "recommend": "davis.tuning",
    "save": "davis.artifact",
    "tune": "davis.tuning",
}

_MODULES = ("calibrate", "catalog", "data", "metrics", "models", "monitor", "sets", "stages", "tuning", "zoo")

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that ``davis --help`` need not wait for torch."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"davis.{name}")
    raise AttributeError(f"module 'davis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
