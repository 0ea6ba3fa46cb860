"""The roofline as an SVG file: measured ceilings, and every kernel a dot."""

from collections.abc import Sequence
from pathlib import Path

from autotune.lab.drawing.chart import Chart, roof_chart
from autotune.lab.drawing.figure_file import Dot, write_scatter
from autotune.lab.drawing.markup import Html, element, join
from autotune.lab.machine.ceilings import Ceilings
from autotune.lab.roofline.placement import RooflinePoint, rate_unit
from autotune.roofline import Roof

WIDTH, HEIGHT = 600, 430


def draw_roofline(points: Sequence[RooflinePoint], ceilings: Ceilings, path: Path) -> None:
    """Draw the rates over FLOPs a byte, both axes logarithmic, and write the file; unmeasured points are left out.

    Rates are in TFLOP/s, or in GFLOP/s where the ceiling is below 1 TFLOP/s.
    """
    factor, unit = rate_unit(ceilings)
    dots = [
        Dot(point.intensity, factor * point.tflops, point.name, f"S = {point.shape.seq_q}")
        for point in points
        if point.tflops is not None
    ]
    roof = Roof(factor * ceilings.tflops, factor * ceilings.gbps)
    across = "arithmetic intensity, FLOP/B of the memory's traffic by formula"
    chart, line = roof_chart(across, unit, [(dot.x, dot.y) for dot in dots], roof, width=WIDTH, height=HEIGHT)
    processor = ceilings.processor
    details = str(processor).removeprefix(f"{processor.name}, ")
    title = (f"Roofline of {processor.name}", f"{details}, {ceilings.dtype}")
    write_scatter(path, title, [(chart, dots, join(line, _roof_labels(chart, roof, ceilings.gbps, unit)))])


def _roof_labels(chart: Chart, roof: Roof, gbps: float, unit: str) -> Html:
    low, high = chart.across.low, chart.across.high
    slope = (low * roof.ridge) ** 0.5
    ridge, top = chart.x(roof.ridge), chart.y(roof.tflops)
    bottom = chart.y(chart.up.low)
    return join(
        element("text", f"{gbps:.0f} GB/s", x=chart.x(slope) - 8, y=chart.y(roof.attainable(slope)) - 4, class_="end"),
        element("text", f"{roof.tflops:.0f} {unit}", x=chart.x(high) - 4, y=top - 5, class_="end"),
        element("line", x1=ridge, x2=ridge, y1=top, y2=bottom, class_="ridge"),
        element("text", f"ridge {roof.ridge:.1f}", x=ridge + 4, y=bottom - 6, class_="quiet"),
    )
