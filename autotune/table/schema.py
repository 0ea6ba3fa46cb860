"""The columns of a table: their names, Arrow types and the values that each may hold."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from autotune.errors import TableError
from autotune.operation import Operation
from autotune.space import Parameter
from autotune.trial import Stage, Status

SCHEMA_VERSION: Final = "1"
VERSION_KEY: Final = "autotune.schema_version"
OPERATION_KEY: Final = "autotune.operation"
MAX_TEXT_LENGTH: Final = 4096  # characters of one string


class Domain(NamedTuple):
    """The Arrow type of a column, which Python values it may hold, and the same in words."""

    type: pa.DataType
    allows: Callable[[Any], object]
    words: str


def _integers(low: int) -> Domain:
    high = 2**63 - 1
    return Domain(pa.int64(), lambda value: type(value) is int and low <= value <= high, f"an integer from {low} up")


def _choice(*allowed: str) -> Domain:
    return Domain(pa.string(), lambda value: value in allowed, f"one of {', '.join(allowed)}")


def _is_number(value: object) -> bool:
    return isinstance(value, float | int) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH


COUNT: Final = _integers(0)
POSITIVE_COUNT: Final = _integers(1)
INTEGER: Final = _integers(-(2**63))
BOOLEAN: Final = Domain(pa.bool_(), lambda value: type(value) is bool, "true or false")
TEXT: Final = Domain(pa.string(), _is_text, f"a text of at most {MAX_TEXT_LENGTH} characters")
NAME: Final = Domain(pa.string(), lambda value: _is_text(value) and value != "", f"1 to {MAX_TEXT_LENGTH} characters")
# The name gives the folder, see ``Device.slug``.
DEVICE_NAME: Final = Domain(
    pa.string(), lambda value: _is_text(value) and re.search("[a-z0-9]", value.lower()), "a name with letters or digits"
)
DURATION: Final = Domain(
    pa.float64(), lambda value: _is_number(value) and 0 < value < math.inf, "a positive finite number"
)
AMOUNT: Final = Domain(
    pa.float64(), lambda value: _is_number(value) and 0 <= value < math.inf, "a finite number, 0 or more"
)
# A wrong result may deviate without bound.
DEVIATION: Final = Domain(pa.float64(), lambda value: _is_number(value) and value >= 0, "a number, 0 or more")
# Rows hold a moment as microseconds since 1970: what Arrow stores, and 100 times faster to read than its datetimes. The
# bound is the end of the year 9999, the last that Python's datetime knows.
MOMENT: Final = Domain(
    pa.timestamp("us", tz="UTC"),
    lambda value: type(value) is int and 0 <= value < 253_402_300_800_000_000,
    "a time with its zone, between the years 1970 and 9999",
)


class Column(NamedTuple):
    """A column of a table; ``optional`` ones may be absent from a file, and then read as null."""

    name: str
    domain: Domain
    nullable: bool = False
    optional: bool = False


def _timing(prefix: str) -> tuple[Column, ...]:
    durations = [Column(f"{prefix}{name}_us", DURATION, nullable=True) for name in ("median", "low", "high")]
    return (*durations, Column(f"{prefix}samples", POSITIVE_COUNT, nullable=True))


FIXED_COLUMNS: Final = (
    Column("operation", NAME),
    Column("source_hash", NAME),
    Column("status", _choice(*Status)),
    Column("message", TEXT),
    Column("stage", _choice(*Stage)),
    Column("race_id", TEXT),
    Column("is_default", BOOLEAN),
    *_timing(""),
    *_timing("default_"),
    Column("baseline", TEXT),
    *_timing("baseline_"),
    Column("error", DEVIATION, nullable=True),
    Column("error_limit", AMOUNT, nullable=True),
    Column("tflops", AMOUNT, nullable=True),
    Column("gbps", AMOUNT, nullable=True),
    Column("shared_bytes", COUNT, nullable=True),
    Column("registers", COUNT, nullable=True),
    Column("spill_bytes", COUNT, nullable=True),
    Column("binary", TEXT, nullable=True, optional=True),
    Column("compile_seconds", AMOUNT, nullable=True),
    Column("judge_seconds", AMOUNT, nullable=True, optional=True),
    Column("policy_mode", _choice("graph", "eager")),
    Column("policy_cache", _choice("cold", "warm")),
    Column("executor", _choice("gpu", "replay")),
    Column("device_name", DEVICE_NAME),
    Column("arch", NAME),
    Column("sm_count", POSITIVE_COUNT),
    Column("memory_mib", POSITIVE_COUNT),
    Column("power_cap_watts", COUNT, nullable=True),
    Column("sm_clock_mhz", COUNT, nullable=True),
    Column("memory_clock_mhz", COUNT, nullable=True),
    Column("temperature_c", COUNT, nullable=True),
    Column("throttle_reasons", TEXT),
    Column("contended", BOOLEAN),
    Column("tool_version", TEXT),
    Column("triton_version", TEXT),
    Column("ptxas_version", TEXT),
    Column("torch_version", TEXT),
    Column("cuda_version", TEXT),
    Column("driver_version", TEXT),
    Column("study", TEXT),
    Column("seed", COUNT),
    Column("number", COUNT),
    Column("worker", TEXT),
    Column("started_at", MOMENT),
)


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of one operation's table: the trial's own, then the shape's fields, then the config's parameters."""

    operation: str
    columns: tuple[Column, ...]

    @property
    def arrow(self) -> pa.Schema:
        """The columns as Arrow writes them."""
        return pa.schema([pa.field(column.name, column.domain.type, column.nullable) for column in self.columns])

    @property
    def metadata(self) -> dict[str, str]:
        """What the footer of a file says of it, and all that it may say."""
        return {VERSION_KEY: SCHEMA_VERSION, OPERATION_KEY: self.operation}


def bad_value(where: str, row: int, column: str, value: object, expected: str) -> TableError:
    """The error for an impossible value; rows count from 0."""
    return TableError(f"{where}: row {row}: {column}={value!r} is not allowed; expected {expected}")


def check_column(column: Column, values: Sequence[object], where: str) -> None:
    """Refuse a column that holds an impossible value.

    Raises:
        TableError: names ``where``, the first such row, the column, the value and what is allowed.
    """

    def allows(value: object) -> object:
        return column.nullable if value is None else column.domain.allows(value)

    if all(map(allows, set(values))):  # most columns hold few distinct values
        return
    row = next(row for row, value in enumerate(values) if not allows(value))
    raise bad_value(where, row, column.name, values[row], column.domain.words)


@lru_cache(maxsize=64)
def table_schema(operation: Operation[Any]) -> TableSchema:
    """The schema that an operation's shape class and space imply.

    Raises:
        TableError: the operation's name cannot name a file, two columns would have one name, or a field of the shape
            has a type that no column holds.
    """
    if not re.fullmatch("[A-Za-z0-9_][A-Za-z0-9._-]*", operation.name):
        raise TableError(f"operation={operation.name!r} cannot name a file; use letters, digits, '.', '_' and '-'")
    hints = get_type_hints(operation.shape_class)
    shape = [_field_column(operation, field.name, hints[field.name]) for field in fields(operation.shape_class)]
    config = [_parameter_column(parameter) for parameter in operation.space.parameters]
    columns = (*FIXED_COLUMNS, *shape, *config)
    names = [column.name for column in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TableError(f"operation={operation.name!r}: more than one column is named {', '.join(twice)}")
    return TableSchema(operation.name, columns)


def _field_column(operation: Operation[Any], name: str, hint: Any) -> Column:
    alternatives = set(get_args(hint)) if get_origin(hint) in (Union, UnionType) else {hint}
    nullable = NoneType in alternatives
    alternatives.discard(NoneType)
    kind = alternatives.pop()
    if alternatives or not (domain := _domain_of(kind)):
        raise TableError(f"operation={operation.name!r}: {name}: no column holds {hint}; use int, str or bool")
    return Column(name, domain, nullable)


def _domain_of(kind: Any) -> Domain | None:
    if get_origin(kind) is Literal and all(isinstance(value, str) for value in get_args(kind)):
        return _choice(*get_args(kind))
    return {int: INTEGER, str: TEXT, bool: BOOLEAN}.get(kind)


def _parameter_column(parameter: Parameter) -> Column:
    """Null where the parameter does not apply; optional, because it may be younger than the file."""
    stored = frozenset(stored_value(parameter, value) for value in parameter.values)
    domain = Domain(
        pa.int64() if parameter.is_ordered else pa.string(),
        lambda value: type(value) is not bool and value in stored,
        f"one of {', '.join(map(str, parameter.values))}",
    )
    return Column(parameter.name, domain, nullable=True, optional=True)


def stored_value(parameter: Parameter, value: int | str) -> int | str:
    """How a column holds a value of a parameter: as an integer where all its values are, otherwise as text."""
    return int(value) if parameter.is_ordered else str(value)
