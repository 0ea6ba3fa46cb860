"""The chart of a roofline: axes that hold the points and both sides of the roof, and the roof's line."""

from collections.abc import Sequence

from autotune.lab.drawing.chart import Chart, padded_axis
from autotune.lab.drawing.markup import Html
from autotune.roofline import Roof

WIDTH, HEIGHT = 420, 300


def roof_chart(
    across: str,
    up: str,
    points: Sequence[tuple[float, float]],
    roof: Roof | None,
    *,
    width: int = WIDTH,
    height: int = HEIGHT,
) -> tuple[Chart, Html | None]:
    """Return the chart for these points (FLOPs a byte, rate), and the line of the roof where one is given."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if roof is not None:
        xs, ys = [*xs, roof.ridge / 2, roof.ridge * 2], [*ys, roof.tflops]
    intensity, rate = padded_axis(across, xs), padded_axis(up, ys)
    chart = Chart(intensity, rate, width, height)
    if roof is None:
        return chart, None
    corners = [intensity.low, roof.ridge, intensity.high]
    return chart, chart.line(corners, [roof.attainable(x) for x in corners], "line-roof")
