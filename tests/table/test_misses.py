"""The list of missed shapes survives a disk that fills while a line is written."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import TableError
from autotune.registry import get_operation
from autotune.table import read_misses
from autotune.table import store as module
from autotune.table.store import MISSES, record_miss
from tests.table import sample
from tests.table.full_disk import FullDisk

OPERATION = sample.OPERATION


@pytest.fixture
def misses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))
    return tmp_path / MISSES


def test_a_line_that_a_full_disk_tore_costs_that_shape_only(misses: Path) -> None:
    first, torn, last = (replace(sample.SHAPE, batch=batch) for batch in (1, 2, 3))
    record_miss(OPERATION, first)
    with pytest.MonkeyPatch.context() as monkeypatch:
        FullDisk(monkeypatch, size=20)
        with pytest.warns(RuntimeWarning, match=r"^missed shapes cannot be recorded in .*misses\.jsonl \("):
            record_miss(OPERATION, torn)
    record_miss(OPERATION, last)
    with pytest.warns(RuntimeWarning, match=r"misses\.jsonl: line 2 is not a missed shape .*; remove it"):
        assert read_misses() == [(OPERATION, first), (OPERATION, last)]
    assert len(misses.read_text().splitlines()) == 3


LINES = {
    "something else": b"something else",
    "bad UTF-8": b'{"operation": "\xff"}',
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "unknown operation": b'{"operation": "nothing"}',
    "unknown field": b'{"operation": "table_sample", "depth": 3}',
    "bad value": b'{"operation": "table_sample", "batch": 0, "heads": 1, "seq_q": 1, "head_dim": 8}',
    "no object": b"[1]",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_line_that_is_something_else_is_passed_over_with_its_number(misses: Path, line: bytes) -> None:
    record_miss(OPERATION, sample.SHAPE)
    with misses.open("ab") as file:
        file.write(line + b"\n")
    last = replace(sample.SHAPE, batch=7)
    record_miss(OPERATION, last)
    with pytest.warns(RuntimeWarning, match=r"misses\.jsonl: line 2 is not a missed shape .*; remove it"):
        assert read_misses() == [(OPERATION, sample.SHAPE), (OPERATION, last)]


def test_lines_of_the_first_release_are_read(misses: Path) -> None:
    fields = {**sample.SHAPE.as_dict(), "varlen": False}
    misses.write_text(
        "".join(json.dumps({"operation": name, **fields}) + "\n" for name in ("flex_attention", sample.NAME))
    )
    assert read_misses() == [(get_operation("flash_attention"), sample.SHAPE), (OPERATION, sample.SHAPE)]


def test_a_list_that_is_no_file_is_refused_at_once(misses: Path) -> None:
    os.mkfifo(misses)
    with pytest.raises(TableError, match="not a regular file"):
        read_misses()
    shape = replace(sample.SHAPE, batch=9)
    with pytest.warns(RuntimeWarning, match=r"^missed shapes cannot be recorded in .*misses\.jsonl \("):
        record_miss(OPERATION, shape)
    record_miss(OPERATION, shape)  # silently
    misses.unlink()
    record_miss(OPERATION, shape)
    assert read_misses() == [(OPERATION, shape)]


def test_an_account_without_a_home_folder_is_warned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "home", lambda: (_ for _ in ()).throw(TableError("there is no home folder")))
    with pytest.warns(RuntimeWarning, match="recorded in the home folder .there is no home folder.; `autotune search"):
        record_miss(OPERATION, sample.SHAPE)
    record_miss(OPERATION, sample.SHAPE)  # silently


def test_a_link_is_not_followed(misses: Path, tmp_path: Path) -> None:
    """Whoever can write into the folder could let it lead to any file of this user."""
    precious = tmp_path / "precious"
    precious.write_text("kept")
    misses.symlink_to(precious)
    with pytest.warns(RuntimeWarning, match="a link, which is not followed"):
        record_miss(OPERATION, replace(sample.SHAPE, batch=10))
    assert precious.read_text() == "kept"


def test_a_home_of_no_user_is_told_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", "~nosuchuser/x")
    with pytest.raises(TableError, match=r"^AUTOTUNE_HOME='~nosuchuser/x' names no folder .*; set it to a whole path"):
        module.home()
    with pytest.warns(RuntimeWarning, match="missed shapes cannot be recorded in the home folder"):
        record_miss(OPERATION, replace(sample.SHAPE, batch=11))
