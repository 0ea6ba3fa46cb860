"""Files are old or new, whatever fails, and every refusal names the file and the reason."""

import errno
import itertools
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.errors import TableError
from autotune.table.files import list_folder, read_bytes, remove, sha256, sweep_temporaries, write_bytes
from tests.table.faults import fail_call


def test_a_written_file_reads_back_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    write_bytes(path, b"old")
    write_bytes(path, b"new")
    assert read_bytes(path) == b"new"
    assert os.listdir(path.parent) == ["file"]


def test_a_reader_of_a_file_being_replaced_sees_one_version(tmp_path: Path) -> None:
    path, versions = tmp_path / "file", [bytes([version]) * 200_000 for version in range(2)]
    write_bytes(path, versions[0])
    done = threading.Event()

    def write() -> None:
        for version in itertools.cycle(versions):
            write_bytes(path, version)
            if done.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    seen = [read_bytes(path) for _ in range(300)]
    done.set()
    writer.join()
    assert set(seen) <= set(versions)


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:3]))
    write_bytes(tmp_path / "file", b"0123456789")
    assert read_bytes(tmp_path / "file") == b"0123456789"


@pytest.mark.parametrize("old", [None, b"old"], ids=["new file", "replaced file"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_every_failing_call_leaves_the_old_file_or_the_new(tmp_path: Path, code: int, old: bytes | None) -> None:
    for fatal in itertools.count(1):
        path = tmp_path / str(fatal) / "below" / "file"
        if old is not None:
            write_bytes(path, old)
        with pytest.MonkeyPatch.context() as monkeypatch:
            calls = fail_call(monkeypatch, fatal, code)
            try:
                write_bytes(path, b"new")
            except TableError as error:
                refusal = str(error)
            else:
                assert calls() == fatal - 1 >= 4  # write, fsync, rename, fsync of the folder
                return
        assert refusal == f"{path}: cannot be written: {os.strerror(code)}"
        assert [entry.name for entry in path.parent.glob("*")] in (["file"], [] if old is None else ["file"])
        assert (path.read_bytes() if path.exists() else None) in (old, b"new")


def _make_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(32 * 2**20 + 1)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: None, "No such file"),
    "folder": (lambda path: path.mkdir(), "Is a directory"),
    "link to nothing": (lambda path: path.symlink_to("nowhere"), "a link to nothing"),
    "link to itself": (lambda path: path.symlink_to(path), "symbolic links"),
    "named pipe": (lambda path: os.mkfifo(path), "not a regular file"),
    "too large": (_make_large, "larger than"),
}


def test_a_file_that_grows_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table").write_bytes(b"0123456789")
    shorter = os.stat_result((stat.S_IFREG, 0, 0, 1, 0, 0, 3, 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda descriptor: shorter)
    assert read_bytes(tmp_path / "table") == b"0123456789"


@pytest.mark.parametrize(("make", "reason"), REFUSED.values(), ids=REFUSED)
def test_reading_refuses_with_the_reason(tmp_path: Path, make: Callable[[Path], object], reason: str) -> None:
    make(tmp_path / "table")
    with pytest.raises(TableError, match=reason) as caught:
        read_bytes(tmp_path / "table")
    assert str(tmp_path / "table") in str(caught.value)


def test_permissions_are_named(unprivileged_folder: Path) -> None:
    path = unprivileged_folder / "file"
    write_bytes(path, b"old")
    path.chmod(0)
    with pytest.raises(TableError, match="cannot be read: Permission denied"):
        read_bytes(path)
    path.chmod(0o600)
    unprivileged_folder.chmod(0o500)
    with pytest.raises(TableError, match="cannot be written: Permission denied"):
        write_bytes(path, b"new")
    with pytest.raises(TableError, match="cannot be removed: Permission denied"):
        remove(path)
    assert read_bytes(path) == b"old"
    unprivileged_folder.chmod(0)
    with pytest.raises(TableError, match="cannot be listed: Permission denied"):
        list_folder(unprivileged_folder)
    unprivileged_folder.chmod(0o700)


def test_a_folder_is_listed_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b", "a", ".b.1.tmp"):
        (tmp_path / name).touch()
    assert list_folder(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    assert list_folder(tmp_path / "absent") == []
    with pytest.raises(TableError, match="Not a directory"):
        list_folder(tmp_path / "a")


def test_removing_what_is_gone_is_done_already(tmp_path: Path) -> None:
    remove(tmp_path / "absent")


def test_only_old_temporary_files_are_swept(tmp_path: Path) -> None:
    for name in (".old.1.tmp", ".new.1.tmp", "old", ".hidden"):
        (tmp_path / name).touch()
    now = time.time()
    for name in (".old.1.tmp", "old", ".hidden"):
        os.utime(tmp_path / name, (now - 3700, now - 3700))
    sweep_temporaries(tmp_path, now)
    assert sorted(os.listdir(tmp_path)) == [".hidden", ".new.1.tmp", "old"]


def test_sha256_is_the_standard_digest() -> None:
    assert sha256(b"abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, B.1
