"""A Pareto front of time, memory and error as a picture, PNG or SVG: two panels over the time."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import UsageError
from autotune.report.roofline_figure import COLOURS, DPI, MARKERS, check_figure

if TYPE_CHECKING:
    from autotune.analysis.goldilocks import Exploration, PointResult

SIZE: Final = (11.0, 5.0)  # inches
PANELS: Final = ((1, "memory: K and V, and the most beside them, MiB", 2.0**20), (2, "largest absolute error", 1.0))


def draw_front(found: "Exploration", path: Path) -> None:
    """Draw memory and error over time, all logarithmic: a colour an implementation, a marker a precision.

    Points of the front are filled and ringed, the others pale. An error of 0 is drawn at the least of the others.

    Raises:
        UsageError: as ``roofline_figure.check_figure``, or nothing was measured.
        MissingDependencyError: there is no matplotlib.
    """
    check_figure(path)
    shown = [each for each in found.measured if each.objectives is not None]
    if not shown:
        raise UsageError(f"figure={str(path)!r} would be empty: no point was measured")
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # A figure of its own, without pyplot: no window system, no state. Text stays text, and names do not change by run.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "autotune"}):
        figure = Figure(figsize=SIZE, layout="constrained")
        front = {each.point for each in found.front}
        panels = figure.subplots(1, len(PANELS))
        for axes, (index, label, unit) in zip(panels, PANELS, strict=True):
            _draw_panel(axes, shown, front, index, unit)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("time, us")
            axes.tick_params(axis="x", which="both", labelsize=8, rotation=45)
            axes.set_ylabel(label)
            axes.grid(visible=True, which="both", linewidth=0.3, alpha=0.5)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
        title = f"{found.operation}, {found.shape}\n{found.device}; ringed: no point beats it in all three"
        figure.suptitle(title, fontsize=10)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, dpi=DPI, metadata=metadata)


def _draw_panel(axes: Any, shown: Sequence["PointResult"], front: set[Any], index: int, unit: float) -> None:
    kinds = [(str(each.point["implementation"]), str(each.point["precision"])) for each in shown]
    implementations, precisions = (list(dict.fromkeys(names)) for names in zip(*kinds, strict=True))
    values = [each.objectives or (0.0, 0.0, 0.0) for each in shown]
    least = min((each[index] for each in values if each[index] > 0.0), default=1.0)
    labelled = set()
    for each, kind, objectives in zip(shown, kinds, values, strict=True):
        is_best = each.point in front
        axes.plot(
            [objectives[0]],
            [max(objectives[index], least) / unit],
            linestyle="none",
            color=COLOURS[implementations.index(kind[0]) % len(COLOURS)],
            marker=MARKERS[precisions.index(kind[1]) % len(MARKERS)],
            markersize=9 if is_best else 6,
            markeredgecolor="black" if is_best else "none",
            alpha=1.0 if is_best else 0.45,
            label=None if kind in labelled else ", ".join(kind),
            zorder=3 if is_best else 2,
        )
        labelled.add(kind)
