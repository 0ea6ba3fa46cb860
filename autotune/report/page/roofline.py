"""The trials under the roof of their device: rate against arithmetic intensity, with nominal ceilings."""

from collections.abc import Sequence
from typing import Any

from autotune.device import Device
from autotune.operation import Operation
from autotune.report.page.chart import Chart, log_axis
from autotune.report.page.markup import Html, count, element, figure_svg, percent, short_time
from autotune.report.page.problem import Problem, median_us
from autotune.roofline import PEAKS, Peak, rates
from autotune.trial import Trial

WIDTH, HEIGHT = 420, 300

Point = tuple[float, float]  # FLOPs a byte, TFLOP/s


def roof(peak: Peak, intensity: float) -> float:
    """TFLOP/s that a kernel of that many FLOPs a byte reaches at most."""
    return min(peak.tflops, intensity * peak.gbps / 1000)


def ridge(peak: Peak) -> float:
    """FLOPs a byte above which arithmetic is the limit and below which memory is."""
    return 1000 * peak.tflops / peak.gbps


def roofline_figure(
    operation: Operation[Any], device: Device, problems: Sequence[Problem], winners: Sequence[Trial]
) -> Html:
    """Every timed config as a point and the winners as larger ones; nothing where no trial has a time."""
    screened = [_point(operation, trial) for problem in problems for trial in problem.timed]
    best = [(winner, _point(operation, winner)) for winner in winners if winner.timing is not None]
    points = [*screened, *(point for _, point in best)]
    if not points:
        return Html("")
    peak = PEAKS.get(device.name)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if peak is not None:
        xs, ys = [*xs, ridge(peak) / 2, ridge(peak) * 2], [*ys, peak.tflops]
    across, up = log_axis("FLOPs a byte of device memory", [min(xs) / 1.2, max(xs) * 1.2]), log_axis("TFLOP/s", ys)
    chart = Chart(across, up, WIDTH, HEIGHT)
    parts = [chart.axes(), chart.dots(screened, "dots-screened")]
    if peak is not None:
        corners = [across.low, ridge(peak), across.high]
        parts.append(chart.line(corners, [roof(peak, x) for x in corners], "line-roof"))
    parts += [_winner(chart, winner, point) for winner, point in best]
    title, told = f"Roofline of {operation.name} on {device.name}", _words(points, best, peak)
    return element(
        "figure",
        element("figcaption", "Roofline", element("small", _source(device, peak))),
        figure_svg(title, told, WIDTH, HEIGHT, *parts, kind="wide"),
        element("p", told, class_="note"),
        class_="roofline",
    )


def _point(operation: Operation[Any], trial: Trial) -> Point:
    cost = operation.cost(trial.shape)
    return cost.flops / cost.bytes, rates(cost, median_us(trial))[0]


def _winner(chart: Chart, winner: Trial, point: Point) -> Html:
    text = f"{winner.shape}: {point[1]:.0f} TFLOP/s, {short_time(median_us(winner))}"
    return element(
        "circle", element("title", text), cx=chart.x(point[0]), cy=chart.y(point[1]), r=4, class_="dot-winner"
    )


def _words(points: Sequence[Point], best: Sequence[tuple[Trial, Point]], peak: Peak | None) -> str:
    """What the drawing shows, for those who do not see it too."""
    low, high = (f"{pick(x for x, _ in points):,.0f}" for pick in (min, max))
    told = f"{count(len(points), 'time')} at {low if low == high else f'{low} to {high}'} FLOPs a byte."
    chosen = [point for _, point in best] or [max(points, key=lambda point: point[1])]
    who = "Winners" if best else "The fastest config"
    if peak is None:
        return f"{told} {who} reach{'' if best else 'es'} up to {max(y for _, y in chosen):.3g} TFLOP/s."
    shares = [y / roof(peak, x) for x, y in chosen]
    bound = sum(x < ridge(peak) for x, _ in chosen)
    limit = "memory is the limit" if bound == len(chosen) else "arithmetic is the limit"
    if 0 < bound < len(chosen):
        limit = f"memory is the limit of {bound} of them, arithmetic of the others"
    low, high = percent(min(shares)), percent(max(shares))
    reached = high if low == high else f"{low} to {high}"
    return f"{told} {who} reach{'' if best else 'es'} {reached} of the roof above; {limit}."


def _source(device: Device, peak: Peak | None) -> str:
    if peak is None:
        return f"no ceilings are known of {device.name}; intensity by formula, every byte moved once"
    return (
        f"ceilings are nominal, of the datasheet: {peak.tflops:g} TFLOP/s dense in 16 bits, {peak.gbps:g} GB/s; "
        "intensity by formula, every byte moved once"
    )
