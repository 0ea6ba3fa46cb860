"""The findings of the stability analysis, as a table and as plain data."""

import math
from typing import Any, Final

from autotune import sheets
from autotune.lab.stability.examination import CaseFinding, Stability
from autotune.sheets import Sheet

COLUMNS: Final = (
    *(sheets.text("case"), sheets.text("implementation"), sheets.number("NaN"), sheets.number("Inf")),
    *(sheets.number(name, ".3g") for name in ("error", "limit", "lowest", "highest")),
    sheets.text("verdict"),
)


def stability_sheet(stability: Stability) -> Sheet:
    """Return a row for each case and implementation that ran; the case is named once."""
    rows, last = [], ""
    for finding in stability.findings:
        rows.append(_row(finding, "" if finding.case == last else finding.case))
        last = finding.case
    notes = ["limit: twice the error of eager torch in the same dtype, plus two units in the last place"]
    if any(finding.limit == math.inf for finding in stability.findings):
        notes.append("finite: eager torch overflows there, so that its error limits nothing")
    return Sheet(f"{stability.operation}: {stability.shape}", COLUMNS, tuple(rows), tuple(notes))


def failure_lines(stability: Stability) -> list[str]:
    """Return a line for each failure of a kernel of ours."""
    return [f"autotune is wrong on {found.case!r}: {found.verdict}" for found in stability.failures]


def stability_data(stability: Stability) -> dict[str, Any]:
    """Return plain data for ``--json``; infinite errors and limits are null."""
    return {
        "operation": stability.operation,
        "shape": stability.shape.as_dict(),
        "is_stable": bool(stability.findings) and not stability.failures,
        "findings": [_finding_data(found) for found in stability.findings],
        "absent": dict(stability.absent),
    }


def _finding_data(found: CaseFinding) -> dict[str, Any]:
    names = ("case", "name", "nans", "infinities", "low", "high", "verdict")
    bounds = {"error": _finite(found.error), "error_limit": _finite(found.limit)}
    return {name: getattr(found, name) for name in names} | bounds


def _row(found: CaseFinding, case: str) -> tuple[object, ...]:
    limit = "none" if found.limit == math.inf else found.limit
    if found.error is None:
        return (case, found.name, None, None, None, limit, None, None, found.verdict)
    return (case, found.name, found.nans, found.infinities, found.error, limit, found.low, found.high, found.verdict)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
