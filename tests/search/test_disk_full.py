"""A disk that fills at any point of a search: it stops with the reason, keeps what it said, and goes on later."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from autotune.errors import TableError
from autotune.search import Limits, Observer, SearchResult, search
from autotune.space import Config
from autotune.table import Store
from autotune.trial import Stage, Trial
from tests.search.synthetic import SHAPE, SMALL, SYNTHETIC_SMALL, FakeExecutor
from tests.table.full_disk import FullDisk

TRIALS: Final = 3
POINTS: Final = 100


@dataclass
class Search(Observer):
    """Runs in one folder; notes what was submitted and what was acknowledged."""

    root: Path
    submitted: list[Config] = field(default_factory=list)
    kept: list[Trial] = field(default_factory=list)

    def run(self) -> SearchResult:
        executor, limits = FakeExecutor(), Limits(trials=TRIALS)
        try:
            return search(
                SYNTHETIC_SMALL, SHAPE, executor, self.store, limits=limits, sampler="exhaustive", observer=self
            )
        finally:
            self.submitted += executor.submitted

    def on_trial(self, trial: Trial) -> None:
        self.kept.append(trial)

    @property
    def store(self) -> Store:
        return Store(self.root)

    def check_full(self, error: TableError) -> None:
        """A full disk: the message says what to do, and what was acknowledged can be read."""
        assert str(error).startswith(f"{self.root}{os.sep}")
        assert "No space left on device; all that was kept before is" in str(error)
        assert "the same command" in str(error)
        stored = self.store.trials(SMALL.operation)
        assert set(self.kept) <= set(stored)
        names = [name for _, _, found in os.walk(self.root) for name in found]
        assert all(name.endswith((".parquet", ".snapshot")) or name == "SHA256SUMS" for name in names)

    def check_whole(self, result: SearchResult) -> None:
        """Space was freed: as if the disk had never been full."""
        stored = self.store.trials(SMALL.operation)
        screened = [trial.config for trial in stored if trial.stage is Stage.SCREEN]
        assert len(screened) == len(set(screened)) == TRIALS
        assert set(self.kept) <= set(stored)
        assert len(self.submitted) - TRIALS <= 1  # measured twice: at most what was in flight
        assert result.winner in stored
        files = [path for path in self.root.rglob("*") if path.is_file()]
        assert sorted(path.suffix for path in files) == ["", ".parquet", ".snapshot"]  # all trials in one part


def fill(folder: Path, **room: float) -> tuple[bool, FullDisk]:
    """A search on a disk with so much room, and the next one after space was freed; returns whether it was full."""
    study = Search(folder)
    full = False
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = FullDisk(monkeypatch, **room)
        try:
            study.run()
        except TableError as error:
            full = True
            study.check_full(error)
    study.check_whole(study.run())
    return full, disk


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> FullDisk:
    """A disk that had room for everything, and counted."""
    full, disk = fill(tmp_path_factory.mktemp("whole") / "study")
    assert not full
    assert disk.calls >= 5 * (TRIALS + 2)  # a file made, written, synced, renamed, its folder synced
    return disk


@pytest.mark.slow
def test_every_call_that_takes_space_may_find_the_disk_full(tmp_path: Path, whole: FullDisk) -> None:
    for calls in range(whole.calls):
        assert fill(tmp_path / str(calls), calls=calls)[0]
    assert not fill(tmp_path / "fits", calls=whole.calls)[0]


@pytest.mark.parametrize("chunk", range(4))
@pytest.mark.slow
def test_the_disk_may_fill_at_any_byte(tmp_path: Path, whole: FullDisk, chunk: int) -> None:
    for point in range(chunk, POINTS, 4):
        assert fill(tmp_path / str(point), size=whole.size * point // POINTS)[0]
