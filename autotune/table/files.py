"""Files that are whole or absent: durable atomic writes, and reads; all raise ``TableError`` with path and reason.

``SHA256SUMS`` lists the digests of the files below a folder, as ``sha256sum`` writes and checks them. A line that is
not a digest and a plain relative path, and a file that is not what the list says raise ``TableError`` too.
"""

import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from autotune.errors import TableError

MAX_FILE_BYTES: Final = 32 * 2**20
STALE_SECONDS: Final = 3600.0
TEMPORARY_SUFFIX: Final = ".tmp"
SUMS_NAME: Final = "SHA256SUMS"
DIGITS: Final = 12  # of a digest, in messages
MAX_READS: Final = 3  # of a file whose replacing outruns the reader
_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *]([A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*)")

# More than one digest of a file stands there only while the file is being replaced.
Checksums = Mapping[str, frozenset[str]]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_bytes(path: Path) -> bytes:
    """Read all bytes of a regular file of at most ``MAX_FILE_BYTES``, from one opening.

    They are of one version, even while the file is being replaced.
    """
    # Without O_NONBLOCK, opening a named pipe would wait for its writer.
    with (
        _named_errors(path, "read"),
        open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file,
    ):
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise TableError(f"{path}: cannot be read: not a regular file")
        data = file.read(min(found.st_size, MAX_FILE_BYTES) + 1)  # a reader allocates all that it is asked for
        if len(data) > found.st_size:  # it has grown
            data += file.read(MAX_FILE_BYTES + 1 - len(data))
    if len(data) > MAX_FILE_BYTES:
        raise TableError(f"{path}: cannot be read: larger than {MAX_FILE_BYTES} bytes")
    return data


def write_bytes(path: Path, data: bytes) -> None:
    """Write or replace one file as ``write_together`` does."""
    write_together({path: data})


def write_together(contents: Mapping[Path, bytes]) -> None:
    """Write or replace files so that each is old or new at any moment, and all are new for good once this returns.

    No file gets its name before all are on disk in full, so an error in writing leaves every file old. Only between
    these renames, microseconds apart, can a kill or an error leave some new and some old. Folders are made as needed. A
    process that is killed leaves hidden temporary files behind, see ``sweep_temporaries``.
    """
    temporaries: dict[Path, Path] = {}
    try:
        for path, data in contents.items():
            with _named_errors(path, "written"):
                _make_folder(path.parent)
                name = f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
                temporaries[path] = path.with_name(name)
                _write_new(temporaries[path], data)
        for path, temporary in temporaries.items():
            with _named_errors(path, "written"):
                os.replace(temporary, path)
    except BaseException:
        for temporary in temporaries.values():
            with suppress(OSError):  # renamed already, or never begun
                temporary.unlink()
        raise
    for path in {path.parent: path for path in contents}.values():
        with _named_errors(path, "written"):
            _sync_folder(path.parent)


def _write_new(path: Path, data: bytes) -> None:
    with open(path, "xb", buffering=0) as file:
        unwritten = memoryview(data)
        while unwritten:
            unwritten = unwritten[os.write(file.fileno(), unwritten) :]
        os.fsync(file.fileno())


def is_open_to_all(folder: Path) -> bool:
    """Return True for a folder that every user of the machine can write to; False for one that is not there."""
    try:
        return bool(os.stat(folder).st_mode & stat.S_IWOTH)
    except OSError:
        return False


def require_own_links(folder: Path, root: Path) -> None:
    """Refuse to write into a folder that a link of another user leads to, on the way from ``root``, itself not meant.

    Raises:
        TableError: such a link is there.
    """
    for path in (folder, *folder.parents):
        if path == root or path == path.parent:
            return
        with _named_errors(path, "looked at"):
            if not os.path.lexists(path):
                continue
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode) and found.st_uid not in (os.geteuid(), 0):
                raise TableError(f"{path}: cannot be written: it is a link that another user made; remove it")


def remove(path: Path) -> None:
    """Remove a file that may be gone already."""
    with _named_errors(path, "removed"):
        path.unlink(missing_ok=True)


def size_and_change(path: Path) -> tuple[int, int]:
    """Return the size of a file in bytes and when its bytes last changed, in ns since 1970; zeros if it is gone."""
    with _named_errors(path, "looked at"):
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return 0, 0
    return found.st_size, found.st_mtime_ns


def list_folder(folder: Path) -> list[Path]:
    """List a folder, sorted and without hidden entries; nothing where the folder does not exist."""
    with _named_errors(folder, "listed"):
        try:
            return sorted(folder / name for name in os.listdir(folder) if not name.startswith("."))
        except FileNotFoundError:
            if folder.is_symlink():
                raise
            return []


def sweep_temporaries(folder: Path, now: float | None = None) -> None:
    """Remove temporary files that writers left behind over an hour ago; ``now`` is in seconds since 1970."""
    oldest = (time.time() if now is None else now) - STALE_SECONDS
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        with suppress(OSError):  # another process may sweep the same file
            if path.lstat().st_mtime < oldest:
                path.unlink()


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    """Write a folder's names to disk: without this, a crash of the machine may undo a rename."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _named_errors(path: Path, done: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = "a link to nothing" if isinstance(error, FileNotFoundError) and path.is_symlink() else error.strerror
        raise TableError(f"{path}: cannot be {done}: {reason or error}") from error
    except MemoryError as error:
        raise TableError(f"{path}: cannot be {done}: out of memory") from error


def read_checksums(folder: Path) -> dict[str, frozenset[str]]:
    """Return the digests of each listed file, by its path relative to the folder; nothing where there is no list."""
    path = folder / SUMS_NAME
    with _named_errors(path, "looked at"):
        if not path.exists() and not path.is_symlink():
            return {}
    return dict(parse_checksums(read_bytes(path), str(path)))


@lru_cache(maxsize=8)  # one list is read for several tables in turn
def parse_checksums(data: bytes, where: str) -> Checksums:
    """Return the digests of each file in the bytes of a list; TableError, with its place, for another line."""
    checksums: dict[str, frozenset[str]] = {}
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
        digest, name = _parse(line, f"{where}: line {number}")
        checksums[name] = checksums.get(name, frozenset()) | {digest}
    return checksums


def write_checksums(folder: Path, checksums: Checksums) -> None:
    """Replace the list, in the order of the paths."""
    write_bytes(folder / SUMS_NAME, checksums_bytes(folder, checksums))


def checksums_bytes(folder: Path, checksums: Checksums) -> bytes:
    """Return the bytes of a folder's list; TableError for a path that cannot stand in one."""
    lines = [f"{digest}  {name}\n" for name in sorted(checksums) for digest in sorted(checksums[name])]
    for line in lines:
        _parse(line.removesuffix("\n"), f"{folder / SUMS_NAME}")
    return "".join(lines).encode()


def read_checked(folder: Path, name: str, checksums: Checksums) -> bytes:
    path = folder / name
    if name not in checksums:
        raise TableError(f"{path}: not listed in {folder / SUMS_NAME}, so nothing says what it should be")
    for _ in range(MAX_READS):
        digest = sha256(data := read_bytes(path))
        if digest in checksums.get(name, ()):
            return data
        # A table that is replaced is listed with its new digest first: a list read after the bytes has it.
        checksums = read_checksums(folder)
        if digest in checksums.get(name, ()):
            return data
    listed = ", ".join(each[:DIGITS] for each in checksums.get(name, ("nothing",)))
    raise TableError(f"{path}: damaged: its SHA-256 is {digest[:DIGITS]}..., {SUMS_NAME} says {listed}...")


def _parse(line: str, where: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None or ".." in match[2].split("/"):
        raise TableError(f"{where}: {line!r} is not a SHA-256 and a plain relative path")
    return match[1], match[2]
