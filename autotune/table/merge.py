"""Merging: the union of tables from anywhere with a store.

Rows are known by their keys (``autotune.table.row_keys``) and stay columns, many files at once
(``autotune.table.bulk``): a fleet's million of trials takes neither the memory nor the time of as many objects.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from autotune.errors import TableError
from autotune.registry import implementation_names
from autotune.table.bulk import Bulk, KeyedRows, keys_of_table, read_bulk, rows_left
from autotune.table.files import sha256
from autotune.table.future import require_past
from autotune.table.outsiders import Table
from autotune.table.parquet import decode, read_plain
from autotune.table.parts import MAX_LISTINGS, SUFFIX, OnDamaged, Shelf
from autotune.table.row_keys import keys_of_trials
from autotune.table.schema import TableSchema, schema_named
from autotune.table.store import Store
from autotune.table.vouched import is_recording, tables_of, vouched_bytes

CHUNK: Final = 200  # files that are read together
MANY_FILES: Final = 600  # from which starting other processes, a second each, is worth it

Place = tuple[str, str]  # a device's slug and an operation


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of a merge.

    Attributes:
        files: the files that were read, with so many ``rows``, of which ``added`` were new.
        refused: the reason for each file that was refused.
        recordings: sweeps and grids below the sources, which were left out.
        repaired: damaged files of the store that a source had whole, and that are whole again.
    """

    files: int
    rows: int
    added: int
    refused: tuple[str, ...]
    recordings: int = 0
    repaired: int = 0


def merge(sources: Iterable[Path], store: Store, *, jobs: int = 1) -> Merged:
    """Add the trials of files and of all tables below folders to a store; what it holds already is not added again.

    A table must be vouched for: by its name, the SHA-256 of its bytes as in a store, or by a ``SHA256SUMS`` in a folder
    above it, as in ``results``; and no row may be dated later than now. A refused file is named in the result and
    changes nothing. One with rows that are not of today's space is copied as it is. Of folders, sweeps and grids that
    ship are left out: nothing is served from them, and a store's rows are.

    Args:
        jobs: processes that read, where there are many files. Each imports the program's main module, which must run
            nothing then, as with ``multiprocessing``.

    Raises:
        TableError: the store cannot be written.
    """
    refused: list[TableError] = []
    found = [(source, path) for source in sources for path in tables_of(source, refused.append)]
    paths = [path for source, path in found if path == source or not is_recording(path)]
    merging = _Merging(store, refused, recordings=len(found) - len(paths))
    with ExitStack() as stack:
        chunks = [paths[start : start + CHUNK] for start in range(0, len(paths), CHUNK)]
        for bulk in _read(chunks, jobs if len(paths) >= MANY_FILES else 1, stack):
            merging.add(bulk)
    return merging.end()


def _read(chunks: Sequence[Sequence[Path]], jobs: int, stack: ExitStack) -> Iterable[Bulk]:
    if jobs == 1:
        return map(read_bulk, chunks)
    readers = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))  # a fork would take a CUDA context with it
    stack.callback(readers.shutdown, cancel_futures=True)
    return readers.map(read_bulk, chunks)


class _Merging:
    """A merge under way: the store, and the keys of all rows that are known of each device and operation."""

    def __init__(self, store: Store, refused: list[TableError], *, recordings: int) -> None:
        self._store, self._refused, self._recordings = store, refused, recordings
        self._damaged: dict[Place, list[TableError]] = {}  # of the store, by what was read of it
        self._known: dict[Place, set[int]] = {}
        self._files = self._rows = self._added = 0

    def add(self, found: Bulk) -> None:
        """Add what was read of some files."""
        self._refused += map(TableError, found.refused)
        self._files, self._rows = self._files + found.files, self._rows + found.rows
        for batch in found.batches:
            self._add_batch(batch)
        for path in found.others:
            try:
                data = vouched_bytes(path)
                table = decode(data, str(path))
                require_past(table, str(path))
                shelf = _shelf_of(table, str(path), self._store) if table.outsiders else None
            except TableError as error:
                self._refused.append(error)
            else:
                self._add_table(table, data, shelf)

    def end(self) -> Merged:
        """Return the result; a damaged file of the store that was among the sources has been replaced by now."""
        left = list[TableError]()
        for place in self._damaged:
            for shelf in self._shelves(place):
                deque(_keys_of_shelf(shelf, left.append), maxlen=0)
        refused = tuple(map(str, [*self._refused, *left]))
        damaged = {str(error) for errors in self._damaged.values() for error in errors}
        repaired = len(damaged - set(map(str, left)))
        return Merged(self._files, self._rows, self._added, refused, self._recordings, repaired)

    def _add_batch(self, batch: KeyedRows) -> None:
        known = self._known_at((batch.slug, batch.owner[0]))
        if not (new := [key for key in batch.keys if key not in known]):
            return
        data = batch.data if len(new) == len(batch.keys) else rows_left(_schema_of(*batch.owner), batch, new)
        self._store.append_encoded(batch.slug, batch.owner, data)
        known.update(new)
        self._added += len(new)

    def _add_table(self, table: Table, data: bytes, shelf: Shelf | None) -> None:
        """Add the trials of a table; with a shelf, copy it there as it is."""
        self._files, self._rows = self._files + 1, self._rows + len(table.trials) + len(table.outsiders)
        for device in {trial.device for trial in table.trials}:
            trials = [trial for trial in table.trials if trial.device == device]
            known = self._known_at((device.slug, trials[0].operation))
            keys = keys_of_trials(_schema_of(trials[0].operation, trials[0].implementation), trials)
            new = {key: trial for key, trial in zip(keys, trials, strict=True) if key not in known}
            if new and shelf is None:
                self._store.append(new.values())
            known.update(new)
            self._added += len(new)
        if shelf is not None and not (shelf.folder / f"{sha256(data)}{SUFFIX}").exists():
            shelf.write(data)
            self._added += len(table.outsiders)

    def _known_at(self, place: Place) -> set[int]:
        """Return the keys of an operation's rows on devices of a slug, those of the store to begin with."""
        if (known := self._known.get(place)) is None:
            damaged = list[TableError]()
            known = {key for shelf in self._shelves(place) for key in _keys_of_shelf(shelf, damaged.append)}
            self._known[place] = known
            if damaged:
                self._damaged[place] = damaged
        return known

    def _shelves(self, place: Place) -> list[Shelf]:
        slug, operation = place
        return [Shelf(self._store.root / slug, operation, name) for name in implementation_names(operation)]


def _keys_of_shelf(shelf: Shelf, on_damaged: OnDamaged) -> Iterator[int]:
    """Yield the keys of all rows of a store's shelf, however many others compact it meanwhile."""
    seen: set[Path] = set()
    listed: set[Path] | None = None
    for _ in range(MAX_LISTINGS):
        previous, listed = listed, set(shelf.parts(on_damaged))
        for path in sorted(listed - seen):
            try:
                yield from _keys_of_part(shelf, path)
            except TableError as error:
                on_damaged(error)
        seen |= listed
        if previous is not None and previous <= listed:
            return
    on_damaged(TableError(f"{shelf.folder}: cannot be read: its parts keep vanishing"))


def _keys_of_part(shelf: Shelf, path: Path) -> list[int]:
    """Return the keys of a part's rows; none where it is gone, and its rows stand in a newer one."""
    data = shelf.read_bytes(path)
    if data is None:
        return []
    if (plain := read_plain(data, str(path))) is not None:
        keyed = keys_of_table(*plain)
        belongs = (shelf.operation, shelf.implementation, shelf.device.name)
        if keyed is not None and (*plain[0].owner, *keyed.slugs) == belongs:
            return keyed.keys
    table = shelf.read_part(path)  # which also says what is wrong with it
    if table is None or not table.trials:
        return []
    return keys_of_trials(_schema_of(shelf.operation, shelf.implementation), table.trials)


def _schema_of(operation: str, implementation: str) -> TableSchema:
    schema = schema_named(operation, implementation)
    assert isinstance(schema, TableSchema)  # it has trials
    return schema


def _shelf_of(table: Table, where: str, store: Store) -> Shelf:
    (slug, *owner), *others = table.places
    if others:
        raise TableError(f"{where}: has rows that are not of today's space, and of several devices: cannot be copied")
    return Shelf(store.root / slug, *owner)
