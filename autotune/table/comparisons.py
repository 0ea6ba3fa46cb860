"""Comparisons as Parquet: one row a system and problem, typed columns; written once, read by anything."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from autotune.errors import TableError
from autotune.operation import Operation
from autotune.registry import get_operation
from autotune.table.files import write_bytes
from autotune.table.rows import CONDITIONS, DEVICE, POLICY, TOOLCHAIN
from autotune.table.schema import FIXED_COLUMNS, stored_value, table_schema

VERSION: Final = "1"
VERSION_KEY: Final = "autotune.comparison_version"  # in the footer of a file, as a table of trials has its own
# Where, when and how, as a table of trials has it.
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
    """Write what ``report.comparison.comparison_data`` made of comparisons, zstd-compressed, in place of the file.

    Columns are the ``table`` of a suite that a race belongs to (null where there is no suite), those of the problem, of
    where, when and under which conditions it ran, of the system and its time, then the parameters of kernels of ours:
    null in the rows of other systems. So are columns of another operation's shape, and what identifies a GPU and is its
    state, where the race was on a processor, and torch's ``threads``, where it was on a GPU. All but these, the table
    and a system's own have the names and types that they have in a table of trials.

    Raises:
        TableError: a value does not fit its column, two columns would have one name, or the file cannot be written.
    """
    rows = [row for comparison in comparisons for row in _rows(comparison)]
    try:
        table = pa.Table.from_pylist(rows, schema=_schema({comparison["operation"] for comparison in comparisons}))
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise TableError(f"{path}: {error}") from error
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, table.schema, compression="zstd", write_page_checksum=True, store_schema=False
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({VERSION_KEY: VERSION})
    write_bytes(path, sink.getvalue().to_pybytes())


def holds_comparisons(data: bytes) -> bool:
    """Whether the bytes of a file are what ``write_comparisons`` writes, by its footer; False for damaged ones."""
    try:
        footer = pq.read_metadata(pa.BufferReader(data))
    except (pa.ArrowException, OSError, ValueError):
        return False
    return VERSION_KEY.encode() in (footer.metadata or {})


def _schema(operations: Iterable[str]) -> pa.Schema:
    fixed = {column.name: column.domain.type for column in FIXED_COLUMNS}
    measured = {name: fixed[name] for name in _MEASURED}
    shapes: dict[str, pa.DataType] = {}
    parameters: dict[str, pa.DataType] = {}
    for operation in map(get_operation, sorted(operations)):
        types = {column.name: column.domain.type for column in table_schema(operation).columns}
        for found, names in (
            (shapes, [field.name for field in fields(operation.shape_class)]),
            (parameters, [parameter.name for parameter in operation.space.parameters]),
        ):
            for name in names:
                if found.setdefault(name, types[name]) != types[name]:
                    raise TableError(f"operation={operation.name!r}: {name} is {types[name]}, and {found[name]} before")
    where = {"table": _TEXT, "operation": _TEXT, **measured, "threads": _COUNT, "reason": _TEXT}
    columns = [*where.items(), *shapes.items(), *_COLUMNS.items(), *parameters.items()]
    names = [name for name, _ in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise TableError(f"more than one column of the comparison is named {', '.join(twice)}")
    return pa.schema(columns)


def _rows(comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    operation = get_operation(comparison["operation"])
    started_at = comparison["started_at"]
    parts = (
        (DEVICE, comparison["gpu"] or {"name": comparison["device"]}),
        (CONDITIONS, comparison["conditions"] or {}),
        (POLICY, comparison["policy"]),
        (TOOLCHAIN, comparison["toolchain"]),
    )
    common = {
        "table": comparison.get("table"),
        "operation": operation.name,
        "threads": comparison["threads"],
        "reason": comparison["reason"],
        **{name: part.get(field) for columns, part in parts for name, field in columns.items()},
        "started_at": None if started_at is None else datetime.fromisoformat(started_at),
        **comparison["shape"],
    }
    rows = []
    for row in comparison["rows"]:
        timing, ratio = row["timing"] or {}, row["ratio"] or {}
        rows.append(
            {
                **common,
                **{name: row[name] for name in _COLUMNS if name in row and name != "ratio"},
                **timing,
                "ratio": ratio.get("value"),
                "ratio_low": ratio.get("low"),
                "ratio_high": ratio.get("high"),
                **_parameters(operation, row["config"] or {}),
            }
        )
    return rows


def _parameters(operation: Operation[Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as the columns that hold it; what is no value of its parameter stays, for its column to refuse."""
    found = {parameter: config.get(parameter.name) for parameter in operation.space.parameters}
    return {
        parameter.name: stored_value(parameter, value) if value in parameter.values else value
        for parameter, value in found.items()
    }
