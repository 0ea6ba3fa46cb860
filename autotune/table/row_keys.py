"""Keys of rows: a number for each row of columns, equal where the trials are, without an object for any of them.

A merge of a million rows knows each by its key, in a tenth of the memory that the trials take. Two rows have one key by
chance only if they began in the same microsecond and have one number, and then once in 2**64.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import repeat
from typing import Any, Final, NamedTuple

from autotune.device import Device
from autotune.table.membership import build_candidates, build_defaults, build_shapes, reasons_outside
from autotune.table.rows import DEVICE, build_parts, check_rows, to_row
from autotune.table.schema import FIXED_COLUMNS, TableSchema
from autotune.trial import Trial

_BITS: Final = 64
_MASK: Final = 2**_BITS - 1
# What a key has as trials compare it: devices of one model are equal though their memory differs a little.
_TOLD: Final = {*DEVICE, "started_at", "number"}


class Keyed(NamedTuple):
    """The keys and devices of rows; ``outside`` says that some are not of today's space, and then there are none."""

    keys: list[int]
    devices: Sequence[Device]
    outside: bool = False


def keys_of_columns(schema: TableSchema, columns: Mapping[str, Sequence[Any]], where: str) -> Keyed:
    """Return the keys of columns that have all of today's.

    Raises:
        TableError: a value is impossible, as ``to_table`` says.
    """
    check_rows(schema, columns, where)
    devices = build_parts(Device, DEVICE, columns)
    shapes, candidates = build_shapes(schema, columns, len(devices)), build_candidates(schema, columns, devices)
    if any(reasons_outside(schema, columns, shapes, candidates)):
        return Keyed([], devices, outside=True)
    parts: list[Iterable[int]] = [
        map(cache(_number), shapes),
        map(cache(_number), candidates),
        map(cache(_number), build_defaults(schema, columns, devices)),
        map(cache(lambda device: _number((device.model, device.power_cap_watts))), devices),
    ]
    parts += [_column(columns[column.name]) for column in FIXED_COLUMNS if column.name not in _TOLD]
    firsts = map(hash, zip(*parts, strict=True))
    seconds = map(hash, zip(columns["started_at"], columns["number"], strict=True))
    keys = [(first & _MASK) << _BITS | second & _MASK for first, second in zip(firsts, seconds, strict=True)]
    return Keyed(keys, devices)


def keys_of_trials(schema: TableSchema, trials: Sequence[Trial]) -> list[int]:
    """Return the keys that trials of one implementation have as rows."""
    parameters = schema.implementation.space.parameters
    rows = [to_row(parameters, trial) for trial in trials]
    columns = {column.name: [row[column.name] for row in rows] for column in schema.columns}
    return keys_of_columns(schema, columns, schema.implementation.title).keys


def _column(values: Sequence[Any]) -> Iterable[int]:
    """Return numbers for values that are the same in every process, which hashes of texts and of None are not."""
    distinct = set(values)
    if all(type(value) in (int, float, bool) for value in distinct):
        return values  # hashed as numbers
    numbers = {value: value if type(value) in (int, float, bool) else _number(value) for value in distinct}
    return map(numbers.__getitem__, values) if len(numbers) > 1 else repeat(numbers[values[0]], len(values))


def _number(value: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=8).digest())
