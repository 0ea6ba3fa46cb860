"""Tables as Parquet bytes: written the same for the same rows, and read within limits.

Bytes that are not a table, exceed a limit or hold an impossible value raise ``TableError``, with ``where`` in front.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from autotune.errors import TableError
from autotune.table import first_release
from autotune.table.files import MAX_FILE_BYTES
from autotune.table.outsiders import Table
from autotune.table.page_bounds import MAX_COLUMNS, require_bounded
from autotune.table.rows import to_columns, to_table
from autotune.table.schema import (
    FIXED_COLUMNS,
    IMPLEMENTATION_KEY,
    OPERATION_KEY,
    OWNER_KEYS,
    SCHEMA_VERSION,
    VERSION_KEY,
    Stranger,
    TableSchema,
    schema_named,
)
from autotune.trial import Stage, Status, Trial

FILTERED_ROWS: Final = 2000  # a filter loads pyarrow.compute, which takes as long as to build so many rows
VALUE_TYPES: Final = (pa.int64(), pa.float64(), pa.string(), pa.bool_())  # of shapes' fields and of parameters


class Encoded(NamedTuple):
    """The Parquet bytes of a table, and its rows as ``decode`` returns them while the schema is today's."""

    data: bytes
    table: Table
    schema: TableSchema


def encode(trials: Sequence[Trial], where: str = "new table") -> bytes:
    """Return the Parquet bytes of trials of one implementation; equal rows in equal order give equal bytes.

    Raises:
        TableError: as ``encode_rows`` does.
    """
    return encode_rows(trials, where).data


def encode_rows(trials: Sequence[Trial], where: str) -> Encoded:
    """Return the Parquet bytes of trials of one implementation, and what they are read back as.

    Raises:
        TableError: there is no trial, the trials are of several implementations or an unknown one, a value is
            impossible, or the file would be larger than a reader takes.
    """
    owners = {(trial.operation, trial.implementation) for trial in trials}
    if len(owners) != 1:
        found = ", ".join(sorted(map("/".join, owners))) or "no trials"
        raise TableError(f"{where}: a table holds one implementation, got {found}")
    if isinstance(schema := schema_named(*owners.pop()), Stranger):
        raise TableError(f"{where}: {schema.reason}")
    columns, rows = to_columns(schema, trials, where)
    return Encoded(encode_columns(columns, schema.arrow, schema.metadata, where), Table(rows, []), schema)


def encode_columns(
    columns: Mapping[str, Sequence[Any]], schema: pa.Schema, metadata: Mapping[str, str], where: str
) -> bytes:
    """Return the Parquet bytes of columns, unless there are more than a reader takes."""
    with refused(where, "written"):
        table = to_arrow(columns, schema)
    return encode_table(table, metadata, where)


def to_arrow(columns: Mapping[str, Sequence[Any]], schema: pa.Schema) -> pa.Table:
    """Return a table of columns, the moments among them as microseconds since 1970."""
    return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def encode_table(table: pa.Table, metadata: Mapping[str, str], where: str) -> bytes:
    """Return the Parquet bytes of a table, unless it is more than a reader takes."""
    with refused(where, "written"):
        data = to_parquet(table, metadata)
    if len(data) > MAX_FILE_BYTES:
        raise TableError(
            f"{where}: {table.num_rows} rows in {len(data)} bytes are more than a reader takes, {MAX_FILE_BYTES}; "
            "write them as several tables"
        )
    require_bounded(data, where)
    return data


def to_parquet(table: pa.Table, metadata: Mapping[str, str]) -> bytes:
    """Return a table as Parquet bytes; equal tables give equal bytes.

    Compressed by LZ4: zstd sets up a decoder for every page, which a small table has as many of as a large one, and a
    first look-up waits for (``benchmarks.first_lookup``).
    """
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, table.schema, compression="lz4", write_page_checksum=True, write_statistics=False, store_schema=False
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)
    return bytes(sink.getvalue().to_pybytes())


def decode(data: bytes, where: str, *, races_only: bool = False, is_shipped: bool = False) -> Table:
    """Read the bytes of a table, of the first release too; ``where`` names the file in errors.

    With ``races_only`` rows that cannot win may be left out, which is several times as fast; those of outsiders then
    count from 0 among the others. ``is_shipped``: it came with the package, which is trusted; any other is refused
    where it would unfold to more than a table has.
    """
    footer = _footer(data, where, is_shipped=is_shipped)
    schema = schema_named(*footer.owner)
    table = read_table(footer.file, lambda found: _check_columns(found, footer, schema, where), where)
    if races_only and table.num_rows > FILTERED_ROWS:
        table = _raced(table)
    absent = {column.name: [None] * table.num_rows for column in FIXED_COLUMNS if column.optional}
    columns = absent | to_python(table, where)
    if footer.first_release:
        columns = first_release.renamed(columns, footer.first_release, where)
    return to_table(schema, columns, where)


def read_plain(data: bytes, where: str) -> tuple[TableSchema, pa.Table] | None:
    """Read the bytes of a table that has exactly today's columns, without building or checking its rows.

    None for any other, which ``decode`` reads or refuses.
    """
    footer = _footer(data, where, is_shipped=False)
    schema = schema_named(*footer.owner)
    if footer.first_release or isinstance(schema, Stranger):
        return None
    with refused(where, "read"):
        is_plain = footer.file.schema.to_arrow_schema().equals(schema.arrow)
    return (schema, read_table(footer.file, lambda found: None, where)) if is_plain else None


def owner_of(data: bytes, where: str, *, is_shipped: bool = False) -> tuple[str, str]:
    """Return the names of the operation and the implementation whose table the bytes hold, from the footer alone."""
    return _footer(data, where, is_shipped=is_shipped).owner


class _Footer(NamedTuple):
    """A file that is open, the implementation it is of, and the operation's name then if of the first release."""

    file: pq.ParquetFile
    owner: tuple[str, str]
    first_release: str = ""


def _footer(data: bytes, where: str, *, is_shipped: bool) -> _Footer:
    file, said = open_parquet(data, where, is_shipped=is_shipped)
    version = said.get(VERSION_KEY)
    is_first = version == first_release.VERSION
    keys = {VERSION_KEY, OPERATION_KEY} if is_first else {VERSION_KEY, *OWNER_KEYS}
    # Nothing else is let in: a foreign "ARROW:schema" would be decoded, and may name extension types, which are code.
    if said.keys() - keys or version is None:
        raise TableError(f"{where}: not a table of autotune: its metadata are {sorted(said) or 'absent'}")
    if not is_first and version != SCHEMA_VERSION:
        raise TableError(f"{where}: {VERSION_KEY}={version!r} cannot be read; expected {SCHEMA_VERSION!r}")
    if missing := keys - said.keys():
        raise TableError(f"{where}: not a table of autotune: its metadata lack {', '.join(sorted(missing))}")
    operation = said[OPERATION_KEY]
    if is_first:
        return _Footer(file, first_release.names_of(operation), operation)
    return _Footer(file, (operation, said[IMPLEMENTATION_KEY]))


def open_parquet(data: bytes, where: str, *, is_shipped: bool = False) -> tuple[pq.ParquetFile, dict[str, str]]:
    """Open the bytes of a file, of which nothing is decoded yet, and return it with the metadata of its footer."""
    if not is_shipped:  # which takes a fifth of the time to decode a small one
        require_bounded(data, where)
    with refused(where, "read"):
        file = pq.ParquetFile(
            pa.BufferReader(data),
            # Texts stay dictionaries, so that one long text repeated a million times costs its length once; it says
            # nothing of other columns.
            read_dictionary=range(MAX_COLUMNS),
            page_checksum_verification=True,
            pre_buffer=False,  # which copies, for storage that is far away
        )
        return file, {key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()}


def read_table(file: pq.ParquetFile, check: Callable[[pa.Schema], None], where: str) -> pa.Table:
    """Read a table, whose footer ``open_parquet`` let pass, once ``check`` has not refused its columns."""
    with refused(where, "read"):
        check(file.schema.to_arrow_schema())
        table = file.read(use_threads=False)
        table.validate(full=True)
    return table


def to_python(table: pa.Table, where: str) -> dict[str, list[Any]]:
    """Return the columns of a table as Python values; moments as microseconds since 1970."""
    with refused(where, "read"):
        columns = zip(table.column_names, table.itercolumns(), strict=True)
        return {name: _python_values(column) for name, column in columns}


def _check_columns(found: pa.Schema, footer: _Footer, schema: TableSchema | Stranger, where: str) -> None:
    """Refuse columns that no table has; those of shapes and parameters may be other ones than today's."""
    if not isinstance(schema, Stranger) and found.equals(schema.arrow):
        return
    if len(set(found.names)) != len(found.names):
        raise TableError(f"{where}: two columns have one name: {', '.join(found.names)}")
    required = {column.name for column in FIXED_COLUMNS if not column.optional}
    if footer.first_release:
        required.remove("implementation")
    if missing := required - set(found.names):
        raise TableError(f"{where}: missing columns: {', '.join(sorted(missing))}")
    shape = () if isinstance(schema, Stranger) else schema.shape
    expected = {column.name: column.domain.type for column in (*FIXED_COLUMNS, *shape)}
    for field in found:
        if field.type != expected.get(field.name, field.type):
            raise TableError(f"{where}: column {field.name} is {field.type}, expected {expected[field.name]}")
        if not field.name.isidentifier() or (field.name not in expected and field.type not in VALUE_TYPES):
            raise TableError(f"{where}: column {field.name} is {field.type}: no shape or parameter has such a column")


def _raced(table: pa.Table) -> pa.Table:
    """Keep the rows that may win: valid ones of a race."""
    stages, statuses = _python_values(table["stage"]), _python_values(table["status"])
    may_win = [stage == Stage.RACE and status == Status.OK for stage, status in zip(stages, statuses, strict=True)]
    return table.filter(pa.array(may_win, pa.bool_()))


def _python_values(column: pa.ChunkedArray) -> list[Any]:
    values: list[Any] = []
    for chunk in column.chunks:
        if chunk.null_count == len(chunk):
            values += [None] * len(chunk)
        elif isinstance(chunk, pa.DictionaryArray):
            values += _texts(chunk)
        elif isinstance(chunk, pa.TimestampArray):  # a cast of the whole column would load pyarrow.compute
            values += chunk.view(pa.int64()).to_pylist()
        else:
            values += chunk.to_pylist()
    return values


def _texts(chunk: pa.DictionaryArray) -> Iterable[str | None]:
    """Return equal texts of a dictionary as one Python string, several times faster than ``to_pylist``."""
    words = chunk.dictionary.to_pylist()
    if chunk.null_count:
        return [None if index is None else words[index] for index in chunk.indices.to_pylist()]
    return words * len(chunk) if len(words) == 1 else map(words.__getitem__, chunk.indices.to_pylist())


@contextmanager
def refused(where: str, doing: str) -> Iterator[None]:
    """Turn whatever pyarrow raises for damaged bytes, or for values that have no Arrow form, into one error."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise TableError(f"{where}: cannot be {doing} as Parquet: {error}") from error
