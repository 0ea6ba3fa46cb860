"""Tables as Parquet bytes: written the same for the same rows, and read within limits."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from autotune.errors import TableError, UnknownNameError
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.table.files import MAX_FILE_BYTES
from autotune.table.rows import to_columns, to_trials
from autotune.table.schema import (
    OPERATION_KEY,
    SCHEMA_VERSION,
    VERSION_KEY,
    TableSchema,
    table_schema,
)
from autotune.trial import Trial

MAX_ROWS: Final = 1_000_000
MAX_COLUMNS: Final = 128
MAX_DECODED_BYTES: Final = 512 * 2**20  # a file of 874 kB can unfold to 1.6 GB, see reliability.md section 5


def encode(trials: Sequence[Trial], where: str = "new table") -> bytes:
    """The Parquet bytes of trials of one operation; equal rows in equal order give equal bytes.

    Raises:
        TableError: there is no trial, the trials are of several operations, a value is impossible, or the file would
            be larger than a reader takes.
    """
    names = {trial.operation for trial in trials}
    if len(names) != 1:
        raise TableError(f"{where}: a table holds one operation, got {', '.join(sorted(names)) or 'no trials'}")
    operation = _operation(names.pop(), where)
    schema = table_schema(operation)
    columns = to_columns(operation, trials, where)
    sink = pa.BufferOutputStream()
    with _refused(where, "written"):
        arrays = [pa.array(columns[field.name], field.type) for field in schema.arrow]
        writer = pq.ParquetWriter(
            sink, schema.arrow, compression="zstd", write_page_checksum=True, write_statistics=False, store_schema=False
        )
        with writer:
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema.arrow))
            writer.add_key_value_metadata(schema.metadata)
    data: bytes = sink.getvalue().to_pybytes()
    if len(data) > MAX_FILE_BYTES or len(trials) > MAX_ROWS:
        raise TableError(
            f"{where}: {len(trials)} rows of {len(data)} bytes are more than a reader takes, {MAX_ROWS} of "
            f"{MAX_FILE_BYTES}; write them as several tables"
        )
    return data


def decode(data: bytes, where: str) -> list[Trial]:
    """The trials in the bytes of a table; ``where`` names the file in errors.

    Raises:
        TableError: the bytes are not a table of a registered operation, exceed a limit, or hold an impossible value.
    """
    operation, footer = _footer(data, where)
    schema = table_schema(operation)
    table = _read_table(data, footer, schema, where)
    with _refused(where, "read"):
        columns = _python_columns(table, schema)
    return to_trials(operation, columns, where)


def operation_of(data: bytes, where: str) -> str:
    """The operation whose table the bytes hold, from the footer alone.

    Raises:
        TableError: the bytes are not a table of a registered operation.
    """
    return _footer(data, where)[0].name


def _footer(data: bytes, where: str) -> tuple[Operation[Any], pq.FileMetaData]:
    with _refused(where, "read"):
        footer = pq.read_metadata(pa.BufferReader(data))
        said = {key.decode(): value.decode() for key, value in (footer.metadata or {}).items()}
    # Nothing else is let in: a foreign "ARROW:schema" would be decoded, and may name extension types, which are code.
    if said.keys() != {VERSION_KEY, OPERATION_KEY}:
        raise TableError(f"{where}: not a table of autotune: its metadata are {sorted(said) or 'absent'}")
    if said[VERSION_KEY] != SCHEMA_VERSION:
        raise TableError(f"{where}: {VERSION_KEY}={said[VERSION_KEY]!r} cannot be read; expected {SCHEMA_VERSION!r}")
    return _operation(said[OPERATION_KEY], where), footer


def _operation(name: str, where: str) -> Operation[Any]:
    try:
        return get_operation(name)
    except UnknownNameError as error:
        raise TableError(f"{where}: {error}") from error


def _read_table(data: bytes, footer: pq.FileMetaData, schema: TableSchema, where: str) -> pa.Table:
    decoded = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
    for measure, count, limit in (
        ("rows", footer.num_rows, MAX_ROWS),
        ("columns", footer.num_columns, MAX_COLUMNS),
        ("decoded bytes", decoded, MAX_DECODED_BYTES),
    ):
        if count > limit:
            raise TableError(f"{where}: {count} {measure} are more than the {limit} allowed")
    with _refused(where, "read"):
        found = footer.schema.to_arrow_schema()
        _check_columns(found, schema, where)
        # Texts stay dictionaries, so that one long text repeated a million times costs its length once.
        texts = [name for name in found.names if found.field(name).type == pa.string()]
        file = pq.ParquetFile(
            pa.BufferReader(data), metadata=footer, read_dictionary=texts, page_checksum_verification=True
        )
        table = file.read(use_threads=False)
        table.validate(full=True)
    return table


def _check_columns(found: pa.Schema, schema: TableSchema, where: str) -> None:
    expected = {column.name: column.domain.type for column in schema.columns}
    optional = {column.name for column in schema.columns if column.optional}
    if len(set(found.names)) != len(found.names):
        raise TableError(f"{where}: two columns have one name: {', '.join(found.names)}")
    if foreign := set(found.names) - expected.keys():
        raise TableError(f"{where}: unknown columns: {', '.join(sorted(foreign))}")
    if missing := expected.keys() - optional - set(found.names):
        raise TableError(f"{where}: missing columns: {', '.join(sorted(missing))}")
    for field in found:
        if field.type != expected[field.name]:
            raise TableError(f"{where}: column {field.name} is {field.type}, expected {expected[field.name]}")


def _python_columns(table: pa.Table, schema: TableSchema) -> dict[str, list[Any]]:
    found = dict(zip(table.column_names, table.columns, strict=True))
    return {
        column.name: _python_values(found[column.name]) if column.name in found else [None] * table.num_rows
        for column in schema.columns
    }


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_dictionary(column.type):
        return _texts(column)
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _texts(column: pa.ChunkedArray) -> list[str | None]:
    """Equal texts of a dictionary as one Python string, several times faster than ``to_pylist``."""
    texts: list[str | None] = []
    for chunk in column.chunks:
        words = chunk.dictionary.to_pylist()
        texts += [None if index is None else words[index] for index in chunk.indices.to_pylist()]
    return texts


@contextmanager
def _refused(where: str, doing: str) -> Iterator[None]:
    """Whatever pyarrow raises for damaged or foreign bytes, or for values that have no Arrow form, as one error."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise TableError(f"{where}: cannot be {doing} as Parquet: {error}") from error
