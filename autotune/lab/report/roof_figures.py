"""Trials under the nominal roof of their device: rate against arithmetic intensity, a figure for each dtype."""

from collections.abc import Sequence
from typing import Any, Final

from autotune.device import Device
from autotune.lab.drawing.chart import Chart
from autotune.lab.drawing.markup import Html, element, figure_svg
from autotune.lab.drawing.roof import roof_chart
from autotune.lab.report.screening import Screening, median_us, problem_text
from autotune.operation import Operation
from autotune.roofline import Roof, product_dtype, rates, roof_of
from autotune.trial import Trial
from autotune.units import count_text, percent_text, short_time_text, three_digits

BY_FORMULA: Final = "intensity by formula, every byte moved once"

RatePoint = tuple[float, float]  # FLOPs a byte, TFLOP/s


def roofline_figures(
    operation: Operation[Any], device: Device, screenings: Sequence[Screening], winners: Sequence[Trial]
) -> list[Html]:
    """Draw a figure for each dtype that has times: every timed config as a point, the winners as larger ones."""
    screened = [trial for screening in screenings for trial in screening.timed]
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
        chart.width,
        chart.height,
        chart.axes(),
        chart.dots(points, "dots-screened"),
        line,
        *(_winner(chart, winner, point) for winner, point in zip(winners, best, strict=True)),
        kind="wide",
    )
    caption = element("figcaption", f"Roofline{in_dtype}", element("small", _source(device, dtype, roof)))
    return element("figure", caption, drawing, element("p", told, class_="note"), class_="roofline")


def _point(operation: Operation[Any], trial: Trial) -> RatePoint:
    cost = operation.cost(trial.shape)
    return cost.flops / cost.bytes, rates(cost, median_us(trial))[0]


def _winner(chart: Chart, winner: Trial, point: RatePoint) -> Html:
    text = f"{problem_text(winner)}: {three_digits(point[1])} TFLOP/s, {short_time_text(median_us(winner))}"
    return element(
        "circle", element("title", text), cx=chart.x(point[0]), cy=chart.y(point[1]), r=4, class_="dot-winner"
    )


def _words(screened: Sequence[RatePoint], best: Sequence[RatePoint], roof: Roof | None) -> str:
    """Describe the drawing, for screen readers and as its caption."""
    low, high = (f"{pick(x for x, _ in [*screened, *best]):,.0f}" for pick in (min, max))
    ran = [f"{count_text(len(screened), 'config')} that ran at screening"] if screened else []
    shown = " and ".join([*ran, count_text(len(best), "winner")] if best else ran)
    told = f"{shown} at {low if low == high else f'{low} to {high}'} FLOPs a byte."
    chosen = best or [max(screened, key=lambda point: point[1])]
    who = "Winners reach" if len(best) > 1 else "The winner reaches" if best else "The fastest config reaches"
    if roof is None:
        return f"{told} {who} up to {three_digits(max(y for _, y in chosen))} TFLOP/s."
    shares = [y / roof.attainable(x) for x, y in chosen]
    bound = sum(x < roof.ridge for x, _ in chosen)
    limit = "memory is the limit" if bound == len(chosen) else "arithmetic is the limit"
    if 0 < bound < len(chosen):
        limit = f"memory is the limit of {bound} of them, arithmetic of the others"
    low, high = percent_text(min(shares)), percent_text(max(shares))
    return f"{told} {who} {high if low == high else f'{low} to {high}'} of the roof above; {limit}."


def _source(device: Device, dtype: str, roof: Roof | None) -> str:
    if roof is None:
        return f"no ceilings are known of {device.name}{f' in {dtype}' if dtype else ''}; {BY_FORMULA}"
    nominal = f"{round(roof.tflops, 1):g} TFLOP/s dense in {dtype}, {roof.gbps:g} GB/s"
    return f"ceilings are nominal, of the data sheet: {nominal}; {BY_FORMULA}"
