"""The trials under the roof of their device: rate against arithmetic intensity, with nominal ceilings, by dtype."""

from collections.abc import Sequence
from typing import Any, Final

from autotune.device import Device
from autotune.operation import Operation
from autotune.report.page.chart import Chart, log_axis
from autotune.report.page.markup import Html, count, element, figure_svg, percent, short_time
from autotune.report.page.problem import Problem, median_us
from autotune.report.summary import describe_rate
from autotune.roofline import Roof, product_dtype, rates, roof_of
from autotune.trial import Trial

WIDTH, HEIGHT = 420, 300
MARGIN: Final = 1.2  # times the outermost points that an axis reaches, so that none lies on the frame
BY_FORMULA: Final = "intensity by formula, every byte moved once"

Point = tuple[float, float]  # FLOPs a byte, TFLOP/s


def roof_chart(across: str, up: str, points: Sequence[Point], roof: Roof | None) -> tuple[Chart, Html | None]:
    """Axes of those names that hold the points and both sides of the roof, and the roof's line where there is one."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if roof is not None:
        xs, ys = [*xs, roof.ridge / 2, roof.ridge * 2], [*ys, roof.tflops]
    intensity, rate = (
        log_axis(name, [min(each) / MARGIN, max(each) * MARGIN]) for name, each in ((across, xs), (up, ys))
    )
    chart = Chart(intensity, rate, WIDTH, HEIGHT)
    if roof is None:
        return chart, None
    corners = [intensity.low, roof.ridge, intensity.high]
    return chart, chart.line(corners, [roof.attainable(x) for x in corners], "line-roof")


def roofline_figures(
    operation: Operation[Any], device: Device, problems: Sequence[Problem], winners: Sequence[Trial]
) -> list[Html]:
    """A figure for each dtype that has times: every timed config as a point and the winners as larger ones."""
    screened = [trial for problem in problems for trial in problem.timed]
    best = [winner for winner in winners if winner.timing is not None]
    return [
        _figure(
            operation,
            device,
            dtype,
            [trial for trial in screened if product_dtype(trial.shape) == dtype],
            [winner for winner in best if product_dtype(winner.shape) == dtype],
        )
        for dtype in dict.fromkeys(product_dtype(trial.shape) for trial in [*best, *screened])
    ]


def _figure(
    operation: Operation[Any], device: Device, dtype: str, screened: Sequence[Trial], winners: Sequence[Trial]
) -> Html:
    roof = roof_of(device.name, dtype)
    points = [_point(operation, trial) for trial in screened]
    best = [_point(operation, winner) for winner in winners]
    chart, line = roof_chart("FLOPs a byte of device memory", "TFLOP/s", [*points, *best], roof)
    told = _words(points, best, roof)
    in_dtype = f", {dtype}" if dtype else ""
    drawing = figure_svg(
        f"Roofline of {operation.name} on {device.name}{in_dtype}",
        told,
        WIDTH,
        HEIGHT,
        chart.axes(),
        chart.dots(points, "dots-screened"),
        line,
        *(_winner(chart, winner, point) for winner, point in zip(winners, best, strict=True)),
        kind="wide",
    )
    caption = element("figcaption", f"Roofline{in_dtype}", element("small", _source(device, dtype, roof)))
    return element("figure", caption, drawing, element("p", told, class_="note"), class_="roofline")


def _point(operation: Operation[Any], trial: Trial) -> Point:
    cost = operation.cost(trial.shape)
    return cost.flops / cost.bytes, rates(cost, median_us(trial))[0]


def _winner(chart: Chart, winner: Trial, point: Point) -> Html:
    text = f"{winner.shape}: {describe_rate(point[1])} TFLOP/s, {short_time(median_us(winner))}"
    return element(
        "circle", element("title", text), cx=chart.x(point[0]), cy=chart.y(point[1]), r=4, class_="dot-winner"
    )


def _words(screened: Sequence[Point], best: Sequence[Point], roof: Roof | None) -> str:
    """What the drawing shows, for those who do not see it too."""
    low, high = (f"{pick(x for x, _ in [*screened, *best]):,.0f}" for pick in (min, max))
    ran = [f"{count(len(screened), 'config')} that ran at screening"] if screened else []
    shown = " and ".join([*ran, count(len(best), "winner")] if best else ran)
    told = f"{shown} at {low if low == high else f'{low} to {high}'} FLOPs a byte."
    chosen = best or [max(screened, key=lambda point: point[1])]
    who = "Winners reach" if len(best) > 1 else "The winner reaches" if best else "The fastest config reaches"
    if roof is None:
        return f"{told} {who} up to {describe_rate(max(y for _, y in chosen))} TFLOP/s."
    shares = [y / roof.attainable(x) for x, y in chosen]
    bound = sum(x < roof.ridge for x, _ in chosen)
    limit = "memory is the limit" if bound == len(chosen) else "arithmetic is the limit"
    if 0 < bound < len(chosen):
        limit = f"memory is the limit of {bound} of them, arithmetic of the others"
    low, high = percent(min(shares)), percent(max(shares))
    return f"{told} {who} {high if low == high else f'{low} to {high}'} of the roof above; {limit}."


def _source(device: Device, dtype: str, roof: Roof | None) -> str:
    if roof is None:
        return f"no ceilings are known of {device.name}{f' in {dtype}' if dtype else ''}; {BY_FORMULA}"
    nominal = f"{round(roof.tflops, 1):g} TFLOP/s dense in {dtype}, {roof.gbps:g} GB/s"
    return f"ceilings are nominal, of the data sheet: {nominal}; {BY_FORMULA}"
