"""A task runs on a host: resumed, fenced, and shared trial by trial with all others."""

import errno
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import HostError, SupersededError, TableError
from autotune.grid import GridPlace
from autotune.grid.task_runner import SharedStore, run_task
from autotune.table import Store, files
from autotune.trial import Stage, Trial
from tests import sample
from tests.grid import recorded_grid
from tests.grid.recorded_grid import CAPPED, CONFIGS, NAME, task


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a GPU, with the recorded grid and a scratch folder of its own."""
    recorded_grid.install(monkeypatch)
    sample.serve_from(monkeypatch, tmp_path / "home", tmp_path / "results")
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("AUTOTUNE_SCRATCH", str(tmp_path / "scratch"))


@pytest.fixture
def place(tmp_path: Path) -> GridPlace:
    return GridPlace(tmp_path / "place")


def rows(place: GridPlace) -> list[Trial]:
    return Store(Path(str(place)) / "tables").trials(NAME)


def screened(place: GridPlace) -> list[Trial]:
    return [row for row in rows(place) if row.stage is Stage.SCREEN]


class Stopped(Exception):
    """The host is gone."""


def stop_after(monkeypatch: pytest.MonkeyPatch, batches: int, error: Exception) -> None:
    """Raise in place of the batch after these."""
    original, left = SharedStore.append, [batches]

    def append(self: SharedStore, trials: Iterable[Trial]) -> list[Path]:
        if left[0] == 0:
            raise error
        left[0] -= 1
        return original(self, trials)

    monkeypatch.setattr(SharedStore, "append", append)


def test_a_task_leaves_its_trials_its_winner_and_its_end(place: GridPlace, tmp_path: Path) -> None:
    ending = run_task(task(3), place, replay=True)
    assert (ending.state, ending.trials) == ("done", {"ok": CONFIGS - 1, "wrong_result": 1})
    (winner,) = Store(Path(str(place)) / "tables").winners(NAME, implementations=["line"])
    assert winner.config["STEP"] == 4
    (attempt,), (recorded,) = place.records()
    assert (attempt.number, attempt.device, attempt.power_cap_watts) == (1, "NVIDIA H200", 700)
    assert recorded == ending
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_task_that_is_done_is_not_run_again(place: GridPlace) -> None:
    first = run_task(task(0), place, replay=True)
    assert run_task(task(0), place, replay=True) == first
    assert len(place.records()[0]) == 1


def test_a_retry_measures_only_the_rest(place: GridPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        stop_after(patch, 5, Stopped())
        with pytest.raises(Stopped):
            run_task(task(0), place, replay=True)
    ending = run_task(task(0), place, replay=True)
    assert sum(ending.trials.values()) == CONFIGS - 5
    assert len(screened(place)) == len({row.candidate for row in screened(place)}) == CONFIGS
    assert [attempt.number for attempt in place.records()[0]] == [1, 2]


def test_a_task_of_another_budget_resumes_too(place: GridPlace) -> None:
    run_task(task(0), place, replay=True)
    ending = run_task(task(0, budget=100.0), place, replay=True)
    assert (ending.state, ending.trials) == ("done", {})
