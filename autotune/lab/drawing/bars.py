"""Horizontal bars whose labels are text of the page, so that they wrap on a phone and are read aloud."""

from collections.abc import Sequence
from typing import NamedTuple

from autotune.lab.drawing.markup import Content, Html, element


class Bar(NamedTuple):
    """One bar: its label, its stacked parts as (kind, share of the full length), and its value as text."""

    label: Content
    parts: Sequence[tuple[str, float]]
    text: str


def bar_rows(bars: Sequence[Bar]) -> Html:
    """Draw bars one below the other, label to the left and value to the right."""
    cells = []
    for bar in bars:
        cells += [
            element("dt", bar.label),
            element("dd", _drawing(bar.parts), element("span", bar.text, class_="value")),
        ]
    return element("dl", *cells, class_="bars")


def legend(entries: Sequence[tuple[str, str]]) -> Html:
    """Draw a legend from entries of (kind, text)."""
    keys = (
        element(
            "span",
            element("svg", _rectangle(kind, 0, 16, 16), class_="swatch", viewBox="0 0 16 16", aria_hidden="true"),
            words,
        )
        for kind, words in entries
    )
    return element("p", *keys, class_="legend")


def _drawing(parts: Sequence[tuple[str, float]]) -> Html:
    """Draw the bar itself; a screen reader skips it, since its value stands beside it as text."""
    start, drawn = 0.0, []
    for kind, share in parts:
        drawn.append(_rectangle(kind, start, 1000 * share, 10))
        start += 1000 * share
    return element("svg", *drawn, class_="bar", viewBox="0 0 1000 10", preserveAspectRatio="none", aria_hidden="true")


def _rectangle(kind: str, start: float, width: float, height: int) -> Html:
    return element("rect", x=start, y=0, width=width, height=height, class_=kind)
