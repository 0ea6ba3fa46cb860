"""Trials as columns of plain values and back: the field in each column, and the checks of what one row holds."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeVar

from autotune.device import Device
from autotune.errors import TableError
from autotune.redaction import redacted
from autotune.space import Config, Parameter
from autotune.table.membership import Columns, build_candidates, build_defaults, build_shapes, reasons_outside
from autotune.table.outsiders import Outsider, Table
from autotune.table.schema import (
    DEFAULT_PREFIX,
    FIXED_COLUMNS,
    MAX_TEXT_LENGTH,
    Stranger,
    TableColumn,
    TableSchema,
    bad_value,
    check_column,
    choice,
    stored_value,
)
from autotune.trial import Conditions, Outcome, Policy, Resources, Stage, Status, Timing, Toolchain, Trial

T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def _fields(kind: type[Any], prefix: str = "", suffix: str = "") -> dict[str, str]:
    """Return column -> field of the dataclass."""
    return {f"{prefix}{field.name}{suffix}": field.name for field in fields(kind)}


def _timing(median_us: float | None, low_us: float, high_us: float, samples: int) -> Timing | None:
    return None if median_us is None else Timing(median_us, low_us, high_us, samples)


# The field that stands in each column, for the dataclasses that make up a trial.
DEVICE: Final = {"device_name" if name == "name" else name: name for name in _fields(Device)}
TOOLCHAIN: Final = _fields(Toolchain, suffix="_version")
POLICY: Final = _fields(Policy, prefix="policy_")
CONDITIONS: Final = _fields(Conditions)
# Fields of the trial and of its outcome: what builds each and its columns, and those that are columns of the same name.
Parts = Mapping[str, tuple[Callable[..., Any], Mapping[str, str]]]
_TRIAL_PARTS: Final[Parts] = {
    "device": (Device, DEVICE),
    "toolchain": (Toolchain, TOOLCHAIN),
    "policy": (Policy, POLICY),
    "default_timing": (_timing, _fields(Timing, "default_")),
    "heuristic_timing": (_timing, _fields(Timing, "heuristic_")),
    "served_timing": (_timing, _fields(Timing, "served_")),
    "baseline_timing": (_timing, _fields(Timing, "baseline_")),
}
_OUTCOME_PARTS: Final[Parts] = {
    "timing": (_timing, _fields(Timing)),
    "resources": (Resources, _fields(Resources)),
    "conditions": (Conditions, CONDITIONS),
}
# The columns of each timing: its median, low and high, and the samples.
TIMINGS: Final = [names for build, names in (*_OUTCOME_PARTS.values(), *_TRIAL_PARTS.values()) if build is _timing]
_TRIAL: Final = (
    *("operation", "source_hash", "race_id", "is_default", "baseline", "tflops", "gbps"),
    *("served_rung", "is_served", "expected_regret", "evidence"),
    *("executor", "study", "seed", "number", "worker"),
)
_OUTCOME: Final = ("error", "error_limit", "compile_seconds", "judge_seconds")


def to_columns(schema: TableSchema, trials: Sequence[Trial], where: str) -> tuple[dict[str, list[Any]], list[Trial]]:
    """Return the columns of trials, and the trials that they are read back as, checked as reading would.

    A message too long for its column is cut.
    """
    parameters = schema.implementation.space.parameters
    names = {parameter.name for parameter in parameters}
    for number, trial in enumerate(trials):
        if type(trial.shape) is not schema.shape_class:
            raise bad_value(where, number, "shape", trial.shape, f"a {schema.shape_class.__name__}")
        if trial.config.keys() != names:
            raise bad_value(where, number, "config", trial.config, f"the parameters {', '.join(sorted(names))}")
    rows = [to_row(parameters, trial) for trial in trials]
    columns = {column.name: [row[column.name] for row in rows] for column in schema.columns}
    written, outsiders = to_table(schema, columns, where)
    for outsider in outsiders:
        raise TableError(f"{where}: row {outsider.row}: {outsider.reason}")
    for number, (trial, back) in enumerate(zip(trials, written, strict=True)):
        if back.config != trial.config:  # the text of a number, say
            raise bad_value(where, number, "config", trial.config, str(back.config))
        if back.default_config != trial.default_config:
            raise bad_value(where, number, "default_config", trial.default_config, "a config of the space")
    return columns, written


def to_row(parameters: Sequence[Parameter], trial: Trial) -> dict[str, Any]:
    outcome, moment = trial.outcome, trial.started_at
    message = (
        redacted(outcome.message).encode("utf-8", "replace").decode()
    )  # compilers write any length, and not always UTF-8
    row: dict[str, Any] = {
        "implementation": trial.implementation,
        "status": str(outcome.status),
        "message": message if len(message) <= MAX_TEXT_LENGTH else message[: MAX_TEXT_LENGTH - 1] + "…",
        "stage": str(trial.stage),
        # One without its zone stays as it is, for its column to refuse.
        "started_at": moment if moment.tzinfo is None else (moment - _EPOCH) // _MICROSECOND,
    }
    for owner, names, parts in ((trial, _TRIAL, _TRIAL_PARTS), (outcome, _OUTCOME, _OUTCOME_PARTS)):
        row |= {name: getattr(owner, name) for name in names}
        for part, (_, columns) in parts.items():
            row |= {name: getattr(getattr(owner, part), field, None) for name, field in columns.items()}
    default = {} if trial.default_config is None else config_columns(parameters, trial.default_config)
    row |= {f"{DEFAULT_PREFIX}{each.name}": default.get(each.name) for each in parameters}
    return row | trial.shape.as_dict() | config_columns(parameters, trial.config)


def config_columns(parameters: Sequence[Parameter], config: Config) -> dict[str, Any]:
    """Return the values of a config as their columns hold them; one of no parameter's values stays as it is."""
    return {
        each.name: stored_value(each, value) if (value := config[each.name]) in each.values else value
        for each in parameters
    }


def moment_of(microseconds: int) -> datetime:
    """Return the moment, in UTC, of so many microseconds since 1970."""
    return _EPOCH + microseconds * _MICROSECOND


def to_table(schema: TableSchema | Stranger, columns: Columns, where: str) -> Table:
    """Build the trials and the outsiders of columns, in row order.

    Columns may be missing where rows of the space can do without, and there may be others than the schema's.

    Raises:
        TableError: a value is impossible; the message names ``where``, the row (from 0), the column and the value.
    """
    check_rows(schema, columns, where)
    trials, outcomes = (
        {part: build_parts(build, names, columns) for part, (build, names) in parts.items()}
        for parts in (_TRIAL_PARTS, _OUTCOME_PARTS)
    )
    devices, found = trials["device"], []
    if isinstance(schema, Stranger):
        reasons: Sequence[str | None] = [schema.reason] * len(devices)
    else:
        shapes, candidates = build_shapes(schema, columns, len(devices)), build_candidates(schema, columns, devices)
        reasons = reasons_outside(schema, columns, shapes, candidates)
        statuses, stages = (_members(kind, columns[name]) for kind, name in ((Status, "status"), (Stage, "stage")))
        outcomes |= {"candidate": candidates, "status": statuses, "message": columns["message"]}
        outcomes |= {name: columns[name] for name in _OUTCOME}
        trials |= {"shape": shapes, "stage": stages, "started_at": list(map(moment_of, columns["started_at"]))}
        trials |= {name: columns[name] for name in _TRIAL} | {"outcome": _rows(Outcome, outcomes, len(devices))}
        trials["default_config"] = build_defaults(schema, columns, devices)
        rows = _rows(Trial, trials, len(devices))
        found = [trial for trial, reason in zip(rows, reasons, strict=True) if reason is None]
    outsiders = [
        Outsider(where, row, *schema.owner, devices[row], reason, {name: columns[name][row] for name in columns})
        for row, reason in enumerate(reasons)
        if reason is not None
    ]
    return Table(found, outsiders)


def check_rows(schema: TableSchema | Stranger, columns: Columns, where: str) -> None:
    """Refuse columns with a value that no row of a table has, or none beside the others; of ``to_table``'s errors."""
    for column in FIXED_COLUMNS:
        check_column(column, columns[column.name], where)
    for name, expected in zip(("operation", "implementation"), schema.owner, strict=True):
        check_column(TableColumn(name, choice(expected)), columns[name], where)
    _check_results(columns, where)
    for names in TIMINGS:
        _check_timings(names, columns, where)


def _rows(kind: type[T], values: Mapping[str, Sequence[Any]], count: int) -> list[T]:
    """Build objects with slots column by column, which is faster than a constructor of so many fields.

    A field without a column, and a column that is none, are refused as the constructor would; it has nothing to check.
    """
    if values.keys() != _fields(kind).keys():
        raise TypeError(f"{kind.__name__} has other fields than {', '.join(values)}")
    rows = [object.__new__(kind) for _ in range(count)]
    for name, column in values.items():
        if len(column) != count:
            raise ValueError(f"{kind.__name__}.{name} has {len(column)} values for {count} rows")
        deque(map(getattr(kind, name).__set__, rows, column), maxlen=0)  # runs the map to its end
    return rows


def _members(kind: type[StrEnum], values: Sequence[str]) -> list[Any]:
    members = {str(each): each for each in kind}
    return [members[value] for value in values]


def build_parts(build: Callable[..., Any], fields_of: Mapping[str, str], columns: Columns) -> Sequence[Any]:
    """Build a part of each row from its columns, once for equal values: most rows repeat most parts."""
    names = tuple(fields_of.values())
    built = cache(lambda *values: build(**dict(zip(names, values, strict=True))))
    return list(map(built, *[columns[name] for name in fields_of]))


def _check_timings(names: Mapping[str, str], columns: Columns, where: str) -> None:
    """Refuse a row that has a part of a timing alone, or a median outside of its interval."""
    for row, values in enumerate(zip(*[columns[name] for name in names], strict=True)):
        median, low, high, samples = values
        if values != (None,) * 4 and (None in values or not low <= median <= high):
            expected = f"a median from low, {low}, to high, {high}, with the samples, {samples}"
            raise bad_value(where, row, next(iter(names)), median, expected)


def _check_results(columns: Columns, where: str) -> None:
    """Refuse a row whose verdict cannot stand beside its numbers."""
    names = ("status", "median_us", "error", "error_limit", "baseline", "baseline_median_us")
    for row, values in enumerate(zip(*[columns[name] for name in names], strict=True)):
        status, median, error, limit, baseline, baseline_median = values
        if baseline_median is not None and not baseline:
            raise bad_value(where, row, "baseline", baseline, "the name of what baseline_median_us measured")
        if status == Status.OK:
            if median is None:
                raise bad_value(where, row, "median_us", median, "a time, because the status is ok")
            if error is not None and (error == math.inf or (limit is not None and error > limit)):
                expected = f"at most the limit, {limit}, because the status is ok"
                raise bad_value(where, row, "error", error, expected)
