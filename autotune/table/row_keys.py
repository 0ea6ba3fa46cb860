"""Keys of rows: a number for each row of columns, equal where the trials are, without an object for any of them.

A merge of a million rows knows each by its key, in a tenth of the memory that the trials take. Two rows have one key by
chance only if they began in the same microsecond and have one number, and then once in 2**64.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from autotune.device import Device
from autotune.shape import Shape
from autotune.table.membership import Columns, build_candidates, build_defaults, build_shapes
from autotune.table.parquet import to_arrow
from autotune.table.row_columns import Numbers, RowColumns
from autotune.table.rows import DEVICE, build_parts, to_row
from autotune.table.schema import FIXED_COLUMNS, TableColumn, TableSchema
from autotune.trial import Trial

# What a key has as trials compare it: devices of one model are equal though their memory differs a little.
_TOLD: Final = {*DEVICE, "started_at", "number"}
_BITS: Final = 64
_NULL: Final = np.uint64(0x6A09E667F3BCC908)  # any number
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no two numbers give one product
_SHIFT: Final = np.uint64(32)

T = TypeVar("T")
Hashes = npt.NDArray[np.uint64]


class Keyed(NamedTuple):
    """The keys of rows, the slugs of their devices, and the place of its slug for each row."""

    keys: list[int]
    slugs: list[str]
    slug_of_row: Numbers


def keys_of_columns(columns: RowColumns) -> Keyed | None:
    """Return the keys of rows; None where a value is impossible, or some are not of today's space."""
    if columns.count == 0:
        return Keyed([], [], np.zeros(0, np.int64))
    if not columns.are_sound:
        return None
    device_of_row, devices = _parts(columns, (), _devices)
    parts = [
        _parts(columns, columns.schema.shape, _shapes),
        _parts(columns, columns.schema.config, build_candidates),
        _parts(columns, columns.schema.default_config, build_defaults),
        (device_of_row, [(device.model, device.power_cap_watts) for device in devices]),
    ]
    if any(isinstance(value, str) for _, values in parts for value in values):  # why it is not of the space
        return None
    told = [_numbers(values)[of_row] for of_row, values in parts]
    told += [_column(columns, column.name) for column in FIXED_COLUMNS if column.name not in _TOLD]
    firsts = functools.reduce(_mixed, told)
    started, number = (_column(columns, name) for name in ("started_at", "number"))
    seconds = _mixed(_mixed(np.zeros_like(started), started), number)  # near values of both would cancel otherwise
    keys = [first << _BITS | second for first, second in zip(firsts.tolist(), seconds.tolist(), strict=True)]
    slugs = [device.slug for device in devices]
    distinct = list(dict.fromkeys(slugs))
    return Keyed(keys, distinct, np.array([distinct.index(slug) for slug in slugs])[device_of_row])


def keys_of_trials(schema: TableSchema, trials: Sequence[Trial]) -> list[int]:
    """Return the keys that trials of one implementation have as rows."""
    parameters = schema.implementation.space.parameters
    rows = [to_row(parameters, trial) for trial in trials]
    table = to_arrow({column.name: [row[column.name] for row in rows] for column in schema.columns}, schema.arrow)
    found = keys_of_columns(RowColumns(schema, table))
    assert found is not None  # a trial is sound, and of today's space
    return found.keys


def _parts(
    columns: RowColumns,
    of: Sequence[TableColumn],
    build: Callable[[TableSchema, Columns, Sequence[Device]], Sequence[T]],
) -> tuple[Numbers, Sequence[T]]:
    """Build a part of rows from its columns and those of the device; return which one each row has, and all."""
    names = [*DEVICE, *(column.name for column in of)]
    first_rows, of_row = columns.distinct(names)
    values = columns.python(names, first_rows)
    return of_row, build(columns.schema, values, build_parts(Device, DEVICE, values))


def _devices(schema: TableSchema, columns: Columns, devices: Sequence[Device]) -> Sequence[Device]:
    return devices


def _shapes(schema: TableSchema, columns: Columns, devices: Sequence[Device]) -> Sequence[Shape | str]:
    return build_shapes(schema, columns, len(devices))


def _column(columns: RowColumns, name: str) -> Hashes:
    """Return a number for each value of a column, the same in every process."""
    array = columns.array(name)
    if isinstance(array, pa.DictionaryArray):
        return _numbers([*columns.texts(name), None])[columns.codes(name)]
    values = columns.numbers(name)
    # Zeros of both signs are equal.
    bits = (values + 0.0).view(np.uint64) if values.dtype == np.float64 else values.astype(np.int64).view(np.uint64)
    return bits if array.null_count == 0 else np.where(columns.valid(name), bits, _NULL)


def _numbers(values: Iterable[object]) -> Hashes:
    digests = (hashlib.blake2b(repr(value).encode(), digest_size=8).digest() for value in values)
    return np.frombuffer(b"".join(digests), np.uint64)


def _mixed(left: Hashes, right: Hashes) -> Hashes:
    """Return numbers for pairs: those of two that differ in one part alone are never equal."""
    product = (left ^ right) * _FACTOR
    return product ^ (product >> _SHIFT)
