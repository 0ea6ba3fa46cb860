"""Winners as text for other programs: ``json`` and ``csv``, which can be read back, and what kernels are given."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from autotune.errors import TableError, UnknownNameError, UsageError
from autotune.registry import get_implementation
from autotune.search_spaces.flash_attention.flex import IMPLEMENTATION as FLEX
from autotune.search_spaces.flash_attention.flex import kernel_options
from autotune.space import Config
from autotune.table.rows import microseconds_of, moment_of, to_columns, to_table
from autotune.table.schema import (
    OWNER_KEYS,
    SCHEMA_VERSION,
    VERSION_KEY,
    Column,
    TableSchema,
    known_schema,
    table_schema,
)
from autotune.trial import Timing, Trial

FORMS: Final = ("csv", "json", "triton", "kernel_options")
# Triton takes these beside the dictionary of a config; all others, AMD's included, are entries of it.
LAUNCH_OPTIONS: Final = ("num_warps", "num_stages", "num_ctas", "maxnreg")

Rows = Sequence[Mapping[str, Any]]


def export(trials: Sequence[Trial], form: str) -> str:
    """Return winners of one implementation as text: ``csv``, ``json``, ``triton`` or ``kernel_options``.

    ``csv`` and ``json`` have the columns of the tables; ``started_at`` is in ISO 8601. ``triton`` is Python source that
    needs only triton: ``CONFIGS``, one ``triton.Config`` for each distinct config, below a comment for each winner that
    has it; parameters that do not apply are left out. ``kernel_options`` is a JSON list of the winners of ``flex``,
    torch's FlexAttention: each has its ``shape``, ``device``, ``power_cap_watts`` and ``torch``, the medians
    ``median_us`` and ``default_us`` of one race, and the ``kernel_options`` to pass to torch's function of that name.

    Raises:
        UnknownNameError: no such form.
        UsageError: the trials are of several implementations, there is none, one has no time, or the form is not
            theirs.
        TableError: a trial holds an impossible value.
    """
    if form not in FORMS:
        raise UnknownNameError(f"form={form!r} is unknown; allowed: {', '.join(FORMS)}")
    owners = {(trial.operation, trial.implementation) for trial in trials}
    if len(owners) != 1:
        found = ", ".join(sorted(map("/".join, owners))) or "no trials"
        raise UsageError(f"an export is of one implementation, got {found}")
    if form == "triton":
        return _triton_source(trials)
    if form == "kernel_options":
        return _kernel_options_text(trials)
    schema = table_schema(get_implementation(*owners.pop()))
    columns = to_columns(schema, trials, "export")
    columns["started_at"] = [moment_of(microseconds).isoformat() for microseconds in columns["started_at"]]
    rows = list(zip(*columns.values(), strict=True))
    if form == "json":
        named = [dict(zip(columns, row, strict=True)) for row in rows]
        return json.dumps({**schema.metadata, "rows": named}, indent=2) + "\n"
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows([tuple(columns), *rows])
    return text.getvalue()


def read_json(text: str, where: str = "json") -> list[Trial]:
    """Read the trials that ``export(..., "json")`` wrote, in its order; ``where`` names the text in errors.

    Raises:
        TableError: the text is not such an export, or holds an impossible value.
    """
    try:
        document = json.loads(text)
        version, rows = document[VERSION_KEY], [dict(row) for row in document["rows"]]
        owner = tuple(document[key] for key in OWNER_KEYS) if version == SCHEMA_VERSION else ("", "")
        hash(tuple(value for row in rows for value in row.values()))  # a list or an object is no value
    except (ValueError, LookupError, TypeError) as error:
        raise TableError(f"{where}: not an export of autotune: {error}") from error
    if version != SCHEMA_VERSION:
        raise TableError(f"{where}: {VERSION_KEY}={version!r} cannot be read; expected {SCHEMA_VERSION!r}")
    return _read_rows(known_schema(str(owner[0]), str(owner[1]), where), rows, where)


def read_csv(text: str, where: str = "csv") -> list[Trial]:
    """Read the trials that ``export(..., "csv")`` wrote, in its order; ``where`` names the text in errors.

    Raises:
        TableError: the text is not such an export, or holds an impossible value.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise TableError(f"{where}: not an export of autotune: {error}") from error
    if not rows or not {"operation", "implementation"} <= rows[0].keys():
        raise TableError(f"{where}: not an export of autotune: no column 'operation' or 'implementation', or no row")
    schema = known_schema(rows[0]["operation"], rows[0]["implementation"], where)
    columns = {column.name: column for column in schema.columns}
    if not text.endswith("\n") or any(None in row.values() for row in rows):
        raise TableError(f"{where}: a line is cut")
    parsed = [
        {name: _parse(columns[name], cell) if name in columns else cell for name, cell in row.items()} for row in rows
    ]
    return _read_rows(schema, parsed, where)


def _read_rows(schema: TableSchema, rows: Rows, where: str) -> list[Trial]:
    expected = {column.name for column in schema.columns}
    required = {column.name for column in schema.columns if not column.optional}
    for number, row in enumerate(rows):
        if wrong := (row.keys() - expected) | (required - row.keys()):
            raise TableError(f"{where}: row {number}: unknown or missing columns: {', '.join(sorted(map(str, wrong)))}")
    columns = {column.name: [row.get(column.name) for row in rows] for column in schema.columns}
    columns["started_at"] = [_parse_moment(value) for value in columns["started_at"]]
    trials, outsiders = to_table(schema, columns, where)
    for outsider in outsiders:
        raise TableError(f"{where}: row {outsider.row}: {outsider.reason}")
    return trials


def _parse(column: Column, cell: str) -> object:
    """Return the value of a cell; what does not parse stays text, for the check of its column to refuse."""
    if cell == "" and column.nullable:
        return None
    if column.domain.type == pa.bool_():
        return {"True": True, "False": False}.get(cell, cell)
    number = {pa.int64(): int, pa.float64(): float}.get(column.domain.type, str)
    with suppress(ValueError):
        return number(cell)
    return cell


def _parse_moment(value: Any) -> object:
    with suppress(ValueError, TypeError):
        return microseconds_of(datetime.fromisoformat(value))
    return value


def _triton_source(trials: Sequence[Trial]) -> str:
    owner = _line(f"{trials[0].operation}/{trials[0].implementation}")
    title = f"# Winners of {owner}, written by `autotune export`: shape; device; median; source."
    lines = [title, "import triton", "", "CONFIGS = ["]
    for config in dict.fromkeys(trial.config for trial in trials):
        lines += [f"    # {_comment(trial)}" for trial in trials if trial.config == config]
        lines.append(f"    {_config_call(config)},")
    return "\n".join([*lines, "]", ""])


def _kernel_options_text(trials: Sequence[Trial]) -> str:
    found = f"{trials[0].operation}/{trials[0].implementation}"
    if found != FLEX.title:
        raise UsageError(f"form='kernel_options' is for {FLEX.title}, whose kernel is torch's; got {found}")
    winners = [
        {
            "shape": trial.shape.as_dict(),
            "device": trial.device.name,
            "power_cap_watts": trial.device.power_cap_watts,
            "torch": trial.toolchain.torch,
            "median_us": _timing(trial).median_us,
            "default_us": None if trial.default_timing is None else trial.default_timing.median_us,
            "kernel_options": kernel_options(trial.config),
        }
        for trial in trials
    ]
    return json.dumps(winners, indent=2) + "\n"


def _timing(trial: Trial) -> Timing:
    if trial.timing is None:
        raise UsageError(f"config={trial.config} has no time: only winners are exported as what kernels are given")
    return trial.timing


def _comment(trial: Trial) -> str:
    device = trial.device
    cap = "" if device.power_cap_watts is None else f" at {device.power_cap_watts} W"
    source = f"{trial.executor} race {trial.race_id} of {trial.started_at:%Y-%m-%d}, triton {trial.toolchain.triton}"
    median = f"{_timing(trial).median_us:.4g} us"
    return _line(f"{trial.shape}; {device.name}{cap}; {median}; {source}, source {trial.source_hash[:12]}")


def _config_call(config: Config) -> str:
    given = {name: value for name, value in config.items() if value is not None}
    options = "".join(f", {name}={given.pop(name)!r}" for name in LAUNCH_OPTIONS if name in given)
    return f"triton.Config({given!r}{options})"


def _line(text: str) -> str:
    """Make text of a table fit a comment: a line break in it would be code."""
    return "".join(char if char.isprintable() else "?" for char in text)
