"""Merging: the union of tables from anywhere with a store."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.device import Device
from autotune.errors import TableError
from autotune.table.checksums import FILE_NAME, read_checked, read_checksums
from autotune.table.files import read_bytes, sha256
from autotune.table.parquet import decode
from autotune.table.store import SUFFIX, OnDamaged, Store
from autotune.trial import Trial


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge did: files read, rows in them, rows that were new, and why each refused file was refused."""

    files: int
    rows: int
    added: int
    refused: tuple[str, ...]


def merge(sources: Iterable[Path], store: Store) -> Merged:
    """Add the trials of files and of all tables below folders to a store; what it holds already is not added again.

    A table must be vouched for: by its name, the SHA-256 of its bytes as in a store, or by a ``SHA256SUMS`` in a folder
    above it, as in ``results``. A refused file is named in the result and changes nothing.

    Raises:
        TableError: the store cannot be written.
    """
    refused: list[str] = []
    known: dict[tuple[str, Device], set[Trial]] = {}
    files = rows = added = 0

    def refuse(error: TableError) -> None:
        refused.append(str(error))

    for path in (path for source in sources for path in _tables_of(source, refuse)):
        try:
            trials = decode(_vouched_bytes(path), str(path))
        except TableError as error:
            refuse(error)
            continue
        files, rows = files + 1, rows + len(trials)
        for device in {trial.device for trial in trials}:
            operation = trials[0].operation
            if (operation, device) not in known:
                known[operation, device] = set(store.trials(operation, device, on_damaged=refuse))
            new = {trial for trial in trials if trial.device == device} - known[operation, device]
            if new:
                store.append(new)
            known[operation, device] |= new
            added += len(new)
    return Merged(files, rows, added, tuple(refused))


def _tables_of(source: Path, refuse: OnDamaged) -> Iterator[Path]:
    if not source.is_dir():
        yield source
        return

    def unreadable(error: OSError) -> None:
        refuse(TableError(f"{error.filename}: cannot be listed: {error.strerror}"))

    for folder, subfolders, names in os.walk(source, onerror=unreadable):
        subfolders.sort()
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(SUFFIX) and not name.startswith("."))


def _vouched_bytes(path: Path) -> bytes:
    """The bytes of a table that are what its name or the nearest list above it says."""
    if re.fullmatch("[0-9a-f]{64}", path.stem):
        data = read_bytes(path)
        if (digest := sha256(data)) != path.stem:
            raise TableError(f"{path}: damaged: its SHA-256 is {digest}")
        return data
    for folder in path.absolute().parents[:3]:  # as deep as results has its sweeps
        if checksums := read_checksums(folder):
            return read_checked(folder, path.absolute().relative_to(folder).as_posix(), checksums)
    read_bytes(path)  # a file that is not there at all is the better reason
    raise TableError(f"{path}: nothing vouches for it: name it by its SHA-256, or list it in a {FILE_NAME} above it")
