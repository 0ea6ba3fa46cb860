"""Compaction changes the number of parts and nothing else, whoever reads and writes meanwhile."""

import itertools
import os
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import TableError
from autotune.table import Store, files
from autotune.table.outsiders import Table
from autotune.table.parts import Shelf
from autotune.trial import Status, Trial
from tests.table import sample

FOLDER = Path("nvidia_h200") / sample.NAME / "triton"


def _trials(*numbers: int) -> list[Trial]:
    return [sample.trial(number) for number in numbers]


def _parts(root: Path) -> set[Path]:
    return set((root / FOLDER).glob("*.parquet"))


def test_compaction_leaves_one_part_with_the_same_trials(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(5):
        store.append(_trials(number, number + 1))
    store.append([sample.trial(7, device=sample.CAPPED_H200)])
    before = store.trials(sample.NAME)
    store.compact(sample.NAME, NVIDIA_H200)
    assert store.trials(sample.NAME) == before
    assert len(_parts(tmp_path)) == 1
    store.compact(sample.NAME, NVIDIA_H200)
    assert store.trials(sample.NAME) == before


def test_compaction_keeps_the_part_that_holds_all_others(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(_trials(1))
    (whole,) = store.append(_trials(1, 2))
    store.compact(sample.NAME, NVIDIA_H200)
    assert _parts(tmp_path) == {whole}


def test_compaction_leaves_large_parts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    (large,) = store.append(_trials(*range(500)))
    small = [part for number in range(3) for part in store.append(_trials(1000 + number))]
    monkeypatch.setattr("autotune.table.parts.COMPACT_BYTES", sum(path.stat().st_size for path in small))
    store.compact(sample.NAME, NVIDIA_H200)
    left = _parts(tmp_path)
    assert large in left
    assert len(left) == 2
    assert len(store.trials(sample.NAME)) == 503


def test_compaction_sweeps_stale_temporary_files(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(_trials(1))
    stale, fresh = (tmp_path / FOLDER / name for name in (".a.parquet.1.ab.tmp", ".b.parquet.2.cd.tmp"))
    for path in (stale, fresh):
        path.touch()
    os.utime(stale, (time.time() - 3700,) * 2)
    store.compact(sample.NAME, NVIDIA_H200)
    assert not stale.exists()
    assert fresh.exists()


@pytest.mark.slow
def test_readers_and_writers_during_compaction_see_every_row(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(_trials(0))
    acknowledged = 1
    done = threading.Event()
    failures: list[str] = []

    def read() -> None:
        while not done.is_set():
            expected = acknowledged
            found = {trial.number for trial in store.trials(sample.NAME)}
            if missing := set(range(expected)) - found:
                failures.append(f"{sorted(missing)} of {expected}")

    def compact() -> None:
        while not done.is_set():
            store.compact(sample.NAME, NVIDIA_H200)

    threads = [threading.Thread(target=target) for target in (read, read, compact, compact)]
    for thread in threads:
        thread.start()
    for number in range(1, 40):
        store.append(_trials(number))
        acknowledged = number + 1
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store.trials(sample.NAME)) == 40


def test_a_listing_that_misses_both_the_old_parts_and_the_merged_one_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A liberty that ``readdir`` has while a folder changes: here the first listing is blind to everything new."""
    store = Store(tmp_path)
    for number in range(3):
        store.append(_trials(number))
    listings: Iterator[list[Path]] = iter([[]])
    original = files.list_folder

    def blind_once(folder: Path) -> list[Path]:
        return next(listings, original(folder)) if folder == tmp_path / FOLDER else original(folder)

    monkeypatch.setattr("autotune.table.parts.list_folder", blind_once)
    assert store.trials(sample.NAME) == _trials(0, 1, 2)


def test_parts_that_vanish_between_listing_and_reading_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    for number in range(3):
        store.append(_trials(number))
    original = files.read_bytes
    reads: list[Path] = []

    def compacted_before_the_second_read(path: Path) -> bytes:
        reads.append(path)
        if len(reads) == 2:
            store.compact(sample.NAME, NVIDIA_H200)
        return original(path)

    monkeypatch.setattr("autotune.table.parts.read_bytes", compacted_before_the_second_read)
    assert store.trials(sample.NAME) == _trials(0, 1, 2)


def test_a_folder_whose_parts_always_vanish_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = (tmp_path / FOLDER / f"{number:064x}.parquet" for number in itertools.count())
    monkeypatch.setattr("autotune.table.parts.list_folder", lambda folder: [next(listed)])
    with pytest.raises(TableError, match="keep vanishing"):
        Store(tmp_path).trials(sample.NAME, NVIDIA_H200)


def _failed(number: int, message: str) -> Trial:
    trial = sample.trial(number)
    return replace(trial, outcome=replace(trial.outcome, status=Status.LAUNCH_ERROR, timing=None, message=message))


def test_rows_that_a_store_has_written_are_compacted_without_building_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, read = Store(tmp_path), list[Path]()
    read_part = Shelf.read_part

    def note(shelf: Shelf, path: Path, *, races_only: bool = False) -> Table | None:
        read.append(path)
        return read_part(shelf, path, races_only=races_only)

    monkeypatch.setattr(Shelf, "read_part", note)
    others = Store(tmp_path).append(_trials(1))
    store.append([_failed(2, "x" * 10_000)])
    store.append(_trials(3))
    store.compact(sample.NAME, NVIDIA_H200)
    assert read == others
    monkeypatch.undo()
    found = Store(tmp_path).trials(sample.NAME)
    assert [trial.number for trial in found] == [1, 2, 3]
    assert len(found[1].outcome.message) < 10_000
    store.append(_trials(4))
    store.compact(sample.NAME, NVIDIA_H200)
    assert Store(tmp_path).trials(sample.NAME)[:3] == found


def test_a_part_that_vanishes_does_not_come_back_by_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    gone, *_ = [store.append(_trials(number))[0] for number in (1, 2, 3)]
    small_parts = Shelf.small_parts

    def vanish(shelf: Shelf) -> list[Path]:
        found = small_parts(shelf)
        gone.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Shelf, "small_parts", vanish)
    store.compact(sample.NAME, NVIDIA_H200)
    assert Store(tmp_path).trials(sample.NAME) == _trials(2, 3)


def test_a_store_can_be_pickled_after_it_has_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(_trials(1))
    copy = pickle.loads(pickle.dumps(store))
    copy.compact(sample.NAME, NVIDIA_H200)
    assert copy.trials(sample.NAME) == _trials(1)
