"""Files that are there whole or not at all: after errors, after kills, with others at the same file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from davis.atomic import replacing, write


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_the_new_takes_the_place_of_the_old(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write(file, b"older and longer")
    write(file, b"new")
    assert file.read_bytes() == b"new"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("alone", [True, False])
def test_a_failure_leaves_the_older_file(tmp_path: Path, alone: bool) -> None:
    (tmp_path / "a.txt").write_text("older")
    with pytest.raises(TypeError), replacing(tmp_path / "a.txt", alone=alone) as stream:
        stream.write("no bytes")  # type: ignore[arg-type]
    assert names(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "older"


def test_a_kill_leaves_the_older_file_and_what_it_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("older")
    script = (
        "import os, pathlib, signal; from davis.atomic import replacing\n"
        "with replacing(pathlib.Path('a.txt')) as stream:\n"
        "    stream.write(b'half'); stream.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path)
    assert names(tmp_path) == ["a.txt", "a.txt.next"]
    assert (tmp_path / "a.txt").read_text() == "older"
    write(tmp_path / "a.txt", b"new")
    assert names(tmp_path) == ["a.txt"]


def test_a_link_in_the_place_of_what_a_kill_left_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "a.txt.next").symlink_to(tmp_path / "precious")
    write(tmp_path / "a.txt", b"new")
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "a.txt").is_symlink()


def test_two_at_one_file(tmp_path: Path) -> None:
    with replacing(tmp_path / "a.txt", alone=False) as first:
        with replacing(tmp_path / "a.txt", alone=False) as second:
            second.write(b"second")
        first.write(b"first")
    assert (tmp_path / "a.txt").read_bytes() == b"first"
    assert names(tmp_path) == ["a.txt"]
