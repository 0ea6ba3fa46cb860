"""The roofline as a picture, PNG or SVG: ceilings measured, every kernel a dot."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import MissingDependencyError, UsageError
from autotune.report.page.chart import log_axis

if TYPE_CHECKING:
    from autotune.analysis.ceilings import Ceilings
    from autotune.analysis.roofline import Point

FORMATS: Final = (".png", ".svg")
SIZE: Final = (9.0, 5.5)  # inches
DPI: Final = 150
MARKERS: Final = "osD^vP*X<>"
# Okabe and Ito's colours, which the colour-blind tell apart (jfly.uni-koeln.de/color, 2008).
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")


def check_figure(path: Path) -> None:
    """Refuse a figure that cannot be drawn, before anything is measured for it.

    Raises:
        UsageError: another ending than .png or .svg, or no such folder.
        MissingDependencyError: there is no matplotlib.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"figure={str(path)!r} is no figure's name; expected an ending of {' or '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise UsageError(f"figure={str(path)!r} lies in no folder; expected one that exists")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingDependencyError("a figure needs matplotlib: pip install 'attention-autotune[report]'") from None


def draw_roofline(points: Sequence["Point"], ceilings: "Ceilings", path: Path) -> None:
    """Draw the rates over FLOPs a byte, both axes logarithmic, and write the file; unmeasured points are left out.

    Rates are in TFLOP/s, or in GFLOP/s where the ceiling is below 1 TFLOP/s.

    Raises:
        UsageError: as ``check_figure``.
        MissingDependencyError: there is no matplotlib.
    """
    check_figure(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = [point for point in points if point.timing is not None]
    # A figure of its own, without pyplot: no window system, no state. Text stays text, and names do not change by run.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "autotune"}):
        figure = Figure(figsize=SIZE, layout="constrained")
        axes = figure.add_subplot()
        factor, unit = (1.0, "TFLOP/s") if ceilings.tflops >= 1.0 else (1000.0, "GFLOP/s")
        _draw_roof(axes, shown, ceilings, factor, unit)
        _draw_points(axes, shown, factor)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("arithmetic intensity, FLOP/B of the memory's traffic by formula")
        axes.set_ylabel(unit)
        processor = ceilings.processor
        details = str(processor).removeprefix(f"{processor.name}, ")
        axes.set_title(f"Roofline of {processor.name}\n{details}, {ceilings.dtype}", fontsize=11)
        _label_axes(axes)
        axes.grid(visible=True, which="both", linewidth=0.3, alpha=0.5)
        if shown:
            axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, dpi=DPI, metadata=metadata)


def _label_axes(axes: Any) -> None:
    """Ticks as plain numbers, those of the report's charts."""
    from matplotlib.ticker import NullFormatter

    for axis, limits in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
        values, labels = zip(*log_axis("", limits).ticks, strict=True)
        axis.set_ticks(values, labels=labels)
        axis.set_minor_formatter(NullFormatter())


def _draw_roof(axes: Any, points: Sequence["Point"], ceilings: "Ceilings", factor: float, unit: str) -> None:
    """The two ceilings over all intensities that are shown, a factor of four beyond the ridge at least."""
    reached = [point.intensity for point in points] + [ceilings.ridge]
    low, high = min(reached) / 4.0, max(reached) * 4.0
    corners = (low, ceilings.ridge, high)
    axes.plot(corners, [factor * ceilings.attainable(x) for x in corners], color="black", linewidth=1.5)
    slope = (low * ceilings.ridge) ** 0.5
    axes.annotate(
        f"{ceilings.gbps:.0f} GB/s",
        (slope, factor * ceilings.attainable(slope)),
        xytext=(-6, 6),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    axes.annotate(
        f"{factor * ceilings.tflops:.0f} {unit}",
        (high, factor * ceilings.tflops),
        xytext=(-4, 5),
        textcoords="offset points",
        ha="right",
        fontsize=9,
    )
    axes.axvline(ceilings.ridge, color="grey", linewidth=0.8, linestyle=":")
    axes.annotate(
        f"ridge {ceilings.ridge:.1f}",
        (ceilings.ridge, 0.02),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        fontsize=8,
        color="dimgrey",
    )


def _draw_points(axes: Any, points: Sequence["Point"], factor: float) -> None:
    """A colour a kernel, a marker a length."""
    names = list(dict.fromkeys(point.name for point in points))
    lengths = list(dict.fromkeys(point.shape.seq_q for point in points))
    for point in points:
        axes.plot(
            [point.intensity],
            [factor * (point.tflops or 0.0)],
            linestyle="none",
            color=COLOURS[names.index(point.name) % len(COLOURS)],
            marker=MARKERS[lengths.index(point.shape.seq_q) % len(MARKERS)],
            markersize=7,
            label=f"{point.name}, S = {point.shape.seq_q}",
        )
