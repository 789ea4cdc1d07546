"""Several processes on one card: a service that is there, is not, or does not start. The real one needs a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from davis.training import jobs, sharing
from davis.training.jobs import Job, run_jobs
from davis.training.recipe import Recipe
from davis.training.sharing import DAEMON, shared_card

TINY = "resnet18(width=2)"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A service that writes down what it is told; it goes on in the background, its output open, as the real one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    written = tmp_path / "calls"
    daemon = folder / DAEMON
    daemon.write_text(
        "#!/bin/sh\n"
        f'echo "$1|$(cat)|$CUDA_MPS_PIPE_DIRECTORY|$CUDA_MPS_LOG_DIRECTORY" >> {written}\n'
        '[ "$1" = -d ] && sleep 30 &\nexit 0\n'
    )
    daemon.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(sharing, "_answers", lambda own: True)
    return written


def test_the_service_lasts_as_long_as_it_is_used(calls: Path) -> None:
    said: list[str] = []
    with shared_card(said.append) as environment:
        place = environment["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(place).is_dir()
        assert len(place) < 60  # a socket in it has a name of 108 characters at most
        assert calls.read_text() == f"-d||{place}|{place}\n"
    assert calls.read_text().splitlines()[1:] == [f"|quit -t 5|{place}|{place}"]
    assert not Path(place).exists()
    assert said == []


def test_a_card_that_does_not_answer(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As here, where there is none behind the service."""
    monkeypatch.undo()
    monkeypatch.setenv("PATH", f"{calls.parent / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said: list[str] = []
    with shared_card(said.append) as environment:
        assert environment == {}
        assert len(calls.read_text().splitlines()) == 2  # begun and ended
    assert said == [f"the card does not answer through {DAEMON}: the trainings take turns on it"]


def test_its_logs_stay_in_a_folder_that_is_given(calls: Path, tmp_path: Path) -> None:
    with shared_card(print, tmp_path / "logs") as environment:
        assert environment["CUDA_MPS_LOG_DIRECTORY"] == str(tmp_path / "logs")
    assert (tmp_path / "logs").is_dir()
    assert "quit" in calls.read_text()


def test_one_that_the_user_runs_is_left_alone(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "mine")
    with shared_card(print) as environment:
        assert environment == {}
    assert not calls.exists()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, f"no {DAEMON} here: the trainings take turns on the card"),
        ("echo no such device; exit 3", f"{DAEMON} did not start (no such device): the trainings take turns"),
        ("exit 3", f"{DAEMON} did not start (status 3): the trainings take turns"),
    ],
)
def test_without_it_they_take_turns(
    script: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    if script is not None:
        (tmp_path / DAEMON).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / DAEMON).chmod(0o755)
    said: list[str] = []
    with shared_card(said.append) as environment:
        assert environment == {}
    assert len(said) == 1
    assert said[0].startswith(message)


@pytest.mark.slow
def test_trainings_on_one_card_are_told_of_it(
    calls: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is a card, more than one training, and nobody says no; the trainings run on the CPU here."""
    monkeypatch.setattr(jobs, "_on_card", lambda device: device is None)
    started = []

    def start(job: Job, **options: object) -> object:
        started.append(options["environment"])
        return real(job, **options)  # type: ignore[arg-type]

    real = jobs.start
    monkeypatch.setattr(jobs, "start", start)

    def made(count: int, folder: str) -> list[Job]:
        recipes = [Recipe(arch=TINY, dataset=str(place), epochs=1, batch=20, seed=seed) for seed in range(count)]
        return [Job(recipe, tmp_path / folder / recipe.name) for recipe in recipes]

    watched: list[int] = []
    rows = run_jobs(made(2, "shared"), watch=lambda running: watched.append(len(running)))
    assert [row["state"] for row in rows] == ["trained", "trained"]
    assert max(watched) == 2
    assert len(calls.read_text().splitlines()) == 2
    assert all("CUDA_MPS_PIPE_DIRECTORY" in environment for environment in started)
    started.clear()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    settings: dict[str, Any]
    for folder, count, settings in (("one", 1, {}), ("no", 2, {"share": False}), ("cpu", 2, {"device": "cpu"})):
        run_jobs(made(count, folder), **settings)
    assert len(calls.read_text().splitlines()) == 2
    assert started == [{}, {}, {}, {"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "2"}]  # five cores for two trainings
