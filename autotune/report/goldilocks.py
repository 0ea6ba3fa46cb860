"""An exploration as tables and as plain data."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from autotune.analysis.goldilocks import IMPLEMENTATION, OBJECTIVES, PRECISION, Exploration, PointResult
from autotune.analysis.sheets import Sheet
from autotune.report.summary import describe_time

MIB: Final = 2**20
COLUMNS: Final = ("implementation", "precision", "time (95 %)", "memory", "of it beside K and V", "error", "parameters")


def exploration_sheets(found: Exploration) -> list[Sheet]:
    """The front, everything else that was measured, the hypervolume, and what the objectives depend on."""
    front = {measured.point for measured in found.front}
    rest = [each for each in found.measured if each.point not in front and each.objectives is not None]
    notes = [
        f"{len(found.measured)} of {found.size} valid points measured; {len(found.front)} on the front",
        *_volume_lines(found),
        *(f"failed: {each.point}: {each.message}" for each in found.measured if each.objectives is None),
    ]
    title = f"{found.operation}: {found.shape} on {found.device}"
    sheets = [Sheet(f"{title}: Pareto front of time, memory and error", COLUMNS, _rows(found.front), tuple(notes))]
    if rest:
        ordered = sorted(rest, key=lambda each: each.objectives or ())
        sheets.append(Sheet("beaten in all three by a point of the front", COLUMNS, _rows(ordered)))
    return [*sheets, _sensitivity_sheet(found)]


def exploration_data(found: Exploration) -> dict[str, Any]:
    """Plain data for ``--json``."""
    front = {measured.point for measured in found.front}
    return {
        "operation": found.operation,
        "shape": found.shape.as_dict(),
        "device": found.device,
        "axes": {parameter.name: list(parameter.values) for parameter in found.parameters},
        "valid_points": found.size,
        "points": [_data(each) | {"is_on_front": each.point in front} for each in found.measured],
        "hypervolume": {
            "decades": found.volume,
            "reference": dict(zip(("time_us", "memory_bytes", "error"), found.reference, strict=False)),
        },
        "sensitivities": [asdict(each) for each in found.sensitivities],
        "missing": list(found.missing),
        "absent": dict(found.absent),
    }


def _rows(measured: Sequence[PointResult]) -> tuple[tuple[str, ...], ...]:
    return tuple(map(_row, measured))


def _row(found: PointResult) -> tuple[str, ...]:
    assert found.timing is not None
    assert found.extra_bytes is not None
    own = " ".join(
        f"{name}={value}" for name, value in found.point.items() if name not in (IMPLEMENTATION, PRECISION) and value
    )
    return (
        str(found.point[IMPLEMENTATION]),
        str(found.point[PRECISION]),
        describe_time(found.timing),
        f"{(found.kv_bytes + found.extra_bytes) / MIB:.2f} MiB",
        f"{found.extra_bytes / MIB:.2f} MiB",
        f"{found.error:.1e}",
        own,
    )


def _volume_lines(found: Exploration) -> list[str]:
    if not found.reference:
        return []
    time_us, memory, error = found.reference
    return [
        f"hypervolume {found.volume:.3f} cubic decades, below the reference point {time_us:.4g} us, "
        f"{memory / MIB:.4g} MiB, error {error:.2g}: 1.1 times the worst that was measured of each"
    ]


def _sensitivity_sheet(found: Exploration) -> Sheet:
    names = [parameter.name for parameter in found.parameters]
    shown = [name for name in names if any(name in each.shares for each in found.sensitivities)]
    rows = tuple(
        (
            each.evaluator,
            each.objective,
            f"{each.scope} ({each.points})",
            *(f"{each.shares[name]:.0%}" if name in each.shares else "" for name in shown),
        )
        for each in found.sensitivities
    )
    notes = (
        *found.missing,
        "shares of what each axis explains, of the points that were measured: fANOVA of an objective's variance (its "
        "logarithm), PED-ANOVA of what sets the best tenth apart (five points at least)",
    )
    return Sheet(f"sensitivity of {', '.join(OBJECTIVES)}", ("by", "objective", "over", *shown), rows, notes)


def _data(found: PointResult) -> dict[str, Any]:
    return {
        "point": dict(found.point),
        "time_us": None if found.timing is None else asdict(found.timing),
        "kv_bytes": found.kv_bytes,
        "extra_bytes": found.extra_bytes,
        "error": found.error,
        "message": found.message,
    }
