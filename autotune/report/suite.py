"""A suite in words: its tables as text, Markdown, and plain data."""

from dataclasses import asdict
from typing import Any, Final

from autotune.comparison.suites import SuiteResult, Table
from autotune.comparison.suites.suite import Kind, Value
from autotune.report.comparison import comparison_data, disturbances, place
from autotune.report.markdown import table_lines
from autotune.report.summary import describe_time
from autotune.trial import Timing

UNITS: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def headers(table: Table) -> tuple[str, ...]:
    """The titles of the columns."""
    return tuple(column.title for column in table.columns)


def is_text(table: Table) -> tuple[bool, ...]:
    """Of each column, whether it is text, which reads best from the left."""
    return tuple(column.kind == "text" for column in table.columns)


def cells(table: Table) -> list[tuple[str, ...]]:
    """The rows as text; what was not measured is empty."""
    kinds = [column.kind for column in table.columns]
    return [tuple(_cell(value, kind) for value, kind in zip(row, kinds, strict=True)) for row in table.rows]


def notes(table: Table) -> list[str]:
    """What follows the table: failures first, then what disturbed which race."""
    failed = [f"FAILED: {failure}" for failure in table.failures]
    disturbed = [f"{each.shape}: {text}" for each in table.comparisons for text in disturbances(each)]
    return [*failed, *disturbed, *table.notes]


def heading(result: SuiteResult) -> str:
    """The suite, where it ran, and how times were taken."""
    if result.policy is None:
        return f"{result.suite} on {result.device}: nothing was measured here"
    how = "a CUDA graph's replay" if result.policy.mode == "graph" else "runs from Python"
    caches = "warm caches" if result.policy.cache == "warm" else "cold caches"
    return f"{result.suite} on {place(result.device, result.threads)}: {how}, {caches}"


def markdown(result: SuiteResult) -> str:
    """Markdown with a section for each table."""
    parts = [f"## {heading(result)}\n\n{result.description}\n"]
    for table in result.tables:
        lines = [f"### {table.title}", "", *table_lines(headers(table), cells(table), is_text=is_text(table))]
        lines += ["", *(f"- {note}" for note in notes(table))]
        parts.append("\n".join(lines).rstrip() + "\n")
    return "\n".join(parts)


def suite_data(result: SuiteResult) -> dict[str, Any]:
    """Plain data for ``--json``: times in microseconds, memory in bytes, rows by the titles of their columns."""
    return {
        "suite": result.suite,
        "description": result.description,
        "device": result.device,
        "threads": result.threads,
        "toolchain": asdict(result.toolchain),
        "policy": None if result.policy is None else asdict(result.policy),
        "tables": [_table_data(table) for table in result.tables],
        "comparisons": [comparison_data(comparison) for comparison in result.comparisons],
        "failures": list(result.failures),
    }


def _table_data(table: Table) -> dict[str, Any]:
    titles = headers(table)
    return {
        "title": table.title,
        "columns": [asdict(column) for column in table.columns],
        "rows": [dict(zip(titles, map(_plain, row), strict=True)) for row in table.rows],
        "notes": list(table.notes),
        "failures": list(table.failures),
    }


def _plain(value: Value) -> Any:
    return asdict(value) if isinstance(value, Timing) else value


def _cell(value: Value, kind: Kind) -> str:
    if value is None:
        return ""
    if isinstance(value, Timing):
        return describe_time(value)
    if isinstance(value, str):
        return value
    return _number(value, kind)


def _number(value: float, kind: Kind) -> str:
    if kind == "time":
        return f"{value / 1000.0:.3f} ms" if value >= 1000.0 else f"{value:.1f} us"
    if kind == "bytes":
        return _bytes(int(value))
    if kind == "error":
        return f"{value:.1e}"
    forms: dict[Kind, str] = {"ratio": "{:.2f}x", "share": "{:.1%}", "rate": "{:,.0f}", "intensity": "{:.1f}"}
    return forms.get(kind, "{}").format(value)


def _bytes(value: int) -> str:
    sign, size = ("-", -value) if value < 0 else ("", value)
    for unit, scale in UNITS:
        if size >= scale:
            return f"{sign}{size / scale:.1f} {unit}"
    return f"{sign}{size} B"
