"""The store keeps every acknowledged trial, through kills, full disks and damage elsewhere."""

import errno
import itertools
import multiprocessing
import os
import random
import subprocess
import time
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.device import NVIDIA_H200
from autotune.errors import TableError
from autotune.space import Config
from autotune.table import Store, warn_damaged
from autotune.table.order import in_order
from autotune.trial import Trial
from tests.table import sample
from tests.table.faults import fail_call, write_until_killed

FOLDER = Path("nvidia_h200") / sample.NAME / "triton"


def _trials(*numbers: int) -> list[Trial]:
    return [sample.trial(number) for number in numbers]


def test_parts_are_named_by_their_digest_below_device_and_operation(tmp_path: Path) -> None:
    (part,) = Store(tmp_path).append(_trials(1))
    digest = subprocess.run(["sha256sum", part], capture_output=True, text=True, check=True).stdout.split()[0]
    assert part == tmp_path / FOLDER / f"{digest}.parquet"


def test_trials_are_the_union_of_all_parts_oldest_first(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(_trials(3, 1))
    store.append(_trials(2, 3))
    amd = sample.trial(9, device=sample.MI300X, config=sample.config(kpack=2))
    capped = sample.trial(8, device=sample.CAPPED_H200)
    store.append([amd])
    store.append([capped])
    assert store.trials(sample.NAME) == [*_trials(1, 2, 3), capped, amd]
    assert store.trials(sample.NAME, NVIDIA_H200) == _trials(1, 2, 3)
    assert store.trials(sample.NAME, sample.CAPPED_H200) == [capped]
    assert store.trials("flash_attention") == []


def test_the_order_of_trials_depends_on_nothing_but_their_set() -> None:
    twins = [sample.trial(1, timing=sample.timing(median)) for median in (100.0, 101.0, 102.0)]
    assert len({tuple(in_order(order)) for order in itertools.permutations(twins)}) == 1


def test_an_equal_batch_is_an_equal_part(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.append(_trials(1, 2)) == store.append(_trials(2, 1, 1))
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_a_store_that_does_not_exist_is_empty_and_reading_does_not_make_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "absent")
    assert store.trials(sample.NAME) == store.trials(sample.NAME, NVIDIA_H200) == []
    store.compact(sample.NAME, NVIDIA_H200)
    assert not store.root.exists()


def test_a_batch_is_of_one_operation_and_device(tmp_path: Path) -> None:
    for batch in (
        [],
        [sample.trial(), sample.trial(device=sample.MI300X)],
        [sample.trial(), sample.trial(operation="x")],
    ):
        with pytest.raises(TableError, match="one operation and one device"):
            Store(tmp_path).append(batch)
    assert list(tmp_path.iterdir()) == []


def test_other_files_in_the_root_do_not_disturb(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.append(_trials(1))
    (tmp_path / "misses").write_text("something of dispatch")
    (tmp_path / FOLDER / "notes.txt").write_text("something of the user")
    (tmp_path / FOLDER / ".x.parquet.1.ab.tmp").write_bytes(b"half a part")
    assert store.trials(sample.NAME) == _trials(1)


# Damage


def _damage(part: Path, kind: str) -> None:
    data = part.read_bytes()
    if kind == "flipped":
        part.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    elif kind == "truncated":
        part.write_bytes(data[:-1])
    elif kind == "empty":
        part.write_bytes(b"")
    elif kind == "renamed":
        part.rename(part.with_name("a" * 64 + ".parquet"))
    elif kind == "foreign":
        part.rename(part.with_name("table.parquet"))
    elif kind == "folder":
        part.unlink()
        part.mkdir()
    elif kind == "dangling":
        part.unlink()
        part.symlink_to("nowhere")


@pytest.mark.parametrize("kind", ["flipped", "truncated", "empty", "renamed", "foreign", "folder", "dangling"])
def test_a_damaged_part_stops_a_search_and_costs_serving_its_rows_only(tmp_path: Path, kind: str) -> None:
    store = Store(tmp_path)
    store.append(_trials(1))
    _damage(store.append(_trials(2))[0], kind)
    with pytest.raises(TableError, match=str(tmp_path / FOLDER)):
        store.trials(sample.NAME)
    with pytest.raises(TableError, match=str(tmp_path / FOLDER)):
        store.compact(sample.NAME, NVIDIA_H200)
    found: list[TableError] = []
    assert store.trials(sample.NAME, on_damaged=found.append) == _trials(1)
    assert len(found) == 1


def test_every_flip_and_truncation_is_seen(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (part,) = store.append(_trials(*range(20)))
    data, generator = part.read_bytes(), random.Random(0)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        part.write_bytes(damaged)
        with pytest.raises(TableError, match="damaged: its SHA-256"):
            store.trials(sample.NAME)
    for length in range(0, len(data), 97):
        part.write_bytes(data[:length])
        with pytest.raises(TableError, match="damaged: its SHA-256"):
            store.trials(sample.NAME)


def test_serving_warns_once_of_each_damaged_part(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in (1, 2):
        _damage(store.append(_trials(number))[0], "truncated")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert store.trials(sample.NAME, on_damaged=warn_damaged) == []
    assert len(caught) == 2
    assert all("damaged" in str(warning.message) for warning in caught)


def test_a_part_in_the_folder_of_another_device_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (part,) = store.append(_trials(1))
    other = tmp_path / "amd_instinct_mi300x" / sample.NAME / "triton"
    other.mkdir(parents=True)
    part.rename(other / part.name)
    with pytest.raises(TableError, match="belongs in another folder"):
        store.trials(sample.NAME)


def test_appending_again_heals_a_damaged_part(tmp_path: Path) -> None:
    store = Store(tmp_path)
    _damage(store.append(_trials(1))[0], "truncated")
    store.append(_trials(1))
    assert store.trials(sample.NAME) == _trials(1)


def test_a_root_that_is_a_file_is_refused_or_reported(tmp_path: Path) -> None:
    store = Store(tmp_path / "file")
    store.root.touch()
    with pytest.raises(TableError, match="Not a directory"):
        store.trials(sample.NAME)
    with pytest.raises(TableError):
        store.append(_trials(1))
    found: list[TableError] = []
    assert store.trials(sample.NAME, on_damaged=found.append) == []
    assert found


def test_a_read_only_store_is_read_and_not_written(unprivileged_folder: Path) -> None:
    store = Store(unprivileged_folder)
    store.append(_trials(1))
    folder = unprivileged_folder / FOLDER
    folder.chmod(0o500)
    assert store.trials(sample.NAME) == _trials(1)
    with pytest.raises(TableError, match="Permission denied"):
        store.append(_trials(2))
    folder.chmod(0)
    with pytest.raises(TableError, match="Permission denied"):
        store.trials(sample.NAME)
    folder.chmod(0o700)
    assert store.trials(sample.NAME) == _trials(1)


def test_rows_of_two_drivers_are_of_one_device(tmp_path: Path) -> None:
    """A driver keeps a few MiB more or less of one model's memory; each row says how many it had."""
    other = replace(NVIDIA_H200, memory_mib=NVIDIA_H200.memory_mib - 4)
    store, (old, new) = Store(tmp_path), (sample.trial(1), sample.trial(2, device=other, race_id="race-2"))
    store.append([old])
    store.append([new])
    for device in (NVIDIA_H200, other):
        assert store.trials(sample.NAME, device) == [old, new]
    assert [trial.device.memory_mib for trial in store.trials(sample.NAME)] == [143771, 143767]
    assert store.winners(sample.NAME) == [new]
    store.compact(sample.NAME, other)
    assert store.winners(sample.NAME) == [new]


# Full disks and kills


RACE = [sample.trial(1), sample.trial(2, implementation="foreign", config=Config(TILE=1))]


def test_a_race_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the part of the second implementation is written."""
    store, write = Store(tmp_path), os.write
    before = [replace(trial, race_id="race-0", started_at=sample.START) for trial in RACE]
    store.append(before)
    sizes: list[int] = []

    def fill(file: int, data: bytes) -> int:
        sizes.append(len(data))
        return write(file, data) if len(sizes) == 1 else write(-1, data)

    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(TableError, match="all that was kept before is"):
        store.append(RACE)
    assert len(sizes) == 2
    monkeypatch.undo()
    assert store.trials(sample.NAME) == store.trials(sample.NAME, NVIDIA_H200) == before
    assert list(tmp_path.rglob("*.tmp")) == []
    store.append(RACE)
    assert store.trials(sample.NAME) == [*before, *RACE]


def test_a_kill_between_the_parts_of_a_race_leaves_whole_rows_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One implementation has its rows of the new race, the other still its winner of the race before."""
    store, rename = Store(tmp_path), os.replace
    before = [replace(trial, race_id="race-0", started_at=sample.START) for trial in RACE]
    store.append(before)
    renamed: list[Path] = []

    def die(temporary: Path, path: Path) -> None:
        if renamed:
            raise KeyboardInterrupt
        renamed.append(path)
        rename(temporary, path)

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        store.append(RACE)
    monkeypatch.undo()
    assert [path.parent.name for path in renamed] == ["foreign"]
    for _ in range(2):
        assert {(t.implementation, t.race_id) for t in store.winners(sample.NAME)} == {
            ("foreign", "race-1"),
            ("triton", "race-0"),
        }
        store.compact(sample.NAME, NVIDIA_H200)
    store.append(RACE)  # as the search does that is run again
    assert {trial.race_id for trial in store.winners(sample.NAME)} == {"race-1"}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.slow
def test_a_disk_that_fails_at_any_call_loses_nothing_acknowledged(tmp_path: Path, code: int) -> None:
    for fatal in itertools.count(1):
        store = Store(tmp_path / str(fatal))
        acknowledged: list[Trial] = []
        reasons: list[str] = []
        with pytest.MonkeyPatch.context() as monkeypatch:
            calls = fail_call(monkeypatch, fatal, code)
            for batch in (_trials(1, 2), _trials(3)):
                try:
                    store.append(batch)
                    acknowledged += batch
                    store.compact(sample.NAME, NVIDIA_H200)
                except TableError as error:
                    reasons.append(str(error))
        assert all(os.strerror(code) in reason for reason in reasons)
        kept = store.trials(sample.NAME)
        assert set(acknowledged) <= set(kept) <= set(_trials(1, 2, 3))
        store.compact(sample.NAME, NVIDIA_H200)
        assert store.trials(sample.NAME) == kept
        if calls() < fatal:
            assert fatal > 15
            return


@pytest.mark.slow
def test_killed_writers_lose_no_acknowledged_part(tmp_path: Path) -> None:
    """Twenty writers, two at a time, die at random moments while they append and compact."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.table.faults"])
    store, generator = Store(tmp_path), random.Random(0)
    acknowledged: set[int] = set()
    for first in range(0, 200_000, 20_000):
        pipes = [context.Pipe(duplex=False) for _ in range(2)]
        writers = [
            context.Process(target=write_until_killed, args=(tmp_path, first + 10_000 * which, sender))
            for which, (_, sender) in enumerate(pipes)
        ]
        for writer, (_, sender) in zip(writers, pipes, strict=True):
            writer.start()
            sender.close()
        acknowledged |= {receiver.recv() for receiver, _ in pipes}
        for writer, (receiver, _) in zip(writers, pipes, strict=True):
            time.sleep(generator.uniform(0, 0.05))
            writer.kill()
            writer.join()
            with suppress(EOFError):
                while True:
                    acknowledged.add(receiver.recv())
            receiver.close()
        found = {trial.number for trial in store.trials(sample.NAME)}
        assert acknowledged <= found
    assert len(found - acknowledged) <= 20  # at most the batch in flight of each
    store.compact(sample.NAME, NVIDIA_H200)
    assert {trial.number for trial in store.trials(sample.NAME)} == found


# Where
