"""The rows of today's space: their shapes and configs, and for each other row the reason why it is not."""

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import repeat
from typing import Any

from autotune.device import Device
from autotune.errors import UsageError
from autotune.shape import Shape, values_getter
from autotune.space import Config
from autotune.table.schema import DEFAULT_PREFIX, TableSchema, allows, stored_value
from autotune.trial import Candidate

Columns = Mapping[str, Sequence[Any]]


def build_shapes(schema: TableSchema, columns: Columns, count: int) -> list[Shape | str]:
    """Build the shape of each row, or say why it is none of today's."""
    absent = schema.shape_class.ABSENT
    missing = [column.name for column in schema.shape if column.name not in columns and column.name not in absent]
    if missing:
        return [f"it has no {', '.join(missing)}, and no value is declared for older rows"] * count

    names = tuple(column.name for column in schema.shape)
    read = values_getter(names)
    given = [columns.get(name) or [absent.get(name)] * count for name in names]
    refused = [
        {value for value in set(values) if not allows(column, value)}
        for column, values in zip(schema.shape, given, strict=True)
    ]
    any_refused = any(refused)

    def build(*values: Any) -> Shape | str:
        if any_refused:
            for column, value, bad in zip(schema.shape, values, refused, strict=True):
                if value in bad:
                    return _not_allowed(column.name, value, column.domain.words)
        try:
            shape = _construct(schema.shape_class, names, values)
        except UsageError as error:
            return str(error)
        if (kept := read(shape)) != values:  # an alias, which would give one shape two keys
            where = next(place for place, value in enumerate(values) if value != kept[place])
            return f"{names[where]}={values[where]!r} is {kept[where]!r} in such a shape"
        return shape

    return list(map(cache(build), *given))


def _construct(shape_class: type[Shape], names: Sequence[str], values: Sequence[object]) -> Shape:
    """Construct a shape from the values of all its fields, in half the time that its constructor takes for keywords."""
    shape = object.__new__(shape_class)
    deque(map(object.__setattr__, repeat(shape), names, values), maxlen=0)  # runs the map to its end
    shape.__post_init__()
    return shape


def build_candidates(schema: TableSchema, columns: Columns, devices: Sequence[Device]) -> list[Candidate | str]:
    """Build the candidate of each row, or say why its config is not of the space."""
    name = schema.implementation.name
    return [
        config if isinstance(config, str) else Candidate(name, config)
        for config in _build_configs(schema, columns, devices)
    ]


def build_defaults(schema: TableSchema, columns: Columns, devices: Sequence[Device]) -> list[Config | None]:
    """Build the default that each row names; None for one that names none, or none that is of the space."""
    names = [column.name for column in schema.default_config if column.name in columns]
    is_named = [any(value is not None for value in row) for row in zip(*(columns[name] for name in names), strict=True)]
    if not any(is_named):
        return [None] * len(devices)
    found = _build_configs(schema, columns, devices, prefix=DEFAULT_PREFIX)
    return [
        config if named and isinstance(config, Config) else None for named, config in zip(is_named, found, strict=True)
    ]


def _build_configs(
    schema: TableSchema, columns: Columns, devices: Sequence[Device], prefix: str = ""
) -> list[Config | str]:
    """Build the config in the columns of that prefix, or say why it is not of the space."""
    parameters = schema.implementation.space.parameters
    # A column of integers becomes one of texts when a parameter gets a value that is none.
    declared = {
        parameter.name: {
            form: value for value in parameter.values for form in (stored_value(parameter, value), str(value))
        }
        for parameter in parameters
    }

    def build(device: Device, *stored: Any) -> Config | str:
        chosen: dict[str, Any] = {}
        for parameter, value in zip(parameters, stored, strict=True):
            try:
                choices = parameter.choices(device, chosen)
            except UsageError as error:  # the device's architecture
                return str(error)
            found = declared[parameter.name].get(value, value)
            if value is None and choices != (None,):
                if parameter.absent is None:
                    return f"it has no {parameter.name}, and no value is declared for older rows"
                found = parameter.absent
            if found not in choices:
                return f"{parameter.name}={value!r} is not one of {choices}"
            chosen[parameter.name] = found
        return Config(chosen)

    nothing = [None] * len(devices)
    stored = [columns.get(f"{prefix}{parameter.name}", nothing) for parameter in parameters]
    return list(map(cache(build), devices, *stored))


def reasons_outside(schema: TableSchema, columns: Columns, *parts: Sequence[object]) -> list[str | None]:
    """Say for each row why it is not of the space, by its parts and the columns that are no longer in the schema."""
    reasons = [next((part for part in row if isinstance(part, str)), None) for row in zip(*parts, strict=True)]
    removed = {**schema.implementation.space.removed, **schema.shape_class.REMOVED}
    gone = columns.keys() - {column.name for column in schema.columns}
    for name in sorted(name for name in gone if not name.startswith(DEFAULT_PREFIX)):  # the default is no key
        value_now = removed.get(name)
        allowed = {None, value_now, None if value_now is None else str(value_now)}
        for row, value in enumerate(columns[name]):
            if value not in allowed:
                reasons[row] = reasons[row] or f"{name}={value!r} is of a parameter or field that is gone"
    return reasons


def _not_allowed(name: str, value: object, expected: str) -> str:
    return f"{name}={value!r} is not allowed; expected {expected}"
