"""The winners of one operation on one device: their gains over the default, and the baselines measured beside them."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from autotune import sheets
from autotune.console.winners import WORTH, Ratio, gain, is_limited_by_memory, lead, policy_text
from autotune.lab.drawing.bars import Bar, bar_rows, legend
from autotune.lab.drawing.markup import Html, element, figure, join, left_out, table
from autotune.lab.report.screening import median_us, problem_text
from autotune.shape import Shape
from autotune.sheets import Sheet
from autotune.trial import Policy, Timing, Trial
from autotune.units import count_text, short_time_text, three_digits

MAX_ROWS: Final = 500  # of a table; more are counted
MAX_COMPARED: Final = 40  # in the figure
GBPS: Final = "GB/s"

Anchors = Mapping[tuple[str, Shape, Policy], str]  # the places of screenings' details on the page


def winners_section(winners: Sequence[Trial], anchors: Anchors) -> Html:
    """Return the table of the winners and the bars that compare them; winners beyond the limits are counted."""
    unit = _unit(winners)
    columns = (
        sheets.text("problem"),
        sheets.timing(),
        sheets.text("against default"),
        sheets.text("against baseline"),
        sheets.rate(unit, unit),
        sheets.text("winner"),
        sheets.text("from"),
    )
    rows = tuple(_row(winner, unit, anchors) for winner in winners[:MAX_ROWS])
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


def _row(winner: Trial, unit: str, anchors: Anchors) -> tuple[object, ...]:
    target = anchors.get((winner.implementation, winner.shape, winner.policy))
    name = str(winner.shape)
    replayed = ", replayed" if winner.executor == "replay" else ""
    contended = ", contended" if winner.outcome.conditions.contended else ""
    day = element("span", f"{winner.started_at:%Y-%m-%d}", class_="whole")
    return (
        element("a", name, href=f"#{target}") if target else name,
        winner.timing,
        element("strong", "is the default") if winner.is_default else _ratio(gain(winner)),
        join(_ratio(lead(winner)), element("small", winner.baseline)) if winner.baseline else None,
        winner.gbps if unit == GBPS else winner.tflops,
        element("code", winner.candidate),
        join(day, f"{replayed}{contended}{policy_text(winner.policy)}"),
    )


def _ratio(ratio: Ratio | None) -> Html:
    """Write a ratio with its interval, marked where it is clearly above or below one."""
    if ratio is None:
        return element("span", "not measured", class_="muted")
    kind = "up" if ratio.low > WORTH else "down" if ratio.high < 1.0 else "level"
    interval = element("small", f"{ratio.low:.2f}-{ratio.high:.2f}", class_="whole")
    return element("span", element("strong", f"{ratio.value:.2f}x"), interval, class_=kind)


def _group(winner: Trial, unit: str | None, longest: float) -> Html:
    names = {"winner": "bar-tuned", "default": "bar-default", winner.baseline: "bar-baseline"}
    bars = []
    for name, timing in _timings(winner).items():
        speed = _speed(winner, timing, unit)
        text = short_time_text(timing.median_us)
        bars.append(Bar(name, [(names[name], speed / longest)], f"{three_digits(speed)}, {text}" if unit else text))
    return element("div", element("h5", problem_text(winner)), bar_rows(bars), class_="group")


def _timings(winner: Trial) -> Mapping[str, Timing]:
    known = {"winner": winner.timing, "default": winner.default_timing, winner.baseline: winner.baseline_timing}
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
    in_bytes = all(is_limited_by_memory(won.tflops, won.gbps, won.device.name, won.shape) for won in winners)
    return GBPS if in_bytes else "TFLOP/s"
