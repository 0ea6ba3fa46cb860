"""Checks of the files that a ``SHA256SUMS`` names: each is there, and one that is no table is what the list says."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from autotune.errors import TableError
from autotune.table.files import SUMS_NAME, Checksums, read_checked, read_checksums
from autotune.table.parts import SNAPSHOT_SUFFIX, SUFFIX, OnDamaged
from autotune.table.vouched import DEPTH, files_below

RENEW: Final = "`autotune tables compact` writes the list anew"


def check_listed(source: Path, refuse: OnDamaged) -> None:
    """Call ``refuse`` with the error of each file below a folder that a list names and that is not what it says.

    Lists are those in the folder and below, and the nearest one above. Tables that are there are left to who reads
    them. A list that cannot be read is an error too.
    """
    for folder in _listing(source, refuse):
        try:
            checksums = read_checksums(folder)
        except TableError as error:
            refuse(error)
            continue
        for name in sorted(checksums):
            if (folder / name).absolute().is_relative_to(source.absolute()):
                try:
                    _check(folder, name, checksums)
                except TableError as error:
                    refuse(error)


def _listing(source: Path, refuse: OnDamaged) -> Iterator[Path]:
    above = (folder for folder in source.absolute().parents[:DEPTH] if os.path.lexists(folder / SUMS_NAME))
    if (nearest := next(above, None)) is not None:
        yield nearest
    yield from (path.parent for path in files_below(source, refuse) if path.name == SUMS_NAME)


def _check(folder: Path, name: str, checksums: Checksums) -> None:
    path = folder / name
    if os.path.lexists(path):
        if path.suffix != SUFFIX:
            read_checked(folder, name, checksums)
        return
    if name in (now := read_checksums(folder)) and not os.path.lexists(path):  # it was not compacted meanwhile
        is_of_snapshot = any(each.endswith(SNAPSHOT_SUFFIX) for each in now)
        advice = f"; where its rows are not missed, {RENEW}" if is_of_snapshot else ""
        raise TableError(f"{path}: not there, and {folder / SUMS_NAME} names it{advice}")
