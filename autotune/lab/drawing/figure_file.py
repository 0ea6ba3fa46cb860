"""Figures as SVG files of their own: a drawing below its title, and scatter plots with a legend."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from autotune.errors import UsageError
from autotune.lab.drawing.chart import Chart
from autotune.lab.drawing.markup import Content, Html, element, figure_svg, join, number

HEAD: Final = 48  # the height of a title of two lines
STYLE: Final = (
    "svg{background:#fff;font-family:sans-serif}text{font-size:11px;fill:#222}.title{font-size:14px}"
    ".tick,.axis,.quiet{fill:#555}.middle{text-anchor:middle}.end{text-anchor:end}.grid{stroke:#ddd;stroke-width:.6}"
    ".line,.line-roof{fill:none;stroke:#0072B2;stroke-width:1.5}.line-roof{stroke:#000}.band{fill:#0072B2;opacity:.2}"
    ".ridge{stroke:#888;stroke-dasharray:2 3}.pale{opacity:.45}.ringed{stroke:#000;stroke-width:1.2}"
)
# Okabe and Ito's colours, which the colour-blind tell apart (jfly.uni-koeln.de/color, 2008).
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
# Outlines around the origin, about 8 units wide: circle, square, two triangles, diamond.
MARKERS: Final = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.5 -3.5h7v7h-7z",
    "M0 -4.5L4.5 3.5H-4.5z",
    "M0 4.5L4.5 -3.5H-4.5z",
    "M0 -5L5 0L0 5L-5 0z",
)
LINE, LEGEND = 16, 190  # the height of a line and the width of the legend


def check_figure(path: Path) -> None:
    """Raise UsageError unless this path ends with .svg and its folder exists, before anything is measured for it."""
    if path.suffix.lower() != ".svg":
        expected = path.with_suffix(".svg").name
        raise UsageError(f"figure={str(path)!r} is not allowed: figures are drawn as SVG; expected {expected!r}")
    if not path.parent.is_dir():
        raise UsageError(f"figure={str(path)!r} lies in no folder; expected one that exists")


def write_figure(path: Path, title: Sequence[str], width: float, height: float, *children: Content) -> None:
    """Write a drawing of this size below a title of at most two lines; the path is checked by ``check_figure``."""
    check_figure(path)
    lines = [element("text", text, x=8, y=20 + 18 * index, class_="title") for index, text in enumerate(title)]
    below = element("g", *children, transform=f"translate(0 {HEAD})")
    svg = figure_svg(title[0], " ".join(title[1:]), width, height + HEAD, element("style", Html(STYLE)), *lines, below)
    sized = f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(width)}" height="{number(height + HEAD)}"'
    path.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{svg.replace("<svg", sized, 1)}\n', encoding="utf-8")


class Dot(NamedTuple):
    """A point of a scatter plot; the ringed ones stand out, the pale ones stand back."""

    x: float
    y: float
    name: str
    variant: str
    kind: str = ""  # "", "ringed" or "pale"


def write_scatter(path: Path, title: Sequence[str], panels: Sequence[tuple[Chart, Sequence[Dot], Html | None]]) -> None:
    """Write panels side by side below a title, with one legend for all of them.

    Each panel is a chart, its dots, and what is drawn below the dots. The path is checked by ``check_figure``.
    """
    dots = [dot for _, own, _ in panels for dot in own]
    names, variants = (list(dict.fromkeys(each)) for each in ([d.name for d in dots], [d.variant for d in dots]))
    looks = {(d.name, d.variant): (names.index(d.name), variants.index(d.variant)) for d in dots}
    drawn, left = [], 0
    for chart, own, below in panels:
        marks = (_mark(chart.x(dot.x), chart.y(dot.y), *looks[dot.name, dot.variant], dot.kind) for dot in own)
        drawn.append(element("g", chart.axes(), below, *marks, transform=f"translate({left} 0)"))
        left += chart.width
    legend = [
        join(
            _mark(left + 12, LINE * (index + 1), *look, ""),
            element("text", ", ".join(label), x=left + 22, y=LINE * (index + 1) + 4),
        )
        for index, (label, look) in enumerate(looks.items())
    ]
    height = max(*(chart.height for chart, _, _ in panels), LINE * (len(looks) + 1))
    write_figure(path, title, left + LEGEND, height, *drawn, *legend)


def _mark(x: float, y: float, colour: int, marker: int, kind: str) -> Html:
    place = f"translate({number(x)} {number(y)})" + (" scale(1.35)" if kind == "ringed" else "")
    outline, fill = MARKERS[marker % len(MARKERS)], COLOURS[colour % len(COLOURS)]
    return element("path", d=outline, transform=place, fill=fill, class_=kind or None)
