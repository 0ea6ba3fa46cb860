"""Merging: the union of tables from anywhere with a store."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune.device import Device
from autotune.errors import TableError
from autotune.table.compilations import COMPILATIONS
from autotune.table.files import SUMS_NAME, read_bytes, read_checked, read_checksums, sha256
from autotune.table.outsiders import Table
from autotune.table.parquet import decode
from autotune.table.parts import SUFFIX, OnDamaged, Shelf
from autotune.table.portfolios import PORTFOLIOS
from autotune.table.store import Store
from autotune.trial import Trial

COMPUTED: Final = (COMPILATIONS, PORTFOLIOS)


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge: files read, rows in them, rows that were new, and the reason for each refused file."""

    files: int
    rows: int
    added: int
    refused: tuple[str, ...]


def merge(sources: Iterable[Path], store: Store) -> Merged:
    """Add the trials of files and of all tables below folders to a store; what it holds already is not added again.

    A table must be vouched for: by its name, the SHA-256 of its bytes as in a store, or by a ``SHA256SUMS`` in a folder
    above it, as in ``results``. A refused file is named in the result and changes nothing. One with rows that are not
    of today's space is copied as it is.

    Raises:
        TableError: the store cannot be written.
    """
    refused: list[TableError] = []
    known: dict[tuple[str, Device], set[Trial]] = {}
    files = rows = added = 0
    for path in (path for source in sources for path in _tables_of(source, refused.append)):
        try:
            table = decode(data := _vouched_bytes(path), str(path))
            shelf = _shelf_of(table, str(path), store) if table.outsiders else None
        except TableError as error:
            refused.append(error)
            continue
        files, rows = files + 1, rows + len(table.trials) + len(table.outsiders)
        for device in {trial.device for trial in table.trials}:
            operation = table.trials[0].operation
            if (operation, device) not in known:
                known[operation, device] = set(store.trials(operation, device, on_damaged=refused.append))
            new = {trial for trial in table.trials if trial.device == device} - known[operation, device]
            if new and shelf is None:
                store.append(new)
            known[operation, device] |= new
            added += len(new)
        if shelf is not None and not (shelf.folder / f"{sha256(data)}{SUFFIX}").exists():
            shelf.write(data)
            added += len(table.outsiders)
    return Merged(files, rows, added, tuple(map(str, refused)))


def _shelf_of(table: Table, where: str, store: Store) -> Shelf:
    (slug, *owner), *others = table.places
    if others:
        raise TableError(f"{where}: has rows that are not of today's space, and of several devices: cannot be copied")
    return Shelf(store.root / slug, *owner)


def _tables_of(source: Path, refuse: OnDamaged) -> Iterator[Path]:
    if not source.is_dir():
        yield source
        return
    walk = os.walk(source, onerror=lambda e: refuse(TableError(f"{e.filename}: cannot be listed: {e.strerror}")))
    for folder, subfolders, names in walk:
        subfolders[:] = sorted(name for name in subfolders if name not in COMPUTED)  # of no trials
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(SUFFIX) and not name.startswith("."))


def _vouched_bytes(path: Path) -> bytes:
    """Read a table whose bytes are what its name or the nearest list above it says."""
    if re.fullmatch("[0-9a-f]{64}", path.stem):
        data = read_bytes(path)
        if (digest := sha256(data)) != path.stem:
            raise TableError(f"{path}: damaged: its SHA-256 is {digest}")
        return data
    for folder in path.absolute().parents[:4]:  # as deep as results has its sweeps
        if checksums := read_checksums(folder):
            return read_checked(folder, path.absolute().relative_to(folder).as_posix(), checksums)
    read_bytes(path)  # a file that is not there at all is the better reason
    raise TableError(f"{path}: nothing vouches for it: name it by its SHA-256, or list it in a {SUMS_NAME} above it")
