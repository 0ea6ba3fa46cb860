"""``SHA256SUMS``: the digests of the files below a folder, as ``sha256sum`` writes and checks them.

A list or a file that cannot be read or written, a line that is not a digest and a plain relative path, and a file that
is not what the list says raise ``TableError``.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from autotune.errors import TableError
from autotune.table.files import read_bytes, sha256, write_bytes

FILE_NAME: Final = "SHA256SUMS"
MAX_READS: Final = 3  # of a file whose replacing outruns the reader
_LINE: Final = re.compile(r"([0-9a-f]{64}) [ *]([A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*)")

# More than one digest of a file stands there only while the file is being replaced.
Checksums = Mapping[str, frozenset[str]]


def read_checksums(folder: Path) -> dict[str, frozenset[str]]:
    """Return the digests of each listed file, by its path relative to the folder; nothing where there is no list."""
    path = folder / FILE_NAME
    if not path.exists() and not path.is_symlink():
        return {}
    checksums: dict[str, frozenset[str]] = {}
    for number, line in enumerate(read_bytes(path).decode("utf-8", "replace").splitlines(), start=1):
        digest, name = _parse(line, f"{path}: line {number}")
        checksums[name] = checksums.get(name, frozenset()) | {digest}
    return checksums


def write_checksums(folder: Path, checksums: Checksums) -> None:
    """Replace the list, in the order of the paths."""
    lines = [f"{digest}  {name}\n" for name in sorted(checksums) for digest in sorted(checksums[name])]
    for line in lines:
        _parse(line.removesuffix("\n"), f"{folder / FILE_NAME}")
    write_bytes(folder / FILE_NAME, "".join(lines).encode())


def read_checked(folder: Path, name: str, checksums: Checksums) -> bytes:
    path = folder / name
    if name not in checksums:
        raise TableError(f"{path}: not listed in {folder / FILE_NAME}, so nothing says what it should be")
    for _ in range(MAX_READS):
        digest = sha256(data := read_bytes(path))
        if digest in checksums.get(name, ()):
            return data
        # A table that is replaced is listed with its new digest first: a list read after the bytes has it.
        checksums = read_checksums(folder)
        if digest in checksums.get(name, ()):
            return data
    listed = ", ".join(checksums.get(name, ("nothing",)))
    raise TableError(f"{path}: damaged: its SHA-256 is {digest}, {FILE_NAME} says {listed}")


def _parse(line: str, where: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None or ".." in match[2].split("/"):
        raise TableError(f"{where}: {line!r} is not a SHA-256 and a plain relative path")
    return match[1], match[2]
