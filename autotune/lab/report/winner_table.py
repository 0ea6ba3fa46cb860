"""The winners of one operation on one device: their table, bars beside baselines, and their place under the roof."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from autotune import sheets
from autotune.console.winners import (
    SPACES_DEFAULT,
    WORTH,
    Ratio,
    default_name,
    gain,
    gain_by_hand,
    is_limited_by_memory,
    lead,
    policy_text,
)
from autotune.device import Device
from autotune.lab.drawing.bars import Bar, bar_rows, legend
from autotune.lab.drawing.chart import roof_chart
from autotune.lab.drawing.markup import Html, element, figure, join, left_out, table
from autotune.lab.report.screening import Screening, grouped, problem_text, span_text
from autotune.operation import Operation
from autotune.roofline import Roof, product_dtype, rates, roof_of
from autotune.shape import Shape
from autotune.sheets import Sheet
from autotune.trial import Policy, Timing, Trial, median_us
from autotune.units import count_text, percent_text, short_time_text, three_digits

MAX_ROWS: Final = 500  # of a table; more are counted
MAX_COMPARED: Final = 40  # in the figure
GBPS: Final = "GB/s"

Anchors = Mapping[tuple[str, Shape, Policy], str]  # the places of screenings' details on the page


def winners_section(winners: Sequence[Trial], anchors: Anchors) -> Html:
    """Return the table of the winners and the bars that compare them; winners beyond the limits are counted."""
    unit = _unit(winners)
    has_heuristics = any(winner.heuristic_timing for winner in winners)
    columns = (
        sheets.text("problem"),
        sheets.timing(),
        sheets.text("against default"),
        *([sheets.text("against heuristic")] if has_heuristics else []),
        sheets.text("against baseline"),
        sheets.rate(unit, unit),
        sheets.text("winner"),
        sheets.text("from"),
    )
    rows = tuple(_row(winner, unit, anchors, has_heuristics) for winner in winners[:MAX_ROWS])
    listed = table(Sheet("Winners, each with its time and 95 % interval", columns, rows))
    return join(listed, left_out(len(winners) - len(rows), "more winner", "not listed."), comparison(winners))


def comparison(winners: Sequence[Trial]) -> Html:
    """Draw bars of speed: the winner, the default and the fastest baseline of each race."""
    compared = [winner for winner in winners if winner.default_timing or winner.baseline_timing]
    if not compared:
        return Html("")
    farthest = sorted(compared, key=_difference, reverse=True)[:MAX_COMPARED]
    shown = [winner for winner in compared if winner in farthest]
    unit = _unit(shown) if all(winner.tflops and winner.gbps for winner in shown) else None
    longest = max(_speed(winner, timing, unit) for winner in shown for timing in _timings(winner).values())
    more = len(compared) - len(shown)
    return figure(
        f"Speed in {unit}, longer is better" if unit else "Speed as a share of the fastest",
        f"{count_text(more, 'more winner')}, nearer to the default, not drawn" if more else None,
        legend([("bar-tuned", "winner"), ("bar-default", "default"), ("bar-baseline", "fastest baseline")]),
        element("div", *(_group(winner, unit, longest) for winner in shown), class_="columns"),
    )


def _row(winner: Trial, unit: str, anchors: Anchors, has_heuristics: bool) -> tuple[object, ...]:
    target = anchors.get((winner.implementation, winner.shape, winner.policy))
    name = str(winner.shape)
    replayed = ", replayed" if winner.executor == "replay" else ""
    contended = ", contended" if winner.outcome.conditions.contended else ""
    day = element("span", f"{winner.started_at:%Y-%m-%d}", class_="whole")
    return (
        element("a", name, href=f"#{target}") if target else name,
        winner.timing,
        _against_default(winner),
        *([_ratio(gain_by_hand(winner))] if has_heuristics else []),
        join(_ratio(lead(winner)), element("small", winner.baseline)) if winner.baseline else None,
        winner.gbps if unit == GBPS else winner.tflops,
        element("code", winner.candidate),
        join(day, f"{replayed}{contended}{policy_text(winner.policy)}"),
    )


def _against_default(winner: Trial) -> Html:
    """Write the gain over the default, and which one it was where that is not the space's."""
    name = default_name(winner)
    if winner.is_default:
        return element("strong", f"is the {name}")
    ratio = _ratio(gain(winner))
    return ratio if name == SPACES_DEFAULT else join(ratio, element("small", name))


def _ratio(ratio: Ratio | None) -> Html:
    """Write a ratio with its interval, marked where it is clearly above or below one."""
    if ratio is None:
        return element("span", "not measured", class_="muted")
    kind = "up" if ratio.low > WORTH else "down" if ratio.high < 1.0 else "level"
    interval = element("small", f"{ratio.low:.2f}-{ratio.high:.2f}", class_="whole")
    return element("span", element("strong", f"{ratio.value:.2f}x"), interval, class_=kind)


def _group(winner: Trial, unit: str | None, longest: float) -> Html:
    names = {
        "winner": "bar-tuned",
        "default": "bar-default",
        "heuristic": "bar-default",
        winner.baseline: "bar-baseline",
    }
    bars = []
    for name, timing in _timings(winner).items():
        speed = _speed(winner, timing, unit)
        text = short_time_text(timing.median_us)
        bars.append(Bar(name, [(names[name], speed / longest)], f"{three_digits(speed)}, {text}" if unit else text))
    return element("div", element("h5", problem_text(winner)), bar_rows(bars), class_="group")


def _timings(winner: Trial) -> Mapping[str, Timing]:
    known = {
        "winner": winner.timing,
        "default": winner.default_timing,
        "heuristic": winner.heuristic_timing,
        winner.baseline: winner.baseline_timing,
    }
    return {name: timing for name, timing in known.items() if timing is not None and name}


def _speed(winner: Trial, timing: Timing, unit: str | None) -> float:
    """Return a rate in this unit, or without one the speed as a share of the fastest of its race."""
    if unit is None:
        return min(each.median_us for each in _timings(winner).values()) / timing.median_us
    rate = winner.gbps if unit == GBPS else winner.tflops
    assert rate is not None
    return rate * median_us(winner) / timing.median_us


def _difference(winner: Trial) -> float:
    """Return the distance of a winner from the default or, where that was not measured, from the baseline."""
    ratio = gain(winner) or lead(winner)
    return abs(math.log(ratio.value)) if ratio else 0.0


def _unit(winners: Sequence[Trial]) -> str:
    in_bytes = all(
        is_limited_by_memory(won.tflops, won.gbps, won.device.name, won.operation, won.shape) for won in winners
    )
    return GBPS if in_bytes else "TFLOP/s"


BY_FORMULA: Final = "intensity by formula, every byte moved once"

RatePoint = tuple[float, float]  # FLOPs a byte, TFLOP/s


def roofline_figures(
    operation: Operation[Any], device: Device, screenings: Sequence[Screening], winners: Sequence[Trial]
) -> list[Html]:
    """Draw a figure for each dtype that has times: every timed config as a point, the winners as larger ones."""
    best, screened = (
        grouped(trials, lambda trial: product_dtype(operation, trial.shape))
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
