"""Merging: the union of tables from anywhere with a store."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from autotune.device import Device
from autotune.errors import TableError
from autotune.table.files import sha256
from autotune.table.future import require_past
from autotune.table.outsiders import Table
from autotune.table.parts import SUFFIX, Shelf
from autotune.table.store import Store
from autotune.table.vouched import read_files
from autotune.trial import Trial


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
    above it, as in ``results``; and no row may be dated later than now. A refused file is named in the result and
    changes nothing. One with rows that are not of today's space is copied as it is.

    Raises:
        TableError: the store cannot be written.
    """
    refused: list[TableError] = []
    known: dict[tuple[str, Device], set[Trial]] = {}
    files = rows = added = 0
    for path, data, table in ((file.path, file.data, file.table) for file in read_files(sources, refused.append)):
        try:
            require_past(table, str(path))
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
