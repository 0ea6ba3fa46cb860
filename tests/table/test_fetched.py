"""Tables of a place are copied as they are; files that cannot be read, or went meanwhile, do not stop the others."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import TableError
from autotune.table import Store, files
from autotune.table.fetched import fetch_tables
from autotune.table.merge import merge
from autotune.table.remote import LocalFolder
from tests.table import sample

OTHER = replace(sample.SHAPE, batch=9)


@pytest.fixture
def fleet(tmp_path: Path) -> Store:
    store = Store(tmp_path / "place" / "tables")
    store.append([sample.trial(1)])
    store.append([sample.trial(2, shape=OTHER)])
    return store


def test_a_file_that_is_too_large_is_named_and_the_others_come(
    tmp_path: Path, fleet: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 100_000)
    huge = fleet.root / "huge.parquet"
    huge.write_bytes(b"x" * 100_001)
    (error,) = fetch_tables(LocalFolder(fleet.root.parent), tmp_path / "copy")
    assert str(huge) in str(error)
    assert merge([tmp_path / "copy"], Store(tmp_path / "own")).added == 2


def test_what_took_the_place_of_files_that_went_is_copied(
    tmp_path: Path, fleet: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = LocalFolder.read

    def compact(self: LocalFolder, name: str) -> bytes:
        fleet.compact(sample.NAME, sample.trial().device)
        return read(self, name)

    monkeypatch.setattr(LocalFolder, "read", compact)
    assert fetch_tables(LocalFolder(fleet.root.parent), tmp_path / "copy") == []
    assert merge([tmp_path / "copy"], Store(tmp_path / "own")).added == 2


def test_a_place_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no tables there; expected a grid's place, or a folder of tables"):
        fetch_tables(LocalFolder(tmp_path), tmp_path / "copy")
