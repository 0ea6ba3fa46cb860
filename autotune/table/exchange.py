"""Trials as a plain document that JSON holds, and back, with nothing lost and every value checked."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from autotune.errors import TableError, UsageError
from autotune.registry import get_implementation
from autotune.table.outsiders import Table
from autotune.table.rows import moment_of, to_columns, to_table
from autotune.table.schema import FIXED_COLUMNS, OWNER_KEYS, Stranger, schema_named, table_schema
from autotune.trial import Trial

KEY: Final = "autotune"  # of the document in the metadata of a T4 one
MAX_ROWS: Final = 100_000
MAX_VALUES: Final = 1_000_000  # that the bytes of a document can hold, before it is parsed: each may take 90 bytes
EXPECTED: Final = "expected what `autotune export --format json` or t4 wrote"
INFINITE: Final = "Infinity"  # which JSON has no number for: the error of a wrong result
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SCALARS: Final = (int, float, str, bool, type(None))


def require_one(trials: Sequence[Trial]) -> tuple[str, str]:
    """Return the operation and the implementation that trials are of; UsageError for none or several."""
    owners = {(trial.operation, trial.implementation) for trial in trials}
    if len(owners) != 1:
        found = ", ".join(sorted(map("/".join, owners))) or "no trials"
        raise UsageError(f"an export is of one implementation, got {found}")
    return owners.pop()


def to_document(trials: Sequence[Trial]) -> dict[str, Any]:
    """Return trials of one implementation as plain data: the metadata of a table, and ``rows`` with all its columns.

    ``started_at`` is in ISO 8601, in UTC; an infinite error is the text ``"Infinity"``.

    Raises:
        UsageError: the trials are of several implementations, or there is none.
        TableError: a trial holds an impossible value.
    """
    schema = table_schema(get_implementation(*require_one(trials)))
    columns, _ = to_columns(schema, trials, "export")
    columns["started_at"] = [moment_of(microseconds).isoformat() for microseconds in columns["started_at"]]
    columns["error"] = [INFINITE if value == math.inf else value for value in columns["error"]]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {**schema.metadata, "rows": rows}


def from_json(data: bytes, where: str) -> Table:
    """Read what was exported as JSON, or as T4: every row is as it was, and checked like one of a table.

    Raises:
        TableError: the bytes are no such document, have more than ``MAX_VALUES`` values or ``MAX_ROWS`` rows, or hold
            an impossible value; the message begins with ``where``.
    """
    if (values := sum(map(data.count, (b",", b"{", b"[")))) > MAX_VALUES:
        raise TableError(f"{where}: not JSON of ours: up to {values} values are not allowed; expected {MAX_VALUES}")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError, MemoryError) as error:
        raise TableError(f"{where}: is not a table of this format: not JSON; {EXPECTED}") from error
    if isinstance(found, dict) and isinstance(found.get("metadata"), dict):
        found = found["metadata"].get(KEY)
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        raise TableError(f"{where}: is not a table of this format: no trials there; {EXPECTED}")
    return from_document(found, where)


def from_document(document: Mapping[str, Any], where: str) -> Table:
    """Read a document of ``to_document``; rows that are not of today's space are outsiders."""
    owner = [document.get(key) for key in OWNER_KEYS]
    if not all(isinstance(name, str) for name in owner):
        raise TableError(f"{where}: names no {' and '.join(OWNER_KEYS)}")
    schema = schema_named(*map(str, owner))
    if isinstance(schema, Stranger):
        raise TableError(f"{where}: {schema.reason}")
    if (said := {name: value for name, value in document.items() if name != "rows"}) != schema.metadata:
        raise TableError(
            f"{where}: its metadata are {sorted(said.items())}, expected {sorted(schema.metadata.items())}"
        )
    columns = _columns(document["rows"], where)
    return to_table(schema, columns, where)


def _columns(rows: Sequence[Any], where: str) -> dict[str, list[Any]]:
    if not 0 < len(rows) <= MAX_ROWS:
        raise TableError(f"{where}: {len(rows)} rows are not allowed; expected 1 to {MAX_ROWS}")
    first = rows[0].keys() if isinstance(rows[0], dict) else set()
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or row.keys() != first:
            raise TableError(f"{where}: row {number} does not have the columns of row 0")
        for name, value in row.items():
            if not name.isidentifier() or not isinstance(value, _SCALARS):
                raise TableError(f"{where}: row {number}: {name!r} is {type(value).__name__}, which no column holds")
    if missing := {column.name for column in FIXED_COLUMNS if not column.optional} - first:
        raise TableError(f"{where}: missing columns: {', '.join(sorted(missing))}")
    columns = {name: [row[name] for row in rows] for name in first}
    columns["started_at"] = [_microseconds(value, number, where) for number, value in enumerate(columns["started_at"])]
    columns["error"] = [math.inf if value == INFINITE else value for value in columns["error"]]
    absent = {column.name: [None] * len(rows) for column in FIXED_COLUMNS if column.optional}
    return absent | columns


def _microseconds(value: Any, number: int, where: str) -> int:
    try:
        moment = datetime.fromisoformat(value)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    except (TypeError, ValueError) as error:
        raise TableError(f"{where}: row {number}: started_at={value!r} is no time with its zone") from error
