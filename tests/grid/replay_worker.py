"""Imported by a worker of Ray: the recorded grid answers there, too, and the test says when a fault is to come.

Below ``$AUTOTUNE_TEST_CONTROL``: a worker of a study that is to be held waits in the middle of it, having written
``held/<study>``, until there is ``released/<study>``; only the first that comes there. What was acknowledged is noted
in ``acknowledged/<process>``. A node with ``$AUTOTUNE_TEST_ROOM`` has room for so many files, then its disk is full.
"""

import errno
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from autotune.executor.replay import ReplayExecutor
from autotune.grid.task_runner import SharedStore
from autotune.table import files
from autotune.trial import Outcome, Trial
from tests.grid import recorded_grid

HELD_STUDIES: Final = 4  # the first ones
HELD_AT: Final = 6  # trials into a study


def study_of(trial: Any) -> int:
    return int(trial.shape.seq_q) // 16 - 1


def hold(patch: pytest.MonkeyPatch, control: Path) -> None:
    """Hold the first process that comes to the middle of a study that is to be held."""
    collect = ReplayExecutor.collect
    count = {"trials": 0, "study": -1}

    def held(self: ReplayExecutor, timeout: float | None = None) -> Outcome:
        study = study_of(self._rows[0])
        count.update(trials=count["trials"] + 1 if count["study"] == study else 1, study=study)
        if study < HELD_STUDIES and count["trials"] == HELD_AT and claim(control / "held" / str(study)):
            while not (control / "released" / str(study)).exists():
                time.sleep(0.05)
        return collect(self, timeout)

    patch.setattr(ReplayExecutor, "collect", held)


def claim(path: Path) -> bool:
    """Write who is held; False where another process has come there before."""
    who = {"pid": os.getpid(), "raylet": os.getppid(), "is_full": "AUTOTUNE_TEST_ROOM" in os.environ}
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(who))
    try:
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False


def note_acknowledged(patch: pytest.MonkeyPatch, control: Path) -> None:
    append = SharedStore.append

    def noted(self: SharedStore, trials: Iterable[Trial]) -> list[Path]:
        batch = list(trials)
        parts = append(self, batch)
        with open(control / "acknowledged" / str(os.getpid()), "a") as file:
            for trial in batch:
                file.write(f"{json.dumps([study_of(trial), trial.stage, str(trial.candidate)])}\n")
        return parts

    patch.setattr(SharedStore, "append", noted)


def fill_disk(patch: pytest.MonkeyPatch, room: int, scratch: Path) -> None:
    """Let the disk that holds the scratch folder be full after so many files of this process."""
    write, left = files._write_new, [room]

    def written(path: Path, data: bytes) -> None:
        if path.is_relative_to(scratch):
            left[0] -= 1
            if left[0] < 0:
                write(path, data[: len(data) // 2])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    patch.setattr(files, "_write_new", written)


if (named := os.environ.get("AUTOTUNE_TEST_CONTROL")) is not None:
    _patch = pytest.MonkeyPatch()  # for the life of the worker
    recorded_grid.install(_patch)
    hold(_patch, Path(named))
    note_acknowledged(_patch, Path(named))
    if (room := os.environ.get("AUTOTUNE_TEST_ROOM")) is not None:
        fill_disk(_patch, int(room), Path(os.environ["AUTOTUNE_SCRATCH"]))
