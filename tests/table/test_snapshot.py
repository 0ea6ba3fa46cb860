"""A snapshot changes how long serving takes, and never what is served."""

import errno
import itertools
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.device import NVIDIA_H200
from autotune.errors import TableError
from autotune.table import Store, winners
from autotune.table.files import SUMS_NAME, read_bytes, sha256
from autotune.table.parquet import encode
from autotune.trial import Stage, Trial
from tests.table import sample
from tests.table.faults import fail_call
from tests.table.growth import change_space
from tests.table.test_winners import tables

FOLDER = Path("nvidia_h200") / sample.NAME / "triton"


def search(number: int, median: float = 100.0) -> list[Trial]:
    """The race of a search for a problem of its own, and a screened row."""
    shape = replace(sample.SHAPE, batch=number + 1)
    raced = [
        sample.trial(
            10 * number + place, shape=shape, race_id=f"race {number}", timing=sample.timing(time), config=config
        )
        for place, (time, config) in enumerate([(median, sample.config(64)), (2 * median, sample.config(16))])
    ]
    screened = sample.trial(10 * number + 5, shape=shape, race_id="", config=sample.config(16, 2))
    return [*raced, screened]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of two searches with a snapshot of both, and of a third that came later."""
    found = Store(tmp_path)
    for number in range(2):
        found.append(search(number))
    found.compact(sample.NAME, NVIDIA_H200)
    found.append(search(2))
    return found


@pytest.fixture
def parts_read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The parts that were read."""
    read: list[Path] = []

    def remember(path: Path) -> bytes:
        if path.suffix == ".parquet":
            read.append(path)
        return read_bytes(path)

    monkeypatch.setattr("autotune.table.parts.read_bytes", remember)
    return read


def _snapshot(store: Store) -> Path:
    (found,) = (store.root / FOLDER).glob("*.snapshot")
    return found


def _expected(store: Store) -> list[Trial]:
    return winners(store.trials(sample.NAME))


def test_only_parts_that_it_does_not_cover_are_read(store: Store, parts_read: list[Path]) -> None:
    expected = _expected(store)
    assert len(expected) == 3
    parts_read.clear()
    assert store.winners(sample.NAME) == expected
    assert len(parts_read) == 1
    store.compact(sample.NAME, NVIDIA_H200)
    parts_read.clear()
    assert store.winners(sample.NAME) == expected
    assert parts_read == []


def test_a_compaction_that_finds_nothing_new_writes_nothing(store: Store) -> None:
    store.compact(sample.NAME, NVIDIA_H200)
    before = {path: path.stat().st_mtime_ns for path in store.root.rglob("*")}
    store.compact(sample.NAME, NVIDIA_H200)
    assert {path: path.stat().st_mtime_ns for path in store.root.rglob("*")} == before


def test_sha256sum_agrees_with_its_list(store: Store) -> None:
    lines = [line.split("  ") for line in (store.root / FOLDER / SUMS_NAME).read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    assert len(listed) == 2
    for name, digest in listed.items():
        assert sha256((store.root / FOLDER / name).read_bytes()) == digest


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def _make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


FAULTS: dict[str, Callable[[Store], object]] = {
    "snapshot cut": lambda store: _cut(_snapshot(store)),
    "snapshot exchanged": lambda store: _snapshot(store).write_bytes(encode(search(5)[:1])),
    "snapshot gone": lambda store: _snapshot(store).unlink(),
    "snapshot is a folder": lambda store: _make_folder(_snapshot(store)),
    "snapshot of another space": lambda store: _snapshot(store).rename(store.root / FOLDER / "winners-0-1.snapshot"),
    "list cut": lambda store: _cut(store.root / FOLDER / SUMS_NAME),
    "list gone": lambda store: (store.root / FOLDER / SUMS_NAME).unlink(),
    "list of something else": lambda store: (store.root / FOLDER / SUMS_NAME).write_text("something else\n"),
    "list of binary": lambda store: (store.root / FOLDER / SUMS_NAME).write_bytes(bytes(range(256))),
    "list of another part": lambda store: _edit(store, lambda text: text.replace(".parquet", ".parque")),
    "two digests": lambda store: _edit(store, lambda text: text + f"{'0' * 64}  {_snapshot(store).name}\n"),
}


def _edit(store: Store, change: Callable[[str], str]) -> None:
    path = store.root / FOLDER / SUMS_NAME
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize("damage", FAULTS.values(), ids=FAULTS)
def test_a_damaged_snapshot_is_passed_over_and_replaced(
    store: Store, parts_read: list[Path], damage: Callable[[Store], object]
) -> None:
    expected = _expected(store)
    damage(store)
    parts_read.clear()
    assert store.winners(sample.NAME) == expected
    assert len(parts_read) == 2
    store.append(search(3))
    store.compact(sample.NAME, NVIDIA_H200)
    parts_read.clear()
    assert store.winners(sample.NAME) == winners([*expected, *search(3)])
    assert parts_read == []


def test_a_part_that_was_taken_away_takes_its_winners_with_it(store: Store) -> None:
    _covered(store).unlink()
    assert store.winners(sample.NAME) == winners(search(2))


def _covered(store: Store) -> Path:
    (found,) = (
        path
        for path in (store.root / FOLDER).glob("*.parquet")
        if path.name in (store.root / FOLDER / SUMS_NAME).read_text()
    )
    return found


def _cut_in_silence(path: Path) -> None:
    """Cut a file as a crash of the machine does: with the times of before."""
    before = path.stat()
    _cut(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _flip(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:99] + bytes([data[99] ^ 1]) + data[100:])


@pytest.mark.parametrize("damage", [_cut, _cut_in_silence, _flip], ids=lambda each: each.__name__)
def test_damage_to_a_covered_part_is_found_by_who_reads_the_winners(
    store: Store, damage: Callable[[Path], None]
) -> None:
    os.utime(_covered(store), ns=(0, 0))  # a part is older than its snapshot, here by more than a clock's step
    damage(_covered(store))
    found: list[TableError] = []
    assert store.winners(sample.NAME, on_damaged=found.append) == winners(search(2))
    assert "damaged" in str(*found)


def test_a_copy_whose_files_have_other_times_has_the_same_winners(store: Store) -> None:
    expected = _expected(store)
    os.utime(_covered(store), ns=(2**62, 2**62))
    assert store.winners(sample.NAME) == expected
    store.compact(sample.NAME, NVIDIA_H200)
    assert store.winners(sample.NAME) == expected


def test_a_damaged_part_is_never_covered(store: Store) -> None:
    (late,) = (
        path
        for path in (store.root / FOLDER).glob("*.parquet")
        if path.name not in (store.root / FOLDER / SUMS_NAME).read_text()
    )
    _cut(late)
    with pytest.raises(TableError, match="damaged"):
        store.compact(sample.NAME, NVIDIA_H200)
    found: list[TableError] = []
    assert len(store.winners(sample.NAME, on_damaged=found.append)) == 2
    assert len(found) == 1


def test_a_reader_needs_no_permission_to_write(store: Store) -> None:
    before = sorted(store.root.rglob("*"))
    assert store.winners(sample.NAME) == _expected(store)
    assert sorted(store.root.rglob("*")) == before


class Killed(BaseException):
    """The process ends at a call, and nothing is tidied up."""


def kill_from(monkeypatch: pytest.MonkeyPatch, fatal: int) -> None:
    """Let no call that changes the disk through, from the one of that number on."""
    calls = itertools.count(1)

    def killing(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            if next(calls) >= fatal:
                raise Killed
            return original(*arguments, **named)

        return call

    for name in ("write", "fsync", "replace", "unlink"):
        monkeypatch.setattr(os, name, killing(getattr(os, name)))


@pytest.mark.slow
def test_a_kill_at_any_call_costs_time_only(tmp_path: Path) -> None:
    for fatal in itertools.count(1):
        store = Store(tmp_path / str(fatal))
        for number in range(2):
            store.append(search(number))
            store.compact(sample.NAME, NVIDIA_H200)
        store.append(search(2))
        expected = _expected(store)
        with pytest.MonkeyPatch.context() as monkeypatch:
            kill_from(monkeypatch, fatal)
            try:
                store.compact(sample.NAME, NVIDIA_H200)
            except Killed:
                pass
            else:
                assert fatal > 12  # three files of four calls at least
                return
        assert store.winners(sample.NAME) == expected
        assert winners(store.trials(sample.NAME)) == expected
        store.compact(sample.NAME, NVIDIA_H200)
        assert store.winners(sample.NAME) == expected


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_a_disk_that_fails_at_any_call_changes_no_winner(tmp_path: Path, code: int) -> None:
    for fatal in itertools.count(1):
        store = Store(tmp_path / str(fatal))
        for number in range(2):
            store.append(search(number))
        with pytest.MonkeyPatch.context() as monkeypatch:
            calls = fail_call(monkeypatch, fatal, code)
            with suppress(TableError):
                store.compact(sample.NAME, NVIDIA_H200)
        assert store.winners(sample.NAME) == winners([*search(0), *search(1)])
        if calls() < fatal:
            return


def test_writers_and_readers_at_once_agree(tmp_path: Path) -> None:
    stores = [Store(tmp_path) for _ in range(3)]
    stores[0].append(search(0))
    acknowledged = 1
    done = threading.Event()
    failures: list[object] = []

    def compact(store: Store) -> None:
        while not done.is_set():
            try:
                store.compact(sample.NAME, NVIDIA_H200)
            except TableError as error:
                failures.append(error)

    def read() -> None:
        while not done.is_set():
            expected = acknowledged
            found = {trial.shape for trial in stores[0].winners(sample.NAME)}
            if not {search(number)[0].shape for number in range(expected)} <= found:
                failures.append(expected)

    threads = [threading.Thread(target=compact, args=(store,)) for store in stores[1:]]
    threads += [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(1, 25):
        stores[0].append(search(number))
        acknowledged = number + 1
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    stores[0].compact(sample.NAME, NVIDIA_H200)
    assert stores[0].winners(sample.NAME) == winners(trial for number in range(25) for trial in search(number))


@settings(max_examples=25, deadline=None)
@given(tables(), st.integers(0, 5))
@pytest.mark.slow
def test_with_it_or_without_the_winners_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, races: list[list[Trial]], cut: int
) -> None:
    store = Store(tmp_path_factory.mktemp("store"))
    for part, race in enumerate(races):
        for device in {trial.device for trial in race}:
            store.append([trial for trial in race if trial.device == device])
        if part <= cut:
            store.compact(sample.NAME, NVIDIA_H200)
    assert store.winners(sample.NAME) == winners([trial for race in races for trial in race])


def test_a_part_whose_screened_rows_left_the_space_stays_covered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long part only rows that may win are read, and those are all of today's space."""
    monkeypatch.setattr("autotune.table.parquet.FILTERED_ROWS", 1)
    store = Store(tmp_path)
    screened = sample.trial(2, stage=Stage.SCREEN, race_id="", config=sample.config(64))
    store.append([sample.trial(1, config=sample.config(16)), screened])
    block, *others = sample.PARAMETERS
    change_space(monkeypatch, sample.NAME, "triton", (replace(block, values=(16, 32)), *others))
    store.compact(sample.NAME, NVIDIA_H200)
    assert _snapshot(store).exists()
