"""Rows in bulk: the tables of many files read, checked and keyed together, as columns, in this process or in others."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from autotune.errors import TableError
from autotune.table.future import require_past_moment
from autotune.table.parquet import encode_table, read_plain, refused
from autotune.table.row_columns import RowColumns
from autotune.table.row_keys import Keyed, keys_of_columns
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
            if plain is not None and (latest := pc.max(plain[1]["started_at"].cast(pa.int64())).as_py()) is not None:
                require_past_moment(moment_of(latest), str(path))
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


def keys_of_table(schema: TableSchema, table: pa.Table) -> Keyed | None:
    """Return the keys of a table's rows; None where a value is impossible, or some are not of today's space."""
    try:
        with refused(schema.implementation.title, "read"):
            return keys_of_columns(RowColumns(schema, table))
    except TableError:
        return None


def _add(bulk: Bulk, schema: TableSchema, tables: Sequence[tuple[Path, pa.Table]]) -> None:
    """Add the rows of tables; where one has an impossible value, or rows that are not of today, all are left."""
    paths = [path for path, _ in tables]
    table = pa.concat_tables([table for _, table in tables])
    try:
        with refused(str(paths[0]), "read"):
            batches = _batches_of(schema, table)
    except TableError:
        batches = None
    if batches is None:
        bulk.others += paths
        return
    bulk.batches += batches
    bulk.files += len(paths)
    bulk.rows += table.num_rows


def _batches_of(schema: TableSchema, table: pa.Table) -> list[KeyedRows] | None:
    found: list[KeyedRows] = []
    for start in range(0, table.num_rows, BULK_ROWS):
        columns = RowColumns(schema, table.slice(start, BULK_ROWS))
        if (keyed := keys_of_columns(columns)) is None:
            return None
        found += _batches(columns, keyed)
    return found


def _batches(columns: RowColumns, keyed: Keyed) -> Iterator[KeyedRows]:
    """Yield the rows of each slug once, in the order of ``in_order``."""
    schema = columns.schema
    rank = {text: place for place, text in enumerate(sorted(set(columns.texts("study"))))}
    ranks = np.array([rank[text] for text in columns.texts("study")])[columns.codes("study")]
    in_order = np.lexsort((columns.numbers("number"), ranks, columns.numbers("started_at")))  # stable
    for place, slug in enumerate(keyed.slugs):
        rows = in_order[keyed.slug_of_row[in_order] == place]
        first_of: dict[int, int] = {}
        for row in rows.tolist():
            first_of.setdefault(keyed.keys[row], row)
        yield KeyedRows(schema.owner, slug, list(first_of), _encoded(columns, list(first_of.values()), slug))


def rows_left(schema: TableSchema, batch: KeyedRows, keys: Iterable[int]) -> bytes:
    """Return the table of some rows of a batch, in its order."""
    wanted = set(keys)
    plain = read_plain(batch.data, batch.slug)
    assert plain is not None
    return _encoded(RowColumns(*plain), [row for row, key in enumerate(batch.keys) if key in wanted], batch.slug)


def _encoded(columns: RowColumns, rows: Sequence[int], slug: str) -> bytes:
    where = "/".join((slug, *columns.schema.owner))
    return encode_table(columns.taken(np.array(rows)), columns.schema.metadata, where)
