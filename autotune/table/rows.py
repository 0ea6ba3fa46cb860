"""Trials as columns of plain values and back: which field of which dataclass stands in which column."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import compress
from typing import Any, Final, TypeVar

from autotune.device import Device
from autotune.errors import TableError
from autotune.space import Parameter
from autotune.table.membership import Columns, build_candidates, build_shapes, reasons_outside
from autotune.table.outsiders import Outsider, Table
from autotune.table.schema import (
    FIXED_COLUMNS,
    MAX_TEXT_LENGTH,
    Column,
    Stranger,
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
_STATUSES: Final = {str(status): status for status in Status}
_STAGES: Final = {str(stage): stage for stage in Stage}


def _fields(kind: type[Any], prefix: str = "", suffix: str = "") -> dict[str, str]:
    """Return column -> field of the dataclass."""
    return {f"{prefix}{field.name}{suffix}": field.name for field in fields(kind)}


# Which field stands in which column, for the dataclasses that make up a trial.
DEVICE: Final = {"device_name" if name == "name" else name: name for name in _fields(Device)}
TOOLCHAIN: Final = _fields(Toolchain, suffix="_version")
POLICY: Final = _fields(Policy, prefix="policy_")
RESOURCES: Final = _fields(Resources)
CONDITIONS: Final = _fields(Conditions)
TIMING, DEFAULT_TIMING, BASELINE_TIMING = (_fields(Timing, prefix) for prefix in ("", "default_", "baseline_"))
# Fields of the trial and of its outcome that are columns of the same name.
TRIAL: Final = (
    *("operation", "source_hash", "race_id", "is_default", "baseline", "tflops", "gbps"),
    *("executor", "study", "seed", "number", "worker"),
)
OUTCOME: Final = ("error", "error_limit", "compile_seconds", "judge_seconds")


def to_columns(schema: TableSchema, trials: Sequence[Trial], where: str) -> dict[str, list[Any]]:
    """Return the columns of trials, checked as reading would; a message too long for its column is cut.

    Raises:
        TableError: a trial is not one of the implementation, or holds a value that reading would refuse.
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
    return columns


def to_row(parameters: Sequence[Parameter], trial: Trial) -> dict[str, Any]:
    """Return the columns of one trial, by name."""
    outcome = trial.outcome
    row: dict[str, Any] = {
        "implementation": trial.implementation,
        "status": str(outcome.status),
        "message": _storable(outcome.message),
        "stage": str(trial.stage),
        "started_at": microseconds_of(trial.started_at),
    }
    row |= {name: getattr(trial, name) for name in TRIAL}
    row |= {name: getattr(outcome, name) for name in OUTCOME}
    for columns, part in (
        (DEVICE, trial.device),
        (TOOLCHAIN, trial.toolchain),
        (POLICY, trial.policy),
        (RESOURCES, outcome.resources),
        (CONDITIONS, outcome.conditions),
        (TIMING, trial.timing),
        (DEFAULT_TIMING, trial.default_timing),
        (BASELINE_TIMING, trial.baseline_timing),
    ):
        row |= {name: None if part is None else getattr(part, field) for name, field in columns.items()}
    row |= trial.shape.as_dict()
    for parameter in parameters:
        value = trial.config[parameter.name]
        row[parameter.name] = stored_value(parameter, value) if value in parameter.values else value
    return row


def microseconds_of(moment: datetime) -> int | datetime:
    """Return microseconds since 1970; one without its zone stays as it is, for its column to refuse."""
    return moment if moment.tzinfo is None else (moment - _EPOCH) // _MICROSECOND


def moment_of(microseconds: int) -> datetime:
    """Return the moment, in UTC, of so many microseconds since 1970."""
    return _EPOCH + microseconds * _MICROSECOND


def _storable(message: str) -> str:
    """Cut and repair a message: compilers write them of any length, and not always in UTF-8."""
    text = message.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"


def to_table(schema: TableSchema | Stranger, columns: Columns, where: str) -> Table:
    """Build the trials and the outsiders of columns, in row order.

    Columns may be missing where rows of the space can do without, and there may be others than the schema's.

    Raises:
        TableError: a value is impossible; the message names ``where``, the row (from 0), the column and the value.
    """
    for column in FIXED_COLUMNS:
        check_column(column, columns[column.name], where)
    for name, expected in zip(("operation", "implementation"), schema.owner, strict=True):
        check_column(Column(name, choice(expected)), columns[name], where)
    _check_results(columns, where)
    devices = _parts(Device, DEVICE, columns)
    timings, default_timings, baseline_timings = (
        _timings(names, columns, where) for names in (TIMING, DEFAULT_TIMING, BASELINE_TIMING)
    )
    if isinstance(schema, Stranger):
        return Table([], _outsiders(schema, columns, devices, [schema.reason] * len(devices), where))
    shapes, candidates = build_shapes(schema, columns, len(devices)), build_candidates(schema, columns, devices)
    reasons = reasons_outside(schema, columns, shapes, candidates)
    outcomes: dict[str, Sequence[Any]] = {
        "candidate": candidates,
        "status": list(map(_STATUSES.__getitem__, columns["status"])),
        "message": columns["message"],
        "timing": timings,
        "resources": _parts(Resources, RESOURCES, columns),
        "conditions": _parts(Conditions, CONDITIONS, columns),
        **{name: columns[name] for name in OUTCOME},
    }
    trials: dict[str, Sequence[Any]] = {
        "shape": shapes,
        "device": devices,
        "toolchain": _parts(Toolchain, TOOLCHAIN, columns),
        "policy": _parts(Policy, POLICY, columns),
        "started_at": list(map(moment_of, columns["started_at"])),
        "stage": list(map(_STAGES.__getitem__, columns["stage"])),
        "default_timing": default_timings,
        "baseline_timing": baseline_timings,
        **{name: columns[name] for name in TRIAL},
    }
    inside = [reason is None for reason in reasons]
    found = _rows(Trial, {**trials, "outcome": _rows(Outcome, outcomes)}, inside)
    return Table(found, _outsiders(schema, columns, devices, reasons, where))


def _rows(kind: Callable[..., T], values: Mapping[str, Sequence[Any]], inside: Sequence[bool] = ()) -> list[T]:
    """Build a value of each row, or of those inside."""
    rows = zip(*values.values(), strict=True)
    names = tuple(values)
    return [kind(**dict(zip(names, row, strict=True))) for row in (compress(rows, inside) if inside else rows)]


def _outsiders(
    schema: TableSchema | Stranger,
    columns: Columns,
    devices: Sequence[Device],
    reasons: Sequence[str | None],
    where: str,
) -> list[Outsider]:
    return [
        Outsider(where, row, *schema.owner, devices[row], reason, {name: columns[name][row] for name in columns})
        for row, reason in enumerate(reasons)
        if reason is not None
    ]


def _parts(build: Callable[..., T], fields_of: Mapping[str, str], columns: Columns) -> list[T]:
    """Build a part of each row from its columns, once for equal values: most rows repeat most parts."""
    names = tuple(fields_of.values())
    built = cache(lambda *values: build(**dict(zip(names, values, strict=True))))
    return list(map(built, *[columns[name] for name in fields_of]))


def _timings(names: Mapping[str, str], columns: Columns, where: str) -> list[Timing | None]:
    found: list[Timing | None] = []
    for row, values in enumerate(zip(*[columns[name] for name in names], strict=True)):
        median, low, high, samples = values
        if median is low is high is samples is None:
            found.append(None)
        elif None in values or not low <= median <= high:
            expected = f"a median from low, {low}, to high, {high}, with the samples, {samples}"
            raise bad_value(where, row, next(iter(names)), median, expected)
        else:
            found.append(Timing(median, low, high, samples))
    return found


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
