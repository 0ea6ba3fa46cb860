"""The list of missed shapes survives a disk that fills while a line is written."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import TableError
from autotune.table import read_misses
from autotune.table.misses import FILE_NAME, record_miss
from tests.table import sample
from tests.table.full_disk import FullDisk

OPERATION = sample.OPERATION


@pytest.fixture
def misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))
    return tmp_path / FILE_NAME


def test_a_line_that_a_full_disk_tore_costs_that_shape_only(misses: Path) -> None:
    first, torn, last = (replace(sample.SHAPE, batch=batch) for batch in (1, 2, 3))
    record_miss(OPERATION, first)
    with pytest.MonkeyPatch.context() as monkeypatch:
        FullDisk(monkeypatch, size=20)
        record_miss(OPERATION, torn)
    assert read_misses() == [(OPERATION, first)]
    record_miss(OPERATION, last)
    assert read_misses() == [(OPERATION, first), (OPERATION, last)]
    assert len(misses.read_text().splitlines()) == 3


def test_a_line_that_is_something_else_is_refused_by_its_number(misses: Path) -> None:
    record_miss(OPERATION, sample.SHAPE)
    with misses.open("a") as file:
        file.write("something else\n")
    with pytest.raises(TableError, match=r"misses\.jsonl: line 2 is not a missed shape .*; remove the line"):
        read_misses()
