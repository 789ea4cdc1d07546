"""Several processes on one card at the same time: CUDA's multi-process service, where the machine has it.

Without it the processes take turns, and what one small network leaves idle of a card stays idle.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

DAEMON = "nvidia-cuda-mps-control"
_PIPES, _LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_MOST = 300  # bytes of what it says
_PATIENCE, _LONGER = 10, 90  # seconds: for what takes none where all is well, and for what imports torch


@contextmanager
def shared_card(say: Callable[[str], None], folder: Path | None = None) -> Iterator[dict[str, str]]:
    """The environment variables of processes that share the card while this lasts; none where they take turns.

    The service is one of its own, with its logs in the folder: nobody else's processes come into it, and one that the
    user runs is left alone. It is tried by one process before it is relied on.
    """
    if _PIPES in os.environ:
        yield {}
        return
    daemon = shutil.which(DAEMON)
    if daemon is None:
        say(f"no {DAEMON} here: the trainings take turns on the card")
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="davis-mps-") if folder is None else nullcontext(folder) as place:
        Path(place).mkdir(parents=True, exist_ok=True)
        own = {_PIPES: str(place), _LOGS: str(place)}
        if (problem := _told(daemon, own, arguments=["-d"])) is not None:
            say(f"{DAEMON} did not start ({problem}): the trainings take turns on the card")
            yield {}
            return
        try:
            if _answers(own):
                yield own
                return
        finally:
            _told(daemon, own, commands="quit -t 5\n")
        say(f"the card does not answer through {DAEMON}: the trainings take turns on it")
        yield {}


def _answers(own: dict[str, str]) -> bool:
    words = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"]
    try:
        return subprocess.run(words, env=os.environ | own, capture_output=True, timeout=_LONGER).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def _told(daemon: str, own: dict[str, str], *, arguments: list[str] | None = None, commands: str = "") -> str | None:
    """Start the service, or pass commands to it; what is wrong, or None."""
    with tempfile.TemporaryFile() as output:  # a pipe would stay open as long as the service runs
        try:
            done = subprocess.run(
                [daemon, *(arguments or [])],
                input=commands.encode(),
                env=os.environ | own,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_PATIENCE,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return " ".join(str(error).split())
        output.seek(0)
        said = " ".join(output.read(_MOST).decode(errors="replace").split())
    return None if done.returncode == 0 or "already running" in said else said or f"status {done.returncode}"
