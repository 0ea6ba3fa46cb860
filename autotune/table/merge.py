"""Merging: the union of tables from anywhere with a store.

Rows are known by their keys (``autotune.table.row_keys``) and go from file to file as columns, many files at once, so
that a fleet's million of trials takes neither the memory nor the time of as many objects.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from autotune.errors import TableError
from autotune.registry import implementation_names
from autotune.table.files import sha256
from autotune.table.outsiders import Table
from autotune.table.parquet import decode, read_plain, to_python
from autotune.table.parts import MAX_LISTINGS, SUFFIX, OnDamaged, Shelf
from autotune.table.row_keys import keys_of_columns, keys_of_trials
from autotune.table.schema import TableSchema, schema_named
from autotune.table.store import Store
from autotune.table.vouched import is_comparison, tables_of, vouched_bytes

BULK_ROWS: Final = 20_000  # that are in memory as columns at a time: about 100 MB
Place = tuple[str, str]  # a device's slug and an operation


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
    merging = _Merging(store)
    for path in (path for source in sources for path in tables_of(source, merging.refused.append)):
        merging.add(path)
    return merging.end()


class _Merging:
    """A merge under way: the keys of all known rows, and tables of one implementation that wait for more of it."""

    def __init__(self, store: Store) -> None:
        self.refused: list[TableError] = []
        self._store = store
        self._known: dict[Place, set[int]] = {}
        self._waiting: dict[tuple[str, str], list[tuple[Path, pa.Table]]] = {}
        self._files = self._rows = self._added = 0

    def add(self, path: Path) -> None:
        """Add a file, at once or with later ones like it."""
        try:
            data = vouched_bytes(path)
            plain = read_plain(data, str(path))
            if plain is None:
                self._add_decoded(data, path)
                return
        except TableError as error:
            if not is_comparison(path):
                self.refused.append(error)
            return
        schema, table = plain
        waiting = self._waiting.setdefault(schema.owner, [])
        waiting.append((path, table))
        if sum(table.num_rows for _, table in waiting) >= BULK_ROWS:
            self._flush(schema)

    def end(self) -> Merged:
        for owner in list(self._waiting):
            schema = schema_named(*owner)
            assert isinstance(schema, TableSchema)
            self._flush(schema)
        return Merged(self._files, self._rows, self._added, tuple(map(str, self.refused)))

    def _flush(self, schema: TableSchema) -> None:
        """Add the tables that wait, together; one by one where any of them is not plain."""
        waiting = self._waiting.pop(schema.owner)
        try:
            added = self._add_columns(schema, [table for _, table in waiting], f"{len(waiting)} tables")
        except TableError:
            added = False
        if added:
            self._files += len(waiting)
            return
        for path, _ in waiting:
            try:
                self._add_decoded(vouched_bytes(path), path)
            except TableError as error:
                self.refused.append(error)

    def _add_columns(self, schema: TableSchema, tables: Sequence[pa.Table], where: str) -> bool:
        """Add the rows of tables; False, and nothing is added, where one is not of today's space."""
        columns = to_python(pa.concat_tables(tables), where)
        found = keys_of_columns(schema, columns, where)
        if found.outside:
            return False
        self._rows += len(found.keys)
        chosen: dict[Any, list[int]] = {}
        for row, (key, device) in enumerate(zip(found.keys, found.devices, strict=True)):
            known = self._known_at((device.slug, schema.owner[0]))
            if key not in known:
                known.add(key)
                chosen.setdefault(device, []).append(row)
        for device, rows in chosen.items():
            self._store.append_columns(schema, device, _rows_of(columns, rows))
            self._added += len(rows)
        return True

    def _add_decoded(self, data: bytes, path: Path) -> None:
        """Add a file of any sound form, by its trials."""
        table = decode(data, str(path))
        shelf = _shelf_of(table, str(path), self._store) if table.outsiders else None
        self._files, self._rows = self._files + 1, self._rows + len(table.trials) + len(table.outsiders)
        for device in {trial.device for trial in table.trials}:
            trials = [trial for trial in table.trials if trial.device == device]
            known = self._known_at((device.slug, trials[0].operation))
            keys = keys_of_trials(_schema_of(trials[0].operation, trials[0].implementation), trials, str(path))
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
            slug, operation = place
            shelves = [Shelf(self._store.root / slug, operation, name) for name in implementation_names(operation)]
            known = {key for shelf in shelves for key in _keys_of_shelf(shelf, self.refused.append)}
            self._known[place] = known
        return known


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


def _keys_of_part(shelf: Shelf, path: Path) -> Iterator[int]:
    data = shelf.read_bytes(path)
    plain = None if data is None else read_plain(data, str(path))
    if plain is not None:
        schema, table = plain
        if schema.owner == (shelf.operation, shelf.implementation):
            parts = [table.slice(start, BULK_ROWS) for start in range(0, table.num_rows, BULK_ROWS)]
            found = [keys_of_columns(schema, to_python(part, str(path)), str(path)) for part in parts]
            slugs = {device.slug for each in found for device in set(each.devices)}
            if slugs == {shelf.device.name} and not any(each.outside for each in found):
                yield from (key for each in found for key in each.keys)
                return
    decoded = shelf.read_part(path)  # which also says what is wrong with it
    if decoded is not None and decoded.trials:
        schema = _schema_of(shelf.operation, shelf.implementation)
        yield from keys_of_trials(schema, decoded.trials, str(path))


def _rows_of(columns: Mapping[str, Sequence[Any]], rows: Sequence[int]) -> dict[str, list[Any]]:
    """Return some rows of columns, oldest first."""
    started, studies, numbers = (columns[name] for name in ("started_at", "study", "number"))
    in_order = sorted(rows, key=lambda row: (started[row], studies[row], numbers[row]))
    return {name: [values[row] for row in in_order] for name, values in columns.items()}


def _schema_of(operation: str, implementation: str) -> TableSchema:
    schema = schema_named(operation, implementation)
    assert isinstance(schema, TableSchema)  # it has trials
    return schema


def _shelf_of(table: Table, where: str, store: Store) -> Shelf:
    (slug, *owner), *others = table.places
    if others:
        raise TableError(f"{where}: has rows that are not of today's space, and of several devices: cannot be copied")
    return Shelf(store.root / slug, *owner)
