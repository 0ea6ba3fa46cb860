"""Comparisons as Parquet: a row for each system and shape, typed columns; written once, read by anything."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from autotune.errors import TableError
from autotune.registry import get_implementation, get_operation
from autotune.space import Parameter
from autotune.table.files import write_bytes
from autotune.table.parquet import to_parquet
from autotune.table.rows import CONDITIONS, DEVICE, POLICY, TOOLCHAIN
from autotune.table.schema import FIXED_COLUMNS, shape_columns, stored_value, table_schema

VERSION: Final = "2"
VERSION_KEY: Final = "autotune.comparison_version"  # in the footer of a file, as a table of trials has its own
# Device, conditions, time, policy and versions, as in a table of trials.
_MEASURED: Final = (*DEVICE, *CONDITIONS, "started_at", *POLICY, *TOOLCHAIN)
_TEXT, _NUMBER, _COUNT, _FLAG = pa.string(), pa.float64(), pa.int64(), pa.bool_()
_COLUMNS: Final = {
    "name": _TEXT,
    **{f"{name}_us": _NUMBER for name in ("median", "low", "high")},
    "samples": _COUNT,
    **dict.fromkeys(("ratio", "ratio_low", "ratio_high", "tflops", "gbps", "error", "error_limit"), _NUMBER),
    "extra_bytes": _COUNT,
    "message": _TEXT,
    "verified_on_hardware": _FLAG,
}


def write_comparisons(path: Path, comparisons: Sequence[Mapping[str, Any]]) -> None:
    """Write the results of ``lab.bench.comparison.comparison_data``, compressed, in place of the file.

    Columns are the ``table`` of a suite that a race belongs to (null where there is no suite), those of the problem, of
    where, when and under which conditions it ran, of the system and its time, then the parameters of the
    implementations that occur: null in the rows of other systems. So are columns of another operation's shape, and what
    identifies a GPU and is its state, where the race was on a processor, and torch's ``threads``, where it was on a
    GPU. All but these, the table and a system's own have the names and types that they have in a table of trials.

    A row with a ``config`` names the ``implementation`` that it is of; it is null for other systems.

    Raises:
        TableError: a value does not fit its column, two columns would have one name, or the file cannot be written.
    """
    rows = [row for comparison in comparisons for row in _rows(comparison)]
    try:
        table = pa.Table.from_pylist(rows, schema=_schema(comparisons))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TableError(f"{path}: {error}") from error
    write_bytes(path, to_parquet(table, {VERSION_KEY: VERSION}))


def holds_comparisons(data: bytes) -> bool:
    """Return True if ``write_comparisons`` wrote the bytes of a file, by its footer; False for damaged ones."""
    try:
        footer = pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowException, OSError, ValueError):
        return False
    return VERSION_KEY.encode() in (footer.metadata or {})


def _schema(comparisons: Sequence[Mapping[str, Any]]) -> pa.Schema:
    fixed = {column.name: column.domain.type for column in FIXED_COLUMNS}
    measured = {name: fixed[name] for name in _MEASURED}
    shapes: dict[str, pa.DataType] = {}
    parameters: dict[str, pa.DataType] = {}
    operations = sorted({comparison["operation"] for comparison in comparisons})
    owners = {(each["operation"], row.get("implementation")) for each in comparisons for row in each["rows"]}
    schemas = [table_schema(get_implementation(*owner)) for owner in sorted(owner for owner in owners if owner[1])]
    typed = [
        *((shapes, name, shape_columns(get_operation(name).shape_class)) for name in operations),
        *((parameters, schema.implementation.title, schema.config) for schema in schemas),
    ]
    for found, owner, columns in typed:
        for name, domain, *_ in columns:
            if found.setdefault(name, domain.type) != domain.type:
                raise TableError(f"{owner}: {name} is {domain.type}, and {found[name]} before")
    names_of = dict.fromkeys(("table", "operation", "implementation"), _TEXT)
    where = {**names_of, **measured, "threads": _COUNT, "reason": _TEXT}
    all_columns = [*where.items(), *shapes.items(), *_COLUMNS.items(), *parameters.items()]
    names = [name for name, _ in all_columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TableError(f"more than one column of the comparison is named {', '.join(twice)}")
    return pa.schema(all_columns)


def _rows(comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    started_at = comparison["started_at"]
    parts = (
        (DEVICE, comparison["gpu"] or {"name": comparison["device"]}),
        (CONDITIONS, comparison["conditions"] or {}),
        (POLICY, comparison["policy"]),
        (TOOLCHAIN, comparison["toolchain"]),
    )
    common = {
        **{name: comparison.get(name) for name in ("table", "operation", "threads", "reason")},
        **{name: part.get(field) for columns, part in parts for name, field in columns.items()},
        "started_at": None if started_at is None else datetime.fromisoformat(started_at),
        **comparison["shape"],
    }
    return [{**common, **_system(comparison["operation"], row)} for row in comparison["rows"]]


def _system(operation: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a system as columns; what is no value of its parameter stays, for its column to refuse."""
    ratio, name = row["ratio"] or {}, row.get("implementation")
    parameters: Sequence[Parameter] = get_implementation(operation, name).space.parameters if name else ()
    values = {parameter: (row["config"] or {}).get(parameter.name) for parameter in parameters}
    return {
        **{column: row[column] for column in _COLUMNS if column in row},
        **(row["timing"] or {}),
        "ratio": ratio.get("value"),
        "ratio_low": ratio.get("low"),
        "ratio_high": ratio.get("high"),
        "implementation": name,
        **{
            parameter.name: stored_value(parameter, value) if value in parameter.values else value
            for parameter, value in values.items()
        },
    }
