"""An exploration as tables, as plain data, and as an SVG file: two panels over the time."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from autotune import sheets
from autotune.errors import UsageError
from autotune.lab.drawing.chart import Chart, padded_axis
from autotune.lab.drawing.figure_file import Dot, check_figure, write_scatter
from autotune.lab.goldilocks.exploration import IMPLEMENTATION, OBJECTIVES, PRECISION, Exploration, PointResult
from autotune.sheets import Sheet
from autotune.units import bytes_text, time_text

COLUMNS: Final = (
    *map(sheets.text, ("implementation", "precision")),
    sheets.timing("time (95 %)"),
    *map(sheets.size, ("memory", "of it beside K and V")),
    sheets.number("error", ".1e"),
    sheets.text("parameters"),
)


def exploration_sheets(found: Exploration) -> list[Sheet]:
    """Return the front, everything else that was measured, the hypervolume, and the sensitivities."""
    front = {measured.point for measured in found.front}
    rest = [each for each in found.measured if each.point not in front and each.objectives is not None]
    notes = [
        f"{len(found.measured)} of {found.size} valid points measured; {len(found.front)} on the front",
        *_volume_lines(found),
        *(f"failed: {each.point}: {each.message}" for each in found.measured if each.objectives is None),
    ]
    title = f"{found.operation}: {found.shape} on {found.device}"
    tables = [
        Sheet(f"{title}: Pareto front of time, memory and error", COLUMNS, tuple(map(_row, found.front)), tuple(notes))
    ]
    if rest:
        rows = tuple(map(_row, sorted(rest, key=lambda each: each.objectives or ())))
        tables.append(Sheet("beaten in all three by a point of the front", COLUMNS, rows))
    return [*tables, _sensitivity_sheet(found)]


def exploration_data(found: Exploration) -> dict[str, Any]:
    front = {measured.point for measured in found.front}
    return {
        "operation": found.operation,
        "shape": found.shape.as_dict(),
        "device": found.device,
        "axes": {parameter.name: list(parameter.values) for parameter in found.parameters},
        "valid_points": found.size,
        "points": [_point_data(each) | {"is_on_front": each.point in front} for each in found.measured],
        "hypervolume": {
            "decades": found.volume,
            "reference": dict(zip(("time_us", "memory_bytes", "error"), found.reference, strict=False)),
        },
        "sensitivities": [asdict(each) for each in found.sensitivities],
        "missing": list(found.missing),
        "absent": dict(found.absent),
    }


def _row(found: PointResult) -> tuple[object, ...]:
    assert found.extra_bytes is not None
    axes = (IMPLEMENTATION, PRECISION)
    own = " ".join(f"{name}={value}" for name, value in found.point.items() if name not in axes and value)
    memory = found.kv_bytes + found.extra_bytes
    return (*(found.point[name] for name in axes), found.timing, memory, found.extra_bytes, found.error, own)


def _volume_lines(found: Exploration) -> list[str]:
    if not found.reference:
        return []
    time_us, memory, error = found.reference
    return [
        f"hypervolume {found.volume:.3f} cubic decades, below the reference point {time_text(time_us)}, "
        f"{bytes_text(memory)}, error {error:.2g}: 1.1 times the worst that was measured of each"
    ]


def _sensitivity_sheet(found: Exploration) -> Sheet:
    names = [parameter.name for parameter in found.parameters]
    shown = [name for name in names if any(name in each.shares for each in found.sensitivities)]
    rows = tuple(
        (each.evaluator, each.objective, f"{each.scope} ({each.points})", *(each.shares.get(name) for name in shown))
        for each in found.sensitivities
    )
    notes = (
        *found.missing,
        "shares of what each axis explains, of the points that were measured: fANOVA of an objective's variance (its "
        "logarithm), PED-ANOVA of what sets the best tenth apart (five points at least)",
    )
    columns = (*map(sheets.text, ("by", "objective", "over")), *(sheets.percent(name) for name in shown))
    return Sheet(f"sensitivity of {', '.join(OBJECTIVES)}", columns, rows, notes)


def _point_data(found: PointResult) -> dict[str, Any]:
    time_us = None if found.timing is None else asdict(found.timing)
    others = ("kv_bytes", "extra_bytes", "error", "message")
    return {"point": dict(found.point), "time_us": time_us} | {name: getattr(found, name) for name in others}


WIDTH, HEIGHT = 460, 380
# Of each panel: the index of the objective, its name, and what it is divided by.
PANELS: Final = ((1, "memory: K and V, and the most beside them, MiB", 2.0**20), (2, "largest absolute error", 1.0))


def draw_front(found: Exploration, path: Path) -> None:
    """Draw memory and error over time, all logarithmic: a colour an implementation, a marker a precision.

    Points of the front are ringed, the others pale. An error of 0 is drawn at the least of the others.
    """
    check_figure(path)
    shown = [(each.point, each.objectives) for each in found.measured if each.objectives is not None]
    if not shown:
        raise UsageError(f"figure={str(path)!r} would be empty: no point was measured")
    front = {each.point for each in found.front}
    panels: list[tuple[Chart, list[Dot], None]] = []
    for index, label, unit in PANELS:
        least = min((values[index] for _, values in shown if values[index] > 0.0), default=1.0)
        dots = [
            Dot(
                values[0],
                max(values[index], least) / unit,
                str(point[IMPLEMENTATION]),
                str(point[PRECISION]),
                "ringed" if point in front else "pale",
            )
            for point, values in shown
        ]
        dots.sort(key=lambda dot: dot.kind)  # pale ones first, so that ringed ones lie above
        axes = (padded_axis("time, us", [dot.x for dot in dots]), padded_axis(label, [dot.y for dot in dots]))
        panels.append((Chart(*axes, WIDTH, HEIGHT), dots, None))
    title = (f"{found.operation}, {found.shape}", f"{found.device}; ringed: no point beats it in all three")
    write_scatter(path, title, panels)
