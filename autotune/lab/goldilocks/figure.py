"""A Pareto front of time, memory and error as an SVG file: two panels over the time."""

from pathlib import Path
from typing import Final

from autotune.errors import UsageError
from autotune.lab.drawing.chart import Chart, padded_axis
from autotune.lab.drawing.figure_file import Dot, check_figure, write_scatter
from autotune.lab.goldilocks.exploration import IMPLEMENTATION, PRECISION, Exploration

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
