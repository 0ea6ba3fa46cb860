"""Portfolios: which of an architecture's few good configs each recorded shape is assigned, with the evidence.

A portfolio ships as ``<architecture>/<operation>/portfolios/<implementation>.parquet`` below ``results``, a row for
each recorded shape and device, and is checked on every read as winners are. ``benchmarks.portfolios`` writes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from autotune.device import Device
from autotune.errors import TableError, UsageError
from autotune.shape import Shape
from autotune.space import Config
from autotune.table.membership import build_candidates, build_shapes, reasons_outside
from autotune.table.parquet import encode_columns, read_metadata, read_table, to_python
from autotune.table.parts import OnDamaged, raise_damaged
from autotune.table.rows import DEVICE, build_parts, config_columns
from autotune.table.schema import (
    AMOUNT,
    BOOLEAN,
    DEVIATION,
    DURATION,
    FIXED_COLUMNS,
    NAME,
    OWNER_KEYS,
    POSITIVE_COUNT,
    TEXT,
    Stranger,
    TableColumn,
    TableSchema,
    check_column,
    choice,
    schema_named,
)
from autotune.table.shipped import RESULTS, read_listed, write_listed

PORTFOLIOS: Final = "portfolios"
VERSION: Final = "2"
VERSION_KEY: Final = "autotune.portfolio_version"  # in the footer of a file, as a table of trials has its own
# A winner's row times the winner and the default. What else was near it is not known there: only of shapes with more
# timed configs than this is it known what a wrong choice costs. A grid times about twelve, which hold the best: in each
# of twelve sweeps of dense attention, left out in turn, the best of four to six of them was that of all 160 to 490
# (NVIDIA H200, 2026-11-21 and 2026-11-22; ``benchmarks.model_grid.knowledge``).
BROAD: Final = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One recorded shape on one device, and the member of its architecture's portfolio that it is assigned.

    Regrets are parts of the best time there, 0.02 for 2 %; None where they are not known.

    Attributes:
        config: the member.
        is_default: the member is no config but the rule that is the space's default, whose value here ``config`` is.
        timed: how many configs have a time here.
        regret: of the member.
        default_regret: of the space's default.
        left_out_regret: of what the portfolio would choose here if it did not know this shape.
        behind: of the best of this implementation, over the best of all that met in its race; 0 where that is its own,
            None where no other implementation was in it.
        transfer_distance: how far the nearest other shape of the family is (``Shape.distance``) whose configs were
            timed as fully.
        transfer_regret: of serving that shape's winner here; infinite where it computes wrong results.
        source_hash: the source that was timed; ``triton_version`` is that of its toolchain.
    """

    operation: str
    implementation: str
    device: Device
    shape: Shape
    config: Config
    is_default: bool
    timed: int
    regret: float | None = None
    default_regret: float | None = None
    left_out_regret: float | None = None
    behind: float | None = None
    transfer_distance: float | None = None
    transfer_regret: float | None = None
    source_hash: str
    triton_version: str = ""

    @property
    def is_broad(self) -> bool:
        """Return True if enough configs have a time to say what a wrong choice costs."""
        return self.timed > BROAD

    @property
    def left_out_time(self) -> float | None:
        """The time of what the portfolio would choose if it did not know this shape, over the best of all
        implementations of its race, or of its own where there was no other."""
        return None if self.left_out_regret is None else (1.0 + self.left_out_regret) * (1.0 + (self.behind or 0.0))


_DEVICE_COLUMNS: Final = tuple(column for column in FIXED_COLUMNS if column.name in DEVICE)
_COLUMNS: Final = (
    TableColumn("operation", NAME),
    TableColumn("implementation", NAME),
    *_DEVICE_COLUMNS,
    TableColumn("is_default", BOOLEAN),
    TableColumn("timed", POSITIVE_COUNT),
    *(TableColumn(name, AMOUNT, nullable=True) for name in ("regret", "default_regret", "left_out_regret", "behind")),
    TableColumn("transfer_distance", DURATION, nullable=True),
    TableColumn("transfer_regret", DEVIATION, nullable=True),
    TableColumn("source_hash", NAME),
    TableColumn("triton_version", TEXT),
)
_PLAIN: Final = tuple(
    field.name for field in fields(Assignment) if field.name not in ("device", "shape", "config")
)  # fields that are columns of the same name


def shipped_portfolios(
    operation: str, *, implementation: str = "*", results: Path = RESULTS, on_damaged: OnDamaged = raise_damaged
) -> list[Assignment]:
    """Return the portfolios of an operation's implementations, or of one, of all architectures that one ships for.

    Rows that are not of today's space are left out. ``on_damaged`` is called with the error of each portfolio that is
    refused; where it returns, the others are still read.

    Raises:
        TableError: by ``on_damaged``.
    """
    portfolios = read_listed(
        results, f"*/{operation}/{PORTFOLIOS}/{implementation}.parquet", _decode_placed, on_damaged
    )
    return [row for rows in portfolios for row in rows]


def write_portfolio(rows: Sequence[Assignment], *, results: Path = RESULTS) -> Path:
    """Write or replace the portfolio of one implementation on one architecture, and list it in ``SHA256SUMS``.

    Raises:
        TableError: there are no rows, or rows of several; a value is impossible, or a file cannot be written.
    """
    name = _place(rows, "new portfolio")
    write_listed(name, encode(rows, str(results / name)), results)
    return results / name


def encode(rows: Sequence[Assignment], where: str = "new portfolio") -> bytes:
    """Return the Parquet bytes of a portfolio; equal rows in equal order give equal bytes.

    Raises:
        TableError: there are no rows, rows of several implementations or architectures, or an impossible value.
    """
    _place(rows, where)
    schema = _schema(rows[0].operation, rows[0].implementation, where)
    lines = [_to_line(schema, row, where) for row in rows]
    all_columns = (*_COLUMNS, *schema.shape, *schema.config)
    columns = {column.name: [line[column.name] for line in lines] for column in all_columns}
    if _build(schema, columns, where) != list(rows):
        raise TableError(f"{where}: a shape or config is not of the space of {schema.implementation.title}")
    arrow = pa.schema([pa.field(column.name, column.domain.type, column.nullable) for column in all_columns])
    return encode_columns(columns, arrow, _metadata(schema), where)


def decode(data: bytes, where: str, *, is_shipped: bool = False) -> list[Assignment]:
    """Read the bytes of a portfolio; rows that are not of today's space, or implementation, are left out.

    ``is_shipped``: see ``autotune.table.parquet.decode``.

    Raises:
        TableError: the bytes are no portfolio, exceed a reader's limits or hold an impossible value.
    """
    file, said = read_metadata(data, where, is_shipped=is_shipped)
    if said.keys() != {VERSION_KEY, *OWNER_KEYS}:
        raise TableError(f"{where}: not a portfolio of autotune: its metadata are {sorted(said) or 'absent'}")
    if said[VERSION_KEY] != VERSION:
        raise TableError(f"{where}: {VERSION_KEY}={said[VERSION_KEY]!r} cannot be read; expected {VERSION!r}")
    schema = schema_named(*(said[key] for key in OWNER_KEYS))
    if isinstance(schema, Stranger):
        return []
    table = read_table(data, file, lambda found: _check_columns(found, schema, where), where)
    return _build(schema, to_python(table, where), where)


def _decode_placed(results: Path, name: str, data: bytes) -> list[Assignment]:
    where = str(results / name)
    rows = decode(data, where, is_shipped=results == RESULTS)
    if rows and (belongs := _place(rows, where)) != name:
        raise TableError(f"{where}: holds the portfolio that belongs at {belongs}")
    return rows


def _place(rows: Sequence[Assignment], where: str) -> str:
    """Return the path of a portfolio below ``results``."""
    found = sorted({(row.device.arch, row.operation, PORTFOLIOS, f"{row.implementation}.parquet") for row in rows})
    if len(found) != 1:
        of = ", ".join(map("/".join, found)) or "no rows"
        raise TableError(f"{where}: a portfolio is of one implementation and one architecture, got {of}")
    return "/".join(found[0])


def _schema(operation: str, implementation: str, where: str) -> TableSchema:
    if isinstance(schema := schema_named(operation, implementation), Stranger):
        raise TableError(f"{where}: {schema.reason}")
    return schema


def _metadata(schema: TableSchema) -> dict[str, str]:
    return {VERSION_KEY: VERSION, **dict(zip(OWNER_KEYS, schema.owner, strict=True))}


def _to_line(schema: TableSchema, row: Assignment, where: str) -> dict[str, Any]:
    parameters = schema.implementation.space.parameters
    if type(row.shape) is not schema.shape_class or row.config.keys() != {each.name for each in parameters}:
        raise TableError(f"{where}: {row.shape} with {row.config} is not of {schema.implementation.title}")
    line = {name: getattr(row, name) for name in _PLAIN}
    line |= {column: getattr(row.device, field) for column, field in DEVICE.items()}
    return line | row.shape.as_dict() | config_columns(parameters, row.config)


def _check_columns(found: pa.Schema, schema: TableSchema, where: str) -> None:
    """Refuse columns of other types than declared, or without those of every portfolio; others may have been once."""
    types = {column.name: column.domain.type for column in (*_COLUMNS, *schema.shape)}
    missing = {column.name for column in _COLUMNS} - set(found.names)
    wrong = [field.name for field in found if field.type != types.get(field.name, field.type)]
    if missing or wrong or len(set(found.names)) != len(found.names):
        raise TableError(f"{where}: columns are missing, doubled or wrong: {', '.join(sorted({*missing, *wrong}))}")


def _build(schema: TableSchema, columns: Mapping[str, Sequence[Any]], where: str) -> list[Assignment]:
    for column in _COLUMNS:
        check_column(column, columns[column.name], where)
    for name, expected in zip(("operation", "implementation"), schema.owner, strict=True):
        check_column(TableColumn(name, choice(expected)), columns[name], where)
    devices = build_parts(Device, DEVICE, columns)
    shapes, candidates = build_shapes(schema, columns, len(devices)), build_candidates(schema, columns, devices)
    own = {column.name for column in _COLUMNS}
    known = {name: values for name, values in columns.items() if name not in own}
    reasons = reasons_outside(schema, known, shapes, candidates)
    plain = zip(*(columns[name] for name in _PLAIN), strict=True)
    return [
        _as_today(
            schema,
            Assignment(**dict(zip(_PLAIN, line, strict=True)), device=device, shape=shape, config=candidate.config),
        )
        for line, device, shape, candidate, reason in zip(plain, devices, shapes, candidates, reasons, strict=True)
        if reason is None and not isinstance(shape, str) and not isinstance(candidate, str)
    ]


def _as_today(schema: TableSchema, row: Assignment) -> Assignment:
    """Take a default that the space has changed since for the config that it was; what it lost is not known anew."""
    if not row.is_default:
        return row
    try:
        is_same = schema.implementation.space.default(row.shape, row.device) == row.config
    except UsageError:
        is_same = False
    return row if is_same else replace(row, is_default=False, default_regret=None, left_out_regret=None)
