"""Files are old or new, whatever fails, and every refusal names the file and the reason."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import TableError
from autotune.table import files
from autotune.table.files import list_folder, read_bytes, remove, sha256, sweep_temporaries, write_bytes


def _fail_call(monkeypatch: pytest.MonkeyPatch, fatal: int, code: int = errno.ENOSPC) -> Callable[[], int]:
    """Make the Nth call that changes the disk fail; returns how many calls there were."""
    calls = 0

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fatal:
                raise OSError(code, os.strerror(code))
            return original(*arguments, **named)

        return call

    for name in ("write", "fsync", "replace", "mkdir"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    return lambda: calls


def test_a_written_file_reads_back_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    write_bytes(path, b"old")
    write_bytes(path, b"new")
    assert read_bytes(path) == b"new"
    assert os.listdir(path.parent) == ["file"]


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:3]))
    write_bytes(tmp_path / "file", b"0123456789")
    assert read_bytes(tmp_path / "file") == b"0123456789"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS], ids=errno.errorcode.get)
def test_every_failing_call_leaves_the_old_file_or_the_new(tmp_path: Path, code: int) -> None:
    for fatal in range(1, 100):
        path = tmp_path / str(fatal) / "below" / "file"
        if fatal > 4:  # the first calls make the folders
            write_bytes(path, b"old")
        with pytest.MonkeyPatch.context() as monkeypatch:
            made = _fail_call(monkeypatch, fatal if fatal <= 4 else fatal - 4, code)
            try:
                write_bytes(path, b"new")
                assert made() < fatal
                return
            except TableError as error:
                assert os.strerror(code) in str(error)
                assert str(path) in str(error)
        left = [path] if path.exists() else []
        assert [entry for entry in tmp_path.rglob("*") if entry.is_file() and str(fatal) in entry.parts] == left
        if left:
            assert path.read_bytes() in (b"old", b"new")
    raise AssertionError("a write never succeeded")
