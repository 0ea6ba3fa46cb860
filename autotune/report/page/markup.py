"""HTML and SVG as text that is escaped by construction: a plain string becomes text, only ``Html`` stays markup."""

import html
import math
from typing import Final

MAX_WHOLE: Final = 60  # rows of a table that is shown whole; a longer one scrolls, and says so
VOID: Final = frozenset({"meta", "br", "rect", "line", "circle", "path", "polyline", "polygon", "use"})


class Html(str):
    """Markup that is safe to embed as it is."""

    __slots__ = ()


Child = object  # written by ``str``; None is left out


def element(name: str, *children: Child, **attributes: object) -> Html:
    """An element with attributes and children; None is left out, everything but ``Html`` is escaped.

    Attributes are written as Python allows: ``class_`` for ``class``, ``aria_label`` for ``aria-label``; True writes
    the name alone.

    Example:
        >>> element("td", "a < b", class_="number")
        '<td class="number">a &lt; b</td>'
    """
    written = "".join(
        _attribute(key, value) for key, value in attributes.items() if value is not None and value is not False
    )
    inner = join(*children)
    if name in VOID and not inner:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{inner}</{name}>")


def join(*children: Child) -> Html:
    """Markup and text one after the other."""
    return Html("".join(_text(child) for child in children if child is not None))


def figure_svg(title: str, description: str, width: float, height: float, *children: Child, kind: str = "") -> Html:
    """A drawing that says what it is to those who do not see it; ``kind`` names its class."""
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *children,
        class_=kind or None,
        role="img",
        aria_label=f"{title}. {description}",
        viewBox=f"0 0 {number(width)} {number(height)}",
    )


def table(head: list[Child], rows: list[list[Child]], *, numbers: frozenset[int] = frozenset(), caption: str) -> Html:
    """A table in a box that scrolls sideways, a long one down, too; columns of ``numbers`` are set to the right."""

    def cell(kind: str, column: int, child: Child) -> Html:
        scope = "col" if kind == "th" else None
        return element(kind, child, class_="number" if column in numbers else None, scope=scope)

    header = element("tr", *(cell("th", column, child) for column, child in enumerate(head)))
    body = (element("tr", *(cell("td", column, child) for column, child in enumerate(row))) for row in rows)
    is_long = len(rows) > MAX_WHOLE
    title = element("caption", caption, element("small", f"{len(rows):,} rows, scroll") if is_long else None)
    inner = element("table", title, element("thead", header), element("tbody", *body))
    kind = "scroll long" if is_long else "scroll"
    return element("div", inner, class_=kind, tabindex=0, role="region", aria_label=caption)


def number(value: float) -> str:
    """A coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def percent(share: float) -> str:
    """A share in percent, with a decimal where it is small."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def count(value: int, noun: str) -> str:
    """``1 trial``, ``2,500 trials``."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{value:,} {noun if value == 1 else plural}"


def span_seconds(seconds: float) -> str:
    """A duration in the unit that reads best."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def short_time(microseconds: float) -> str:
    """A kernel's time with three digits."""
    scale, unit = (1.0, "us") if microseconds < 1000 else (1e3, "ms") if microseconds < 1e6 else (1e6, "s")
    value = microseconds / scale
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f} {unit}"


def _text(child: object) -> str:
    return child if isinstance(child, Html) else html.escape(str(child), quote=True)


def _attribute(key: str, value: object) -> str:
    name = key.removesuffix("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = number(value) if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(text, quote=True)}"'
