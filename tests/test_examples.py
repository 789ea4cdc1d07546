"""The examples run as a user runs them, and leave what they say they leave."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from davis.artifact import read_record

DIGITS = Path(__file__).resolve().parent.parent / "examples" / "digits.py"


@pytest.mark.slow
def test_digits(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, DIGITS], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    accuracy = float(re.findall(r"accuracy on 400 others: ([\d.]+)%", done.stdout)[0])
    assert accuracy > 90
    rows = re.findall(r"^│ (\S.*?) +│ +([\d.]+)% │ +([\d.]+)% │ +([\d.]+)% │ +([\d.]+)% │$", done.stdout, re.MULTILINE)
    assert len(rows) == 10
    for spec, *figures in rows:
        assert all(0 <= float(figure) <= 100 for figure in figures)
        accepted = float(figures[2])
        assert 88 <= accepted <= 100, f"{spec} was calibrated to accept 95% of digits"
    assert "bit-equal" in done.stdout
    record = read_record(tmp_path / "digits-output" / "detector")
    assert record["spec"] in {row[0] for row in rows}
    assert record["images_seen"] == 997
    with Image.open(tmp_path / "digits-output" / "digits.png") as picture:
        assert picture.size == (1000, 700)
        colours = {colour for _, colour in picture.convert("RGB").getcolors(picture.width * picture.height)}
    assert {(0x1A, 0x7F, 0x37), (0xCF, 0x22, 0x2E)} <= colours  # both verdicts are to be seen
