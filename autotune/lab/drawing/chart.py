"""Axes, lines, bands and points as SVG that follows the page's colours; sized to be read on a phone."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from autotune.lab.drawing.markup import Content, Html, element, figure_svg, join, number
from autotune.roofline import Roof

WIDTH: Final = 360
HEIGHT: Final = 250
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 14, 40
ROOF_WIDTH, ROOF_HEIGHT = 420, 300
CHARACTER: Final = 5.6  # the width of one of a name, roughly

MARGIN: Final = 1.2  # times the outermost values that a padded axis reaches
MIN_TICKS: Final = 3  # of a logarithmic axis: two do not show that it is one
REGRET_KNEE: Final = 0.01  # a regret of 1 % is where measurement begins to tell configs apart
REGRET_TICKS: Final = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale from values to the unit interval, with its ticks and its name."""

    name: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    bend: Callable[[float], float]

    def place(self, value: float) -> float:
        """Map a value to the unit interval; values beyond an end are placed at that end."""
        first, last = self.bend(self.low), self.bend(self.high)
        return min(1.0, max(0.0, (self.bend(value) - first) / (last - first)))


def log_axis(name: str, values: Iterable[float]) -> Axis:
    """Make a logarithmic axis around positive values, with ticks at 1, 2 and 5 of a decade, or at equal steps."""
    known = list(values)
    low, high = min(known), max(known)
    if high < 1.5 * low:
        low, high = low / 1.25, high * 1.25
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    span = math.log10(high / low)
    steps = (1, 2, 5) if span < 2 else (1, 3) if span < 3.5 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    shown = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
    if len(shown) < MIN_TICKS:
        shown = _equal_steps(low, high)
    return Axis(name, low, high, tuple((tick, _short(tick)) for tick in shown), math.log10)


def padded_axis(name: str, values: Iterable[float]) -> Axis:
    """Make a logarithmic axis with a margin, so that no value lies on the frame."""
    known = list(values)
    return log_axis(name, [min(known) / MARGIN, max(known) * MARGIN])


def regret_axis(name: str, values: Iterable[float]) -> Axis:
    """Make an axis of regrets from 0: linear below 1 %, logarithmic above."""
    high = max(3 * REGRET_KNEE, *(value for value in values if math.isfinite(value)), REGRET_KNEE)
    ticks = tuple((tick, f"{100 * tick:.0f} %") for tick in REGRET_TICKS if tick <= high)
    return Axis(name, 0.0, high, ticks, lambda value: math.log1p(value / REGRET_KNEE))


@dataclass(frozen=True, slots=True)
class Chart:
    """A plotting area of two axes; what is drawn is clipped to it by ``Axis.place``."""

    across: Axis
    up: Axis
    width: int = WIDTH
    height: int = HEIGHT

    def x(self, value: float) -> float:
        return LEFT + self.across.place(value) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self.height - BOTTOM - self.up.place(value) * (self.height - TOP - BOTTOM)

    def axes(self) -> Html:
        """Draw grid lines, tick labels and the names of both axes."""
        left, right, top, bottom = (float(edge) for edge in (LEFT, self.width - RIGHT, TOP, self.height - BOTTOM))
        parts = []
        for tick, text in self.across.ticks:
            x = self.x(tick)
            parts += [
                element("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"),
                element("text", text, x=x, y=bottom + 15, class_="tick middle"),
            ]
        for tick, text in self.up.ticks:
            y = self.y(tick)
            parts += [
                element("line", x1=left, x2=right, y1=y, y2=y, class_="grid"),
                element("text", text, x=left - 6, y=y + 4, class_="tick end"),
            ]
        return join(
            *parts,
            element("text", self.across.name, x=(left + right) / 2, y=float(self.height - 6), class_="axis middle"),
            element("text", self.up.name, x=left - 40, y=top - 3, class_="axis"),
        )

    def drawing(self, title: str, description: str, *children: Content, kind: str = "") -> Html:
        """Write the axes and what is drawn over them as ``figure_svg`` does."""
        return figure_svg(title, description, self.width, self.height, self.axes(), *children, kind=kind)

    def line(self, xs: Sequence[float], ys: Sequence[float], kind: str, *, stepped: bool = False) -> Html:
        """Draw a line through the finite points; ``stepped`` holds each value until the next."""
        points = [(self.x(x), self.y(y)) for x, y in zip(xs, ys, strict=True) if math.isfinite(y)]
        if stepped:
            steps = [((x, held), (x, y)) for (_, held), (x, y) in itertools.pairwise(points)]
            points = [point for point, _ in itertools.groupby(itertools.chain(points[:1], *steps))]
        return element("path", d=_path(points), class_=kind) if points else Html("")

    def band(self, xs: Sequence[float], low: Sequence[float], high: Sequence[float], kind: str) -> Html:
        """Draw the area between two lines, up to the top of the chart where the upper one is not finite."""
        known = [(x, a, b) for x, a, b in zip(xs, low, high, strict=True) if math.isfinite(a)]
        if not known:
            return Html("")
        below = [(self.x(x), self.y(a)) for x, a, _ in known]
        above = [(self.x(x), self.y(b if math.isfinite(b) else self.up.high)) for x, _, b in known]
        return element("path", d=f"{_path([*below, *reversed(above)])}z", class_=kind)

    def dots(self, points: Iterable[tuple[float, float]], kind: str) -> Html:
        """Draw round points as one path, a hundredth of the size of as many circles."""
        marks = dict.fromkeys(f"M{number(self.x(x))} {number(self.y(y))}h0" for x, y in points)
        return element("path", d="".join(marks), class_=kind) if marks else Html("")

    def names(self, points: Sequence[tuple[float, float, str]]) -> Html:
        """Write names beside points; leave out those that would cover another name or point, or leave the chart."""
        centres = [(self.x(x), self.y(y), name) for x, y, name in points]
        taken = [(x - 4, y - 4, x + 4, y + 4) for x, y, _ in centres]
        parts = []
        for x, y, name in centres:
            width = CHARACTER * len(name)
            for left, base in _places(x, y, width):
                right, top, bottom = left + width, base - 9, base + 2
                inside = left >= LEFT and right <= self.width - RIGHT and top >= TOP and bottom <= self.height - BOTTOM
                covered = (left < x1 and x0 < right and top < y1 and y0 < bottom for x0, y0, x1, y1 in taken)
                if inside and not any(covered):
                    taken.append((left, top, right, bottom))
                    parts.append(element("text", name, x=left, y=base, class_="tick"))
                    break
        return join(*parts)


def roof_chart(
    across: str,
    up: str,
    points: Sequence[tuple[float, float]],
    roof: Roof | None,
    *,
    width: int = ROOF_WIDTH,
    height: int = ROOF_HEIGHT,
) -> tuple[Chart, Html | None]:
    """Return a chart of points (FLOPs a byte, rate) and both sides of a roof, and the roof's line if there is one."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    if roof is None:
        return Chart(padded_axis(across, xs), padded_axis(up, ys), width, height), None
    intensity = padded_axis(across, [*xs, roof.ridge / 2, roof.ridge * 2])
    chart = Chart(intensity, padded_axis(up, [*ys, roof.tflops]), width, height)
    corners = [intensity.low, roof.ridge, intensity.high]
    return chart, chart.line(corners, [roof.attainable(x) for x in corners], "line-roof")


def _equal_steps(low: float, high: float) -> list[float]:
    """Return multiples of 1, 2 or 5 of a decade between two values, by the widest step that gives enough ticks."""
    decade = math.floor(math.log10(high))
    steps = (step * 10.0**power for power in itertools.count(decade, -1) for step in (5, 2, 1))
    found = ([n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)] for step in steps)
    return next(ticks for ticks in found if len(ticks) >= MIN_TICKS)


def _places(x: float, y: float, width: float) -> Iterator[tuple[float, float]]:
    """Yield starts for a text of that width: right or left of a point, above or below it, centred or ending there."""
    yield from ((x + 7, y + 4), (x - 7 - width, y + 4))
    for base in (y - 8, y + 15):
        yield from ((x - width / 2, base), (x + 4 - width, base))


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{number(x)} {number(y)}" for x, y in points)


def _short(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"
