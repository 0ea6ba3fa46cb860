"""Rows in bulk: the tables of many files read, checked and keyed together, as columns, in this process or in others."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from autotune.device import Device
from autotune.errors import TableError
from autotune.table.future import require_past_moment
from autotune.table.parquet import encode_columns, read_plain, to_python
from autotune.table.row_keys import keys_of_columns
from autotune.table.rows import moment_of
from autotune.table.schema import TableSchema
from autotune.table.vouched import is_comparison, vouched_bytes

BULK_ROWS: Final = 20_000  # that are in memory as columns at a time: about 100 MB

Owner = tuple[str, str]  # an operation and an implementation


class KeyedRows(NamedTuple):
    """Checked rows of one implementation on devices of one slug, each once: their keys, and the table in that order."""

    owner: Owner
    slug: str
    keys: list[int]
    data: bytes


@dataclass(slots=True)
class Bulk:
    """Contents of some files: batches of rows, counts of plain files and of their rows, and what is left to the caller.

    ``others`` are files whose rows or columns are not all of today's, ``refused`` the reasons for those that nothing
    vouches for, or that are damaged or foreign.
    """

    batches: list[KeyedRows] = field(default_factory=list)
    files: int = 0
    rows: int = 0
    others: list[Path] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def read_bulk(paths: Sequence[Path]) -> Bulk:
    """Read files; a fault is one of its file alone."""
    found = Bulk()
    waiting: dict[Owner, tuple[TableSchema, list[tuple[Path, pa.Table]]]] = {}
    rows: Counter[Owner] = Counter()
    for path in paths:
        try:
            plain = read_plain(vouched_bytes(path), str(path))
            if plain is not None and (moments := plain[1]["started_at"].cast(pa.int64()).to_pylist()):
                require_past_moment(moment_of(max(moments)), str(path))
        except TableError as error:
            if not is_comparison(path):
                found.refused.append(str(error))
            continue
        if plain is None:
            found.others.append(path)
            continue
        schema, table = plain
        waiting.setdefault(schema.owner, (schema, []))[1].append((path, table))
        rows[schema.owner] += table.num_rows
        if rows[schema.owner] >= BULK_ROWS:
            rows[schema.owner] = 0
            _add(found, *waiting.pop(schema.owner))
    for schema, tables in waiting.values():
        _add(found, schema, tables)
    return found


def keys_of_table(schema: TableSchema, table: pa.Table, where: str) -> tuple[list[int], set[Device]] | None:
    """Return the keys and devices of a table's rows; None where some are not of today's space.

    Raises:
        TableError: a value is impossible.
    """
    keys: list[int] = []
    devices: set[Device] = set()
    for columns in _slices(table, where):
        found = keys_of_columns(schema, columns, where)
        if found.outside:
            return None
        keys += found.keys
        devices.update(found.devices)
    return keys, devices


def _add(bulk: Bulk, schema: TableSchema, tables: Sequence[tuple[Path, pa.Table]]) -> None:
    """Add the rows of tables; where one has an impossible value, or rows that are not of today, all are left."""
    paths = [path for path, _ in tables]
    batches: list[KeyedRows] = []
    try:
        for columns in _slices(pa.concat_tables([table for _, table in tables]), str(paths[0])):
            found = keys_of_columns(schema, columns, str(paths[0]))
            if found.outside:
                bulk.others += paths
                return
            batches += _batches(schema, columns, found.keys, found.devices)
    except TableError:
        bulk.others += paths
        return
    bulk.batches += batches
    bulk.files += len(paths)
    bulk.rows += sum(table.num_rows for _, table in tables)


def _batches(
    schema: TableSchema, columns: Mapping[str, Sequence[Any]], keys: Sequence[int], devices: Sequence[Device]
) -> Iterator[KeyedRows]:
    started, studies, numbers = (columns[name] for name in ("started_at", "study", "number"))
    slugs = {device: device.slug for device in set(devices)}
    rows_of: dict[str, dict[int, int]] = {}
    for row, (key, device) in enumerate(zip(keys, devices, strict=True)):
        rows_of.setdefault(slugs[device], {}).setdefault(key, row)
    for slug, rows in rows_of.items():
        in_order = sorted(rows.items(), key=lambda item: (started[item[1]], studies[item[1]], numbers[item[1]]))
        data = encode_columns(
            {name: [values[row] for _, row in in_order] for name, values in columns.items()},
            schema.arrow,
            schema.metadata,
            "/".join((slug, *schema.owner)),
        )
        yield KeyedRows(schema.owner, slug, [key for key, _ in in_order], data)


def rows_left(schema: TableSchema, batch: KeyedRows, keys: Iterable[int]) -> bytes:
    """Return the table of some rows of a batch, in its order."""
    wanted, where = set(keys), "a batch"
    plain = read_plain(batch.data, where)
    assert plain is not None
    columns = to_python(plain[1], where)
    rows = [row for row, key in enumerate(batch.keys) if key in wanted]
    chosen = {name: [values[row] for row in rows] for name, values in columns.items()}
    return encode_columns(chosen, schema.arrow, schema.metadata, where)


def _slices(table: pa.Table, where: str) -> Iterator[dict[str, list[Any]]]:
    for start in range(0, table.num_rows, BULK_ROWS):
        yield to_python(table.slice(start, BULK_ROWS), where)
