"""Trials under the nominal roof of their device: rate against arithmetic intensity, a figure for each dtype."""

from collections.abc import Sequence
from typing import Any, Final

from autotune.device import Device
from autotune.lab.drawing.chart import roof_chart
from autotune.lab.drawing.markup import Html, element, figure
from autotune.lab.report.screening import Screening, grouped, median_us, problem_text, span_text
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
    best, screened = (
        grouped(trials, lambda trial: product_dtype(trial.shape))
        for trials in (
            (winner for winner in winners if winner.timing is not None),
            (trial for screening in screenings for trial in screening.timed),
        )
    )
    return [
        _figure(operation, device, dtype, screened.get(dtype, []), best.get(dtype, []))
        for dtype in {**best, **screened}
    ]


def _figure(
    operation: Operation[Any], device: Device, dtype: str, screened: Sequence[Trial], winners: Sequence[Trial]
) -> Html:
    roof = roof_of(device.name, dtype)
    points, best = ([_point(operation, trial) for trial in trials] for trials in (screened, winners))
    chart, line = roof_chart("FLOPs a byte of device memory", "TFLOP/s", [*points, *best], roof)
    marks = []
    for winner, (x, y) in zip(winners, best, strict=True):
        text = f"{problem_text(winner)}: {three_digits(y)} TFLOP/s, {short_time_text(median_us(winner))}"
        marks.append(element("circle", element("title", text), cx=chart.x(x), cy=chart.y(y), r=4, class_="dot-winner"))
    summary = _summary(points, best, roof)
    in_dtype = f" in {dtype}" if dtype else ""
    if roof is None:
        ceilings = f"no ceilings are known of {device.name}{in_dtype}"
    else:
        nominal = f"{round(roof.tflops, 1):g} TFLOP/s dense{in_dtype}, {roof.gbps:g} GB/s"
        ceilings = f"ceilings are nominal, of the data sheet: {nominal}"
    comma_dtype = f", {dtype}" if dtype else ""
    title = f"Roofline of {operation.name} on {device.name}{comma_dtype}"
    drawing = chart.drawing(title, summary, chart.dots(points, "dots-screened"), line, *marks, kind="wide")
    note = element("p", summary, class_="note")
    return figure(f"Roofline{comma_dtype}", f"{ceilings}; {BY_FORMULA}", drawing, note)


def _point(operation: Operation[Any], trial: Trial) -> RatePoint:
    cost = operation.cost(trial.shape)
    return cost.flops / cost.bytes, rates(cost, median_us(trial))[0]


def _summary(screened: Sequence[RatePoint], best: Sequence[RatePoint], roof: Roof | None) -> str:
    """Describe the drawing, for screen readers and as its caption."""
    intensities = span_text((x for x, _ in [*screened, *best]), "{:,.0f}".format)
    counts = [f"{count_text(len(screened), 'config')} that ran at screening"] if screened else []
    counts += [count_text(len(best), "winner")] if best else []
    shown = f"{' and '.join(counts)} at {intensities} FLOPs a byte."
    chosen = best or [max(screened, key=lambda point: point[1])]
    who = "Winners reach" if len(best) > 1 else "The winner reaches" if best else "The fastest config reaches"
    if roof is None:
        return f"{shown} {who} up to {three_digits(max(y for _, y in chosen))} TFLOP/s."
    shares = [y / roof.attainable(x) for x, y in chosen]
    bound = sum(x < roof.ridge for x, _ in chosen)
    limit = "memory is the limit" if bound == len(chosen) else "arithmetic is the limit"
    if 0 < bound < len(chosen):
        limit = f"memory is the limit of {bound} of them, arithmetic of the others"
    return f"{shown} {who} {span_text(shares, percent_text)} of the roof above; {limit}."
