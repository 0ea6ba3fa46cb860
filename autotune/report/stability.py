"""How numbers fared, as a table and as plain data."""

import math
from typing import Any

from autotune.analysis.sheets import Sheet
from autotune.analysis.stability import Finding, Stability

COLUMNS = ("case", "implementation", "NaN", "Inf", "error", "limit", "lowest", "highest", "verdict")


def stability_sheet(stability: Stability) -> Sheet:
    """A row for each case and implementation that ran; the case is named once."""
    rows, last = [], ""
    for finding in stability.findings:
        rows.append(_row(finding, "" if finding.case == last else finding.case))
        last = finding.case
    notes = ["limit: twice the error of eager torch in the same dtype, plus two units in the last place"]
    if any(finding.limit == math.inf for finding in stability.findings):
        notes.append("finite: eager torch overflows there, so that its error limits nothing")
    return Sheet(f"{stability.operation}: {stability.shape}", COLUMNS, tuple(rows), tuple(notes))


def failure_lines(stability: Stability) -> list[str]:
    """What of ours is wrong, a line each."""
    return [f"autotune is wrong on {found.case!r}: {found.verdict}" for found in stability.failures]


def stability_data(stability: Stability) -> dict[str, Any]:
    """Plain data for ``--json``; infinite errors and limits are null."""
    return {
        "operation": stability.operation,
        "shape": stability.shape.as_dict(),
        "is_stable": bool(stability.findings) and not stability.failures,
        "findings": [
            {
                "case": found.case,
                "name": found.name,
                "nans": found.nans,
                "infinities": found.infinities,
                "error": _finite(found.error),
                "error_limit": _finite(found.limit),
                "low": found.low,
                "high": found.high,
                "verdict": found.verdict,
            }
            for found in stability.findings
        ],
        "absent": dict(stability.absent),
    }


def _row(found: Finding, case: str) -> tuple[str, ...]:
    if found.error is None:
        return (case, found.name, "", "", "", _number(found.limit), "", "", found.verdict)
    numbers = (_number(value) for value in (found.error, found.limit, found.low, found.high))
    return (case, found.name, str(found.nans), str(found.infinities), *numbers, found.verdict)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return "none" if value == math.inf else f"{value:.3g}"


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
