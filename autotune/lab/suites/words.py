"""A suite's result for people, and as plain data."""

from dataclasses import asdict
from typing import Any

from autotune.lab.bench.comparison import comparison_data, disturbances, place
from autotune.lab.suites.suite import SuiteResult, SuiteSheet
from autotune.sheets import Sheet, markdown, sheet_data


def whole_sheet(found: SuiteSheet) -> Sheet:
    """The sheet with everything that is said below it: failures first, then what disturbed which race."""
    failed = [f"FAILED: {failure}" for failure in found.failures]
    disturbed = [f"{each.shape}: {text}" for each in found.comparisons for text in disturbances(each.conditions)]
    return Sheet(found.title, found.columns, found.rows, (*failed, *disturbed, *found.notes))


def heading(result: SuiteResult) -> str:
    """Name the suite, where it ran, and how times were taken."""
    if result.policy is None:
        return f"{result.suite} on {result.device}: nothing was measured here"
    how = "a CUDA graph's replay" if result.policy.mode == "graph" else "runs from Python"
    caches = "warm caches" if result.policy.cache == "warm" else "cold caches"
    return f"{result.suite} on {place(result.device, result.threads)}: {how}, {caches}"


def suite_markdown(result: SuiteResult) -> str:
    """Write Markdown with a section for each sheet."""
    parts = [f"## {heading(result)}\n\n{result.description}\n"]
    return "\n".join([*parts, *(markdown(whole_sheet(sheet), level=3) for sheet in result.sheets)])


def suite_data(result: SuiteResult) -> dict[str, Any]:
    """Return plain data for JSON: times in microseconds, memory in bytes; a comparison names its ``table``."""
    return {
        "suite": result.suite,
        "description": result.description,
        "device": result.device,
        "threads": result.threads,
        "toolchain": asdict(result.toolchain),
        "policy": None if result.policy is None else asdict(result.policy),
        "tables": [{**sheet_data(sheet), "failures": list(sheet.failures)} for sheet in result.sheets],
        "comparisons": [
            {**comparison_data(comparison), "table": sheet.title}
            for sheet in result.sheets
            for comparison in sheet.comparisons
        ],
        "failures": list(result.failures),
    }
