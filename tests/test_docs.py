"""The documents say what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import models
import torch

from davis import stages
from davis.tuning import expand

ROOT = Path(__file__).resolve().parent.parent


def test_methods_page_is_current() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "generate.py"))["page"]()
    assert (ROOT / "docs" / "methods.md").read_text(encoding="utf-8") == page, "run: python docs/generate.py"


def test_readme_names_every_stage_and_stays_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 120
    table = [line for line in text.splitlines() if line.startswith("| ")]
    named = set(re.findall(r"`(\w+)(?:\([^`]*\))?`", "\n".join(table)))
    assert set(stages.REGISTRY) <= named


def test_specs_in_the_documents_parse() -> None:
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for text in re.findall(r'"([a-z_]+(?:\([^")]*\))? \+ [^"]+)"', path.read_text(encoding="utf-8")):
            assert expand(text), (path, text)  # a spec is a grid of one


def test_readme_code_runs(tmp_path: Path) -> None:
    """The README's two blocks of Python, with a small network in the place of ResNet-50."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {
        "train_batches": [models.photos(60, 1)],
        "holdout_batches": [models.photos(40, 2)],
        "test_batches": [models.photos(10, 3)],
        "images": models.photos(5, 4),
        "model": models.small_net(),
    }
    first = blocks[0].replace("from torchvision.models import resnet50\n", "")
    first = re.sub(r"^model = .*$", "", first, flags=re.MULTILINE)
    exec(first.replace('"folder"', repr(str(tmp_path / "folder"))), names)
    exec(blocks[1], names)
    scores = names["scores"]
    assert isinstance(scores, dict)
    assert list(scores) == ["mean + energy", "max + energy", "max + dice + energy", "mean + knn"]
    assert all(isinstance(score, torch.Tensor) and score.shape == (10,) for score in scores.values())
