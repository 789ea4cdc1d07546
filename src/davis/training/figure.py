"""Loss and accuracy by epoch as a picture, where matplotlib is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def draw(history: Sequence[Mapping[str, Any]], title: str, file: Path) -> bool:
    """Write the curves to an .svg or .png file; False without matplotlib, which a training does not need."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    epochs = [record["epoch"] for record in history]
    picture = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = picture.subplots(1, 2)
    left.plot(epochs, [record["loss"] for record in history], color="#333333")
    left.set(xlabel="epoch", ylabel="training loss", yscale="log", title=title)
    for key, colour in (("train", "#999999"), ("test", "#c0392b")):
        right.plot(epochs, [100 * record[f"{key}_accuracy"] for record in history], color=colour, label=key)
    right.set(xlabel="epoch", ylabel="accuracy in percent", title=f"test {100 * history[-1]['test_accuracy']:.2f}")
    right.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    picture.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    return True
