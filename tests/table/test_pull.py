"""Pulled tables are all old or all new, whatever happens; what is damaged changes nothing."""

import fcntl
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import TableError, UsageError
from autotune.space import Config
from autotune.table import Store, files, served_winners, write_shipped
from autotune.table.pull import Pulled, pull_tables
from autotune.table.remote import LocalFolder
from tests.table import sample

OTHER = replace(sample.SHAPE, batch=9)


@pytest.fixture
def fleet(tmp_path: Path) -> Store:
    """A fleet's tables at a grid's place."""
    store = Store(tmp_path / "place" / "tables")
    store.append([sample.trial(1), sample.trial(2, implementation="foreign", config=Config(TILE=1))])
    return store


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "servers" / "site"
    monkeypatch.setenv("AUTOTUNE_SITE", str(folder))
    return folder


def pull(fleet: Store) -> Pulled:
    return pull_tables(fleet.root.parent)


def served(tmp_path: Path) -> list[tuple[int, str]]:
    return [(row.trial.number, row.origin) for row in served_winners(sample.NAME, root=tmp_path / "nobody")]


def test_pulled_tables_are_served_as_the_sites(tmp_path: Path, fleet: Store, site: Path) -> None:
    first = pull(fleet)
    assert (first.folder, first.tables, first.new, first.gone, first.is_changed) == (site, 2, 2, 0, True)
    assert served(tmp_path) == [(1, "site"), (2, "site")]
    again = pull(fleet)
    assert (again.new, again.gone, again.is_changed, again.version) == (0, 0, False, first.version)
    fleet.append([sample.trial(3, shape=OTHER)])
    more = pull(fleet)
    assert (more.tables, more.new, more.before) == (3, 1, first.version)
    assert len(served(tmp_path)) == 3


def test_tables_are_read_many_at_once(
    tmp_path: Path, fleet: Store, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits until another is read beside it: one after the other, none would come."""
    meeting, read = threading.Barrier(2, timeout=30.0), LocalFolder.read

    def together(self: LocalFolder, name: str) -> bytes:
        meeting.wait()
        return read(self, name)

    monkeypatch.setattr(LocalFolder, "read", together)
    assert pull(fleet).tables == 2


def test_a_version_is_an_exact_copy_and_the_one_before_stays(tmp_path: Path, fleet: Store, site: Path) -> None:
    versions = []
    for number in (3, 4, 5):
        fleet.append([sample.trial(number, shape=replace(sample.SHAPE, batch=number))])
        versions.append(pull(fleet).version)
    fleet.compact(sample.NAME, sample.trial().device)
    last = pull(fleet)
    assert (last.tables, last.gone) == (2, 4)
    assert [version.exists() for version in versions] == [False, False, True]
    assert site.resolve() == last.version
    assert len(Store(site).trials(sample.NAME)) == 5


@pytest.mark.parametrize("harm", ["flip", "cut", "foreign", "large"])
def test_a_damaged_table_is_named_and_changes_nothing(
    tmp_path: Path, fleet: Store, site: Path, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pull(fleet)
    (part,) = fleet.append([sample.trial(3, shape=OTHER)])
    data = part.read_bytes()
    if harm == "foreign":  # named by its digest, and no table
        part = part.with_name(f"{files.sha256(b'PAR1')}.parquet")
        part.write_bytes(b"PAR1")
    elif harm == "large":
        monkeypatch.setattr(files, "MAX_FILE_BYTES", len(data) - 1)
    else:
        part.write_bytes(data[:-1] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(TableError, match=f"{part.stem}.*old ones are kept|old ones are kept.*{part.stem}"):
        pull(fleet)
    assert site.resolve() == before.version
    part.unlink()
    monkeypatch.undo()
    monkeypatch.setenv("AUTOTUNE_SITE", str(site))
    assert len(served(tmp_path)) == 2


def test_a_copy_that_was_damaged_here_is_mended(fleet: Store, site: Path) -> None:
    for part in pull(fleet).version.rglob("*.parquet"):
        part.write_bytes(b"")
    assert not pull(fleet).is_changed
    assert len(Store(site).trials(sample.NAME)) == 2


def test_what_was_broken_off_is_completed(fleet: Store, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = LocalFolder.read
    reads: list[str] = []

    def stop(self: LocalFolder, name: str) -> bytes:
        if reads:
            raise KeyboardInterrupt
        reads.append(name)
        return read(self, name)

    monkeypatch.setattr(LocalFolder, "read", stop)
    with pytest.raises(KeyboardInterrupt):
        pull(fleet)
    assert not os.path.lexists(site)
    monkeypatch.setattr(LocalFolder, "read", read)
    assert pull(fleet).new == 2
    assert len(Store(site).trials(sample.NAME)) == 2


def test_tables_that_are_compacted_meanwhile_are_listed_again(
    fleet: Store, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.append([sample.trial(3, shape=OTHER)])
    read = LocalFolder.read

    def compact(self: LocalFolder, name: str) -> bytes:
        fleet.compact(sample.NAME, sample.trial().device)
        return read(self, name)

    monkeypatch.setattr(LocalFolder, "read", compact)
    assert pull(fleet).tables == 2
    assert len(Store(site).trials(sample.NAME)) == 3


def test_a_place_whose_tables_are_put_together_again_and_again_is_pulled_whole(
    fleet: Store, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a running grid, of which a task ends each time that it is listed; the last ones end in silence."""
    listing, left, made = LocalFolder.list, [5], []

    def end_one(self: LocalFolder, prefix: str = "") -> list[str]:
        names = listing(self, prefix)
        if left[0]:
            left[0] -= 1
            made.append(sample.trial(10 + left[0]))
            fleet.append([made[-1]])
            fleet.compact(sample.NAME, sample.trial().device)
        return names

    before = set(fleet.trials(sample.NAME))
    monkeypatch.setattr(LocalFolder, "list", end_one)
    pull(fleet)
    assert before <= set(Store(site).trials(sample.NAME)) <= before | set(made)


def test_listed_tables_are_pulled_too(tmp_path: Path, site: Path) -> None:
    results = tmp_path / "results"
    write_shipped(Path(f"nvidia_h200/{sample.NAME}/triton.parquet"), [sample.trial(1)], results=results)
    assert pull_tables(results).tables == 1
    assert served(tmp_path) == [(1, "site")]
    stray = results / "nvidia_h200" / sample.NAME / "stray.parquet"
    stray.write_bytes(b"PAR1")
    with pytest.raises(TableError, match=r"stray\.parquet: neither its name nor a SHA256SUMS vouches for it"):
        pull_tables(results)


def test_nothing_else_is_replaced(tmp_path: Path, fleet: Store, site: Path) -> None:
    with pytest.raises(TableError, match="no tables there"):
        pull_tables(tmp_path / "nowhere")
    assert not os.path.lexists(site)
    site.mkdir(parents=True)
    (site / "misses.jsonl").write_text("")
    with pytest.raises(UsageError, match="was not pulled"):
        pull(fleet)
    (site / "misses.jsonl").unlink()
    assert pull(fleet).is_changed  # an empty folder is
    with pytest.raises(UsageError, match="is a URI"):
        pull_tables(fleet.root, "s3://K:S@b")


def test_pulls_at_once_leave_one_whole_version(fleet: Store, site: Path) -> None:
    found: list[Pulled] = []
    threads = [threading.Thread(target=lambda: found.append(pull(fleet))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.is_changed for each in found) == [False, False, False, True]
    assert len(Store(site).trials(sample.NAME)) == 2


def test_a_pull_that_fails_leaves_no_folder_that_it_made(tmp_path: Path, fleet: Store, site: Path) -> None:
    versions = site.with_name("site.versions")
    with pytest.raises(TableError, match="no tables there"):
        pull_tables(tmp_path / "nowhere")
    assert not versions.exists()
    versions.mkdir()  # a user's
    with pytest.raises(TableError, match="no tables there"):
        pull_tables(tmp_path / "nowhere")
    assert versions.exists()
    version = pull(fleet).version
    with pytest.raises(TableError, match="no tables there"):
        pull_tables(tmp_path / "nowhere")
    assert site.resolve() == version


def test_who_waits_for_a_pull_that_fails_still_pulls_alone(
    fleet: Store, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock that is waited for is removed with the folder; another one is made."""
    listing, waits = LocalFolder.list, threading.Event()
    found: list[Pulled] = []
    waiting = threading.Thread(target=lambda: found.append(pull(fleet)))

    def lock(descriptor: int, how: int) -> None:
        if threading.current_thread() is waiting:
            waits.set()
        flock(descriptor, how)

    def fail_once(self: LocalFolder, prefix: str = "") -> list[str]:
        if threading.current_thread() is waiting:
            return listing(self, prefix)
        waiting.start()
        assert waits.wait(30.0)
        raise TableError("not now")

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lock)
    monkeypatch.setattr(LocalFolder, "list", fail_once)
    with pytest.raises(TableError, match="not now"):
        pull(fleet)
    waiting.join()
    assert found[0].is_changed
    assert (site.with_name("site.versions") / ".lock").exists()
