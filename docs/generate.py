"""Writes docs/methods.md from the stages themselves, so that it cannot lie: python docs/generate.py"""

from __future__ import annotations

import inspect
from pathlib import Path

from davis.stages import REGISTRY
from davis.stages.base import write

INTRODUCTION = """# Methods

Every stage of the spec language with its settings and defaults. This page is written by `docs/generate.py` from the
classes' own docstrings.

h is the feature vector of an image (after pooling), f = W h + b its logits, K the number of classes, p the softmax of
f, y the class with the largest logit; all of the features that reach the stage. `p` as a setting is a percent from 0 to
100. Scores are float64, and higher means more in-distribution.
"""

TITLES = {
    "perturb": "Perturb: moves the image",
    "pool": "Pool: from the map to features",
    "shape": "Shape: changes features",
    "head": "Head: from features to logits",
    "score": "Score: one number per image",
    "fuse": "Fuse: several detectors, joined by `|`, to one score",
}


def page() -> str:
    """The whole of docs/methods.md."""
    parts = [INTRODUCTION]
    for kind, title in TITLES.items():
        parts.append(f"## {title}\n")
        for name, stage in REGISTRY.items():
            if stage.kind != kind:
                continue
            settings = ", ".join(f"{key}={write(value.default)}" for key, value in stage.parameters_of().items())
            mark = " (experimental)" if stage.experimental else ""
            text = inspect.cleandoc(inspect.getdoc(stage) or "")
            parts.append(f"### `{name}{f'({settings})' if settings else ''}`{mark}\n\n{text}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("methods.md").write_text(page(), encoding="utf-8")
