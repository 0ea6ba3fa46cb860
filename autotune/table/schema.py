"""The columns of a table: their names, Arrow types and the values that each may hold; others raise ``TableError``."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from string import ascii_letters, digits
from types import NoneType, UnionType
from typing import Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import pyarrow as pa

from autotune.device import slug_of
from autotune.errors import TableError, UnknownNameError
from autotune.implementation import Implementation
from autotune.operation import Operation
from autotune.registry import get_implementation, get_operation
from autotune.shape import Shape
from autotune.space import Parameter
from autotune.trial import Stage, Status

SCHEMA_VERSION: Final = "2"
VERSION_KEY: Final = "autotune.schema_version"
OPERATION_KEY: Final = "autotune.operation"
IMPLEMENTATION_KEY: Final = "autotune.implementation"
OWNER_KEYS: Final = (OPERATION_KEY, IMPLEMENTATION_KEY)
DEFAULT_PREFIX: Final = "default_"
MAX_TEXT_LENGTH: Final = 4096  # characters of one string
FILE_LETTERS: Final = f"{ascii_letters}{digits}._-"
SCHEMAS: Final = 64  # that are kept; more are made anew


class Domain(NamedTuple):
    """The Arrow type of a column, the Python values that it may hold, and the same in words."""

    type: pa.DataType
    allows: Callable[[Any], object]
    words: str


def _integers(low: int) -> Domain:
    high = 2**63 - 1
    return Domain(pa.int64(), lambda value: type(value) is int and low <= value <= high, f"an integer from {low} up")


def choice(*allowed: str) -> Domain:
    return Domain(pa.string(), lambda value: value in allowed, f"one of {', '.join(allowed)}")


def _numbers(allows: Callable[[float], bool], words: str) -> Domain:
    return Domain(
        pa.float64(), lambda value: type(value) is not bool and isinstance(value, float | int) and allows(value), words
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT_LENGTH


COUNT: Final = _integers(0)
POSITIVE_COUNT: Final = _integers(1)
INTEGER: Final = _integers(-(2**63))
BOOLEAN: Final = Domain(pa.bool_(), lambda value: type(value) is bool, "true or false")
TEXT: Final = Domain(pa.string(), _is_text, f"a text of at most {MAX_TEXT_LENGTH} characters")
NAME: Final = Domain(pa.string(), lambda value: _is_text(value) and value != "", f"1 to {MAX_TEXT_LENGTH} characters")
DEVICE_NAME: Final = Domain(  # which gives the folder, see ``Device.slug``
    pa.string(), lambda value: _is_text(value) and slug_of(value), "a name with letters or digits"
)
DURATION: Final = _numbers(lambda value: 0 < value < math.inf, "a positive finite number")
AMOUNT: Final = _numbers(lambda value: 0 <= value < math.inf, "a finite number, 0 or more")
REAL: Final = _numbers(math.isfinite, "a finite number")
DEVIATION: Final = _numbers(lambda value: value >= 0, "a number, 0 or more")  # without bound for a wrong result
# Rows hold a moment as microseconds since 1970: what Arrow stores, and 100 times faster to read than its datetimes. The
# bound is the end of the year 9999, the last that Python's datetime knows.
MOMENT: Final = Domain(
    pa.timestamp("us", tz="UTC"),
    lambda value: type(value) is int and 0 <= value < 253_402_300_800_000_000,
    "a time with its zone, between the years 1970 and 9999",
)


class TableColumn(NamedTuple):
    """A column of a table; ``optional`` ones may be absent from a file, and then read as null."""

    name: str
    domain: Domain
    nullable: bool = False
    optional: bool = False


def _columns(domain: Domain, *names: str, nullable: bool = False) -> tuple[TableColumn, ...]:
    return tuple(TableColumn(name, domain, nullable) for name in names)


def _timing(prefix: str, *, optional: bool = False) -> tuple[TableColumn, ...]:
    names = (f"{prefix}{name}_us" for name in ("median", "low", "high"))
    durations = (TableColumn(name, DURATION, nullable=True, optional=optional) for name in names)
    return (*durations, TableColumn(f"{prefix}samples", POSITIVE_COUNT, nullable=True, optional=optional))


FIXED_COLUMNS: Final = (
    *_columns(NAME, "operation", "implementation", "source_hash"),
    TableColumn("status", choice(*Status)),
    TableColumn("message", TEXT),
    TableColumn("stage", choice(*Stage)),
    TableColumn("race_id", TEXT),
    TableColumn("is_default", BOOLEAN),
    *_timing(""),
    *_timing("default_"),
    TableColumn("baseline", TEXT),
    *_timing("baseline_"),
    *_timing("heuristic_", optional=True),
    *_timing("served_", optional=True),
    TableColumn("served_rung", choice("exact", "nearest", "same model", "default"), nullable=True, optional=True),
    TableColumn("is_served", BOOLEAN, nullable=True, optional=True),
    TableColumn("expected_regret", AMOUNT, nullable=True, optional=True),
    TableColumn("evidence", COUNT, nullable=True, optional=True),
    TableColumn("error", DEVIATION, nullable=True),
    *_columns(AMOUNT, "error_limit", "tflops", "gbps", nullable=True),
    *_columns(COUNT, "shared_bytes", "registers", "spill_bytes", nullable=True),
    TableColumn("binary", TEXT, nullable=True, optional=True),
    TableColumn("compile_seconds", AMOUNT, nullable=True),
    TableColumn("judge_seconds", AMOUNT, nullable=True, optional=True),
    TableColumn("policy_mode", choice("graph", "eager")),
    TableColumn("policy_cache", choice("cold", "warm")),
    TableColumn("executor", choice("gpu", "replay")),
    TableColumn("device_name", DEVICE_NAME),
    TableColumn("arch", NAME),
    *_columns(POSITIVE_COUNT, "sm_count", "memory_mib"),
    *_columns(COUNT, "power_cap_watts", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", nullable=True),
    TableColumn("throttle_reasons", TEXT),
    TableColumn("contended", BOOLEAN),
    *_columns(TEXT, *(f"{name}_version" for name in ("tool", "triton", "ptxas", "torch", "cuda", "driver")), "study"),
    *_columns(COUNT, "seed", "number"),
    TableColumn("worker", TEXT),
    TableColumn("started_at", MOMENT),
)


@dataclass(frozen=True, eq=False)
class TableSchema:
    """The columns of an implementation's table: the trial's own, the shape's fields, the parameters, and once more the
    parameters as the default of the race had them, each after ``DEFAULT_PREFIX``."""

    implementation: Implementation[Any]
    shape_class: type[Shape]
    shape: tuple[TableColumn, ...]
    config: tuple[TableColumn, ...]

    @property
    def owner(self) -> tuple[str, str]:
        """The names of the operation and the implementation."""
        return (self.implementation.operation, self.implementation.name)

    @cached_property
    def columns(self) -> tuple[TableColumn, ...]:
        return (*FIXED_COLUMNS, *self.shape, *self.config, *self.default_config)

    @cached_property
    def default_config(self) -> tuple[TableColumn, ...]:
        """The columns of the config that was the default; null in rows that do not name it."""
        return tuple(column._replace(name=f"{DEFAULT_PREFIX}{column.name}") for column in self.config)

    @cached_property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(column.name, column.domain.type, column.nullable) for column in self.columns])

    @property
    def metadata(self) -> dict[str, str]:
        """Return the metadata of a file's footer, and all that it may hold."""
        return {VERSION_KEY: SCHEMA_VERSION, **dict(zip(OWNER_KEYS, self.owner, strict=True))}

    @property
    def fingerprint(self) -> str:
        """Digest of what decides which rows are of the space, and so which ones win."""
        space = self.implementation.space
        grown = [sorted(each.items()) for each in (space.removed, self.shape_class.ABSENT, self.shape_class.REMOVED)]
        said = repr((space.parameters, self.shape_class.__name__, grown, self.arrow))
        return hashlib.sha256(said.encode()).hexdigest()[:16]


class Stranger(NamedTuple):
    """An operation and implementation that are not registered here, and so have no schema."""

    owner: tuple[str, str]
    reason: str


def bad_value(where: str, row: int, column: str, value: object, expected: str) -> TableError:
    """Return the error for an impossible value; rows count from 0."""
    return TableError(f"{where}: row {row}: {column}={value!r} is not allowed; expected {expected}")


def allows(column: TableColumn, value: object) -> object:
    """Return something true where the column may hold the value."""
    return column.nullable if value is None else column.domain.allows(value)


def check_column(column: TableColumn, values: Sequence[object], where: str) -> None:
    """Refuse a column that holds an impossible value."""
    distinct = set(values)  # mostly few
    if column.nullable:
        distinct.discard(None)
    if all(map(column.domain.allows, distinct)):
        return
    row = next(row for row, value in enumerate(values) if not allows(column, value))
    raise bad_value(where, row, column.name, values[row], column.domain.words)


def table_schema(implementation: Implementation[Any]) -> TableSchema:
    """Return the schema that the operation's shape class and the implementation's space imply.

    Raises:
        TableError: a name cannot name a file, two columns would have one name, or a field of the shape has a type that
            no column holds.
    """
    for kind, name in (("operation", implementation.operation), ("implementation", implementation.name)):
        if not name or name[0] in ".-" or name.strip(FILE_LETTERS):
            raise TableError(f"{kind}={name!r} cannot name a file; use letters, digits, '.', '_' and '-'")
    return _schema_of(implementation, get_operation(implementation.operation))


@lru_cache(maxsize=SCHEMAS)
def _schema_of(implementation: Implementation[Any], operation: Operation[Any]) -> TableSchema:
    shape = shape_columns(operation.shape_class)
    config = tuple(  # null where a parameter does not apply; older files may have more values than listed
        TableColumn(parameter.name, INTEGER if parameter.is_ordered else TEXT, nullable=True, optional=True)
        for parameter in implementation.space.parameters
    )
    schema = TableSchema(implementation, operation.shape_class, shape, config)
    names = [column.name for column in schema.columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        expected = (
            "expected names of shape fields and parameters that differ from each other and from a trial's columns"
        )
        raise TableError(f"{implementation.title}: more than one column is named {', '.join(twice)}; {expected}")
    return schema


def schema_named(operation: str, implementation: str) -> TableSchema | Stranger:
    """Return the schema of a registered implementation, or why there is none."""
    try:
        return table_schema(get_implementation(operation, implementation))
    except UnknownNameError as error:
        return Stranger((operation, implementation), str(error))


def shape_columns(shape_class: type[Shape]) -> tuple[TableColumn, ...]:
    hints = get_type_hints(shape_class)
    return tuple(_field_column(shape_class, field.name, hints[field.name]) for field in fields(shape_class))


def _field_column(shape_class: type[Shape], name: str, hint: Any) -> TableColumn:
    kinds = list(get_args(hint) if get_origin(hint) in (Union, UnionType) else [hint])
    if nullable := NoneType in kinds:
        kinds.remove(NoneType)
    values = get_args(kinds[0]) if get_origin(kinds[0]) is Literal else ()
    domain = {int: INTEGER, str: TEXT, bool: BOOLEAN, float: REAL}.get(kinds[0])
    if values and all(isinstance(value, str) for value in values):
        domain = choice(*values)
    if len(kinds) > 1 or domain is None:
        raise TableError(f"{shape_class.__name__}.{name}: no column holds {hint}; use int, float, str or bool")
    return TableColumn(name, domain, nullable)


def stored_value(parameter: Parameter, value: int | str) -> int | str:
    """Return a value as its column holds it: an integer where all values of the parameter are, otherwise text."""
    return int(value) if parameter.is_ordered else str(value)
