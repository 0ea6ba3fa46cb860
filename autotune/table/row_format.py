"""Files of other rows than trials: of one implementation on one architecture, each of a device, a shape and a config.

They ship as ``<architecture>/<operation>/<folder>/<implementation>.parquet`` below ``results``, listed in
``SHA256SUMS``, and are checked on every read as tables of trials are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa

from autotune.device import Device
from autotune.errors import TableError
from autotune.implementation import Implementation
from autotune.shape import Shape
from autotune.space import Config
from autotune.table.membership import build_candidates, build_shapes, reasons_outside
from autotune.table.parquet import encode_columns, open_parquet, read_table, to_python
from autotune.table.parts import OnDamaged
from autotune.table.rows import DEVICE, build_parts, config_columns
from autotune.table.schema import (
    FIXED_COLUMNS,
    NAME,
    OWNER_KEYS,
    Stranger,
    TableColumn,
    TableSchema,
    check_column,
    choice,
    schema_named,
)
from autotune.table.shipped import RESULTS, read_listed, write_listed

_PARTS: Final = ("device", "shape", "config")  # fields that take several columns each
_OWN: Final = (
    TableColumn("operation", NAME),
    TableColumn("implementation", NAME),
    *(column for column in FIXED_COLUMNS if column.name in DEVICE),
)


class Row(Protocol):
    """The fields that every row has; a format adds plain ones, each in the column of its name."""

    @property
    def operation(self) -> str: ...
    @property
    def implementation(self) -> str: ...
    @property
    def device(self) -> Device: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def config(self) -> Config: ...


RowT = TypeVar("RowT", bound=Row)


@dataclass(frozen=True, eq=False)
class RowFormat(Generic[RowT]):
    """A kind of rows and their files.

    Attributes:
        kind: the dataclass of a row.
        title: names a file in errors: "a portfolio".
        folder: the folder of the files, below the operation's.
        version_key: the key in a file's footer that tells its kind; tables of trials have their own.
        columns: those of the fields of ``kind`` that are no column of every format.
        as_today: turns a row that was written under an earlier space into one of today's.
    """

    kind: type[RowT]
    title: str
    folder: str
    version_key: str
    version: str
    columns: tuple[TableColumn, ...]
    as_today: Callable[[Implementation[Any], RowT], RowT] = lambda implementation, row: row

    def read(
        self, operation: str, results: Path, on_damaged: OnDamaged, *, arch: str = "*", implementation: str = "*"
    ) -> list[RowT]:
        """Return the rows that ship; those that are not of today's space are left out.

        ``on_damaged`` is called with the error of each file that is refused; where it returns, the others are read.
        """
        pattern = f"{arch}/{operation}/{self.folder}/{implementation}.parquet"

        def read(results: Path, name: str, data: bytes) -> list[RowT]:
            return self.decode_placed(data, results / name, is_shipped=results == RESULTS)

        return [row for rows in read_listed(results, pattern, read, on_damaged) for row in rows]

    def write(self, rows: Sequence[RowT], results: Path) -> Path:
        """Write or replace the file of one implementation on one architecture, and list it in ``SHA256SUMS``.

        Raises:
            TableError: there are no rows, or rows of several; a value is impossible, or a file cannot be written.
        """
        name = self._place(rows, f"new {self._noun}")
        write_listed(name, self.encode(rows, str(results / name)), results)
        return results / name

    def encode(self, rows: Sequence[RowT], where: str) -> bytes:
        """Return the Parquet bytes of rows; equal rows in equal order give equal bytes.

        Raises:
            TableError: there are no rows, rows of several implementations or architectures, or an impossible value.
        """
        self._place(rows, where)
        schema = schema_named(rows[0].operation, rows[0].implementation)
        if isinstance(schema, Stranger):
            raise TableError(f"{where}: {schema.reason}")
        lines = [self._to_line(schema, row, where) for row in rows]
        all_columns = (*self._columns, *schema.shape, *schema.config)
        columns = {column.name: [line[column.name] for line in lines] for column in all_columns}
        if self._build(schema, columns, where) != list(rows):
            raise TableError(f"{where}: a shape or config is not of the space of {schema.implementation.title}")
        arrow = pa.schema([pa.field(column.name, column.domain.type, column.nullable) for column in all_columns])
        return encode_columns(columns, arrow, self._metadata(schema), where)

    def decode(self, data: bytes, where: str, *, is_shipped: bool = False) -> list[RowT]:
        """Read the bytes of a file; rows that are not of today's space, or implementation, are left out.

        ``is_shipped``: see ``autotune.table.parquet.decode``.

        Raises:
            TableError: the bytes are no such file, exceed a reader's limits or hold an impossible value.
        """
        file, said = open_parquet(data, where, is_shipped=is_shipped)
        if said.keys() != {self.version_key, *OWNER_KEYS}:
            raise TableError(f"{where}: not {self.title} of autotune: its metadata are {sorted(said) or 'absent'}")
        if (version := said[self.version_key]) != self.version:
            raise TableError(f"{where}: {self.version_key}={version!r} cannot be read; expected {self.version!r}")
        schema = schema_named(*(said[key] for key in OWNER_KEYS))
        if isinstance(schema, Stranger):
            return []
        table = read_table(file, lambda found: self._check_columns(found, schema, where), where)
        return self._build(schema, to_python(table, where), where)

    @property
    def _columns(self) -> tuple[TableColumn, ...]:
        return (*_OWN, *self.columns)

    @property
    def _plain(self) -> tuple[str, ...]:
        """The fields that are columns of the same name."""
        return tuple(field.name for field in fields(self.kind) if field.name not in _PARTS)  # type: ignore[arg-type]

    @property
    def _noun(self) -> str:
        return self.title.partition(" ")[2]

    def decode_placed(self, data: bytes, path: Path, *, is_shipped: bool = False) -> list[RowT]:
        """Read the bytes of a file as ``decode`` does, and refuse them where they belong at another place."""
        where = str(path)
        rows = self.decode(data, where, is_shipped=is_shipped)
        if rows and (belongs := self._place(rows, where)) != "/".join(path.absolute().parts[-4:]):
            raise TableError(f"{where}: holds the {self._noun} that belongs at {belongs}")
        return rows

    def _place(self, rows: Sequence[RowT], where: str) -> str:
        """Return the path of a file below ``results``."""
        found = sorted({(row.device.arch, row.operation, self.folder, f"{row.implementation}.parquet") for row in rows})
        if len(found) != 1:
            of = ", ".join(map("/".join, found)) or "no rows"
            raise TableError(f"{where}: {self.title} is of one implementation and one architecture, got {of}")
        return "/".join(found[0])

    def _metadata(self, schema: TableSchema) -> dict[str, str]:
        return {self.version_key: self.version, **dict(zip(OWNER_KEYS, schema.owner, strict=True))}

    def _to_line(self, schema: TableSchema, row: RowT, where: str) -> dict[str, Any]:
        parameters = schema.implementation.space.parameters
        if type(row.shape) is not schema.shape_class or row.config.keys() != {each.name for each in parameters}:
            raise TableError(f"{where}: {row.shape} with {row.config} is not of {schema.implementation.title}")
        line = {name: getattr(row, name) for name in self._plain}
        line |= {column: getattr(row.device, field) for column, field in DEVICE.items()}
        return line | row.shape.as_dict() | config_columns(parameters, row.config)

    def _check_columns(self, found: pa.Schema, schema: TableSchema, where: str) -> None:
        """Refuse other types than declared, or files without a column of every file; others may have been once."""
        types = {column.name: column.domain.type for column in (*self._columns, *schema.shape)}
        missing = {column.name for column in self._columns} - set(found.names)
        wrong = [field.name for field in found if field.type != types.get(field.name, field.type)]
        if missing or wrong or len(set(found.names)) != len(found.names):
            raise TableError(f"{where}: columns are missing, doubled or wrong: {', '.join(sorted({*missing, *wrong}))}")

    def _build(self, schema: TableSchema, columns: Mapping[str, Sequence[Any]], where: str) -> list[RowT]:
        for column in self._columns:
            check_column(column, columns[column.name], where)
        for name, expected in zip(("operation", "implementation"), schema.owner, strict=True):
            check_column(TableColumn(name, choice(expected)), columns[name], where)
        return [self.as_today(schema.implementation, row) for row in self._rows_of_today(schema, columns)]

    def _rows_of_today(self, schema: TableSchema, columns: Mapping[str, Sequence[Any]]) -> Iterator[RowT]:
        devices = build_parts(Device, DEVICE, columns)
        shapes, candidates = build_shapes(schema, columns, len(devices)), build_candidates(schema, columns, devices)
        own = {column.name for column in self._columns}
        known = {name: values for name, values in columns.items() if name not in own}
        reasons = reasons_outside(schema, known, shapes, candidates)
        names = self._plain
        make: Callable[..., RowT] = self.kind
        plain = zip(*(columns[name] for name in names), strict=True)
        for line, device, shape, candidate, reason in zip(plain, devices, shapes, candidates, reasons, strict=True):
            if reason is None and not isinstance(shape, str) and not isinstance(candidate, str):
                named = dict(zip(names, line, strict=True))
                yield make(**named, device=device, shape=shape, config=candidate.config)
