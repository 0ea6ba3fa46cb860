"""Trials as columns of plain values and back: which field of which dataclass stands in which column."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, Generic, TypeVar

from autotune.device import Device
from autotune.errors import InvalidShapeError, TableError, UsageError
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.table.schema import MAX_TEXT_LENGTH, bad_value, check_column, stored_value, table_schema
from autotune.trial import Conditions, Outcome, Policy, Resources, Stage, Status, Timing, Toolchain, Trial

Row = Mapping[str, Any]
T = TypeVar("T")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def _fields(kind: type[Any], prefix: str = "", suffix: str = "") -> dict[str, str]:
    """Column -> field of the dataclass."""
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


def to_columns(operation: Operation[Any], trials: Sequence[Trial], where: str) -> dict[str, list[Any]]:
    """The columns of trials, checked as reading would; a message too long for its column is cut.

    Raises:
        TableError: a trial is not one of the operation, or holds a value that reading would refuse.
    """
    names = {parameter.name for parameter in operation.space.parameters}
    for number, trial in enumerate(trials):
        if type(trial.shape) is not operation.shape_class:
            raise bad_value(where, number, "shape", trial.shape, f"a {operation.shape_class.__name__}")
        if trial.config.keys() != names:
            raise bad_value(where, number, "config", trial.config, f"the parameters {', '.join(sorted(names))}")
    rows = [to_row(operation, trial) for trial in trials]
    columns = {column.name: [row[column.name] for row in rows] for column in table_schema(operation).columns}
    to_trials(operation, columns, where)
    return columns


def to_trials(operation: Operation[Any], columns: Mapping[str, Sequence[Any]], where: str) -> list[Trial]:
    """The trials in the columns of the operation's schema, in row order.

    Raises:
        TableError: a value is impossible; the message names ``where``, the row (from 0), the column and the value.
    """
    for column in table_schema(operation).columns:
        check_column(column, columns[column.name], where)
    build = _TrialBuilder(operation)
    trials = []
    for number, values in enumerate(zip(*columns.values(), strict=True)):
        row = dict(zip(columns, values, strict=True))
        try:
            trial = build(row)
        except UsageError as error:
            raise TableError(f"{where}: row {number}: {error}") from error
        if impossible := _impossible(operation, row, trial):
            name, expected = impossible
            raise bad_value(where, number, name, row[name], expected)
        trials.append(trial)
    return trials


def to_row(operation: Operation[Any], trial: Trial) -> dict[str, Any]:
    """The columns of one trial, by name."""
    outcome = trial.outcome
    row: dict[str, Any] = {
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
    for parameter in operation.space.parameters:
        value = trial.config[parameter.name]
        row[parameter.name] = stored_value(parameter, value) if value in parameter.values else value
    return row


def microseconds_of(moment: datetime) -> int | datetime:
    """Microseconds since 1970; a moment without its zone stays as it is, for the check of its column to refuse."""
    return moment if moment.tzinfo is None else (moment - _EPOCH) // _MICROSECOND


def moment_of(microseconds: int) -> datetime:
    """The moment, in UTC, of so many microseconds since 1970."""
    return _EPOCH + microseconds * _MICROSECOND


def _storable(message: str) -> str:
    """Compilers write messages of any length, and not always in UTF-8."""
    text = message.encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_TEXT_LENGTH else text[: MAX_TEXT_LENGTH - 1] + "…"


class _Part(Generic[T]):
    """Builds a value from the columns that it stands in, once for equal columns: most rows repeat most parts."""

    def __init__(self, build: Callable[..., T], columns: Mapping[str, str]) -> None:
        self._columns = tuple(columns)
        self._build = cache(lambda *values: build(**dict(zip(columns.values(), values, strict=True))))

    def __call__(self, row: Row) -> T:
        return self._build(*[row[name] for name in self._columns])


class _TrialBuilder:
    """Builds the trials of one table."""

    def __init__(self, operation: Operation[Any]) -> None:
        parameters = operation.space.parameters
        self._shape_class = operation.shape_class
        self._values = {
            parameter.name: {stored_value(parameter, value): value for value in parameter.values}
            for parameter in parameters
        }
        self._shape = _Part(self._build_shape, _fields(operation.shape_class))
        self._config = _Part(self._build_config, {parameter.name: parameter.name for parameter in parameters})
        self._device = _Part(Device, DEVICE)
        self._toolchain = _Part(Toolchain, TOOLCHAIN)
        self._policy = _Part(Policy, POLICY)
        self._resources = _Part(Resources, RESOURCES)
        self._conditions = _Part(Conditions, CONDITIONS)

    def __call__(self, row: Row) -> Trial:
        outcome = Outcome(
            config=self._config(row),
            status=Status(row["status"]),
            message=row["message"],
            timing=_timing(row, TIMING),
            resources=self._resources(row),
            conditions=self._conditions(row),
            **{name: row[name] for name in OUTCOME},
        )
        return Trial(
            shape=self._shape(row),
            device=self._device(row),
            toolchain=self._toolchain(row),
            policy=self._policy(row),
            started_at=moment_of(row["started_at"]),
            stage=Stage(row["stage"]),
            outcome=outcome,
            default_timing=_timing(row, DEFAULT_TIMING),
            baseline_timing=_timing(row, BASELINE_TIMING),
            **{name: row[name] for name in TRIAL},
        )

    def _build_shape(self, **values: int | str | bool | None) -> Shape:
        shape: Shape = self._shape_class(**values)
        for name, value in shape.as_dict().items():
            if value != values[name]:  # an alias, which would give one shape two keys
                raise InvalidShapeError(f"{name}={values[name]!r} is not allowed; expected {value!r}")
        return shape

    def _build_config(self, **stored: int | str | None) -> Config:
        return Config({name: None if value is None else self._values[name][value] for name, value in stored.items()})


def _timing(row: Row, columns: Mapping[str, str]) -> Timing | None:
    values = [row[name] for name in columns]
    return Timing(*values) if any(value is not None for value in values) else None


def _impossible(operation: Operation[Any], row: Row, trial: Trial) -> tuple[str, str] | None:
    """The column whose value cannot stand beside the others of its row, and what could."""
    if trial.operation != operation.name:
        return "operation", operation.name
    for columns in (TIMING, DEFAULT_TIMING, BASELINE_TIMING):
        median, low, high, samples = (row[name] for name in columns)
        given = [value is not None for value in (median, low, high, samples)]
        if any(given) and not (all(given) and low <= median <= high):
            return next(iter(columns)), f"a median from low, {low}, to high, {high}, with the samples, {samples}"
    if trial.baseline_timing is not None and not trial.baseline:
        return "baseline", "the name of what baseline_median_us measured"
    if trial.status is Status.OK:
        error, limit = trial.outcome.error, trial.outcome.error_limit
        if trial.timing is None:
            return "median_us", "a time, because the status is ok"
        if error is not None and (error == math.inf or (limit is not None and error > limit)):
            return "error", f"at most the limit, {limit}, because the status is ok"
    for parameter in operation.space.parameters:
        if row[parameter.name] is not None and parameter.backend not in (None, trial.device.backend):
            return parameter.name, f"null, because {trial.device.arch} is not a {parameter.backend} device"
    return None
