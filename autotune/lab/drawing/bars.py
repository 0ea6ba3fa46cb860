"""Horizontal bars whose labels are text of the page, so that they wrap on a phone and are read aloud."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from autotune.lab.drawing.markup import Content, Html, element


class Bar(NamedTuple):
    """One bar: its label, its stacked parts as (kind, share of the full length), and its value as text."""

    label: Content
    parts: Sequence[tuple[str, float]]
    text: str


def bar_rows(bars: Iterable[Bar]) -> Html:
    """Draw bars one below the other, label to the left and value to the right."""
    cells = []
    for bar in bars:
        drawn, start = [], 0.0
        for kind, share in bar.parts:
            drawn.append(_rectangle(kind, start, 1000 * share, 10))
            start += 1000 * share
        box = {"viewBox": "0 0 1000 10", "preserveAspectRatio": "none"}
        drawing = element("svg", *drawn, class_="bar", **box, aria_hidden="true")  # its value stands beside it as text
        cells += [element("dt", bar.label), element("dd", drawing, element("span", bar.text, class_="value"))]
    return element("dl", *cells, class_="bars")


def legend(entries: Iterable[tuple[str | Html, str]]) -> Html:
    """Write a legend from entries of a mark and a text; a mark is a kind, or a drawing in a square of 16 units."""
    keys = []
    for mark, text in entries:
        drawn = mark if isinstance(mark, Html) else _rectangle(mark, 0, 16, 16)
        swatch = element("svg", drawn, class_="swatch", viewBox="0 0 16 16", aria_hidden="true")
        keys.append(element("span", swatch, text))
    return element("p", *keys, class_="legend")


def _rectangle(kind: str, start: float, width: float, height: int) -> Html:
    return element("rect", x=start, y=0, width=width, height=height, class_=kind)
