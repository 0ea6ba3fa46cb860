"""HTML and SVG as text that is escaped by construction: a plain string becomes text, only ``Html`` stays markup."""

import html
from typing import Final

from autotune.sheets import Sheet, html_table
from autotune.units import count_text

VOID: Final = frozenset({"meta", "br", "rect", "line", "circle", "path", "polyline", "polygon", "use"})


class Html(str):
    """Markup that is safe to embed as it is."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


Content = object  # written by ``str``; None is left out


def element(name: str, *children: Content, **attributes: object) -> Html:
    """Write an element with attributes and children; None is left out, everything but ``Html`` is escaped.

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


def join(*children: Content) -> Html:
    """Concatenate markup and text."""
    known = (child for child in children if child is not None)
    return Html("".join(child if isinstance(child, Html) else html.escape(str(child)) for child in known))


def figure_svg(title: str, description: str, width: float, height: float, *children: Content, kind: str = "") -> Html:
    """Write an SVG drawing with a title and a description for screen readers; ``kind`` names its class."""
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


def figure(caption: str, remark: str | None, *children: Content) -> Html:
    """Write a figure below its caption, with an optional remark in small print."""
    return element("figure", element("figcaption", caption, element("small", remark) if remark else None), *children)


def left_out(count: int, noun: str, text: str) -> Html | None:
    """Write how many items are left out, such as ``2 more winners not listed.``; None where all are there."""
    return element("p", f"{count_text(count, noun)} {text}", class_="note") if count else None


def table(sheet: Sheet) -> Html:
    """Write a sheet's table in a box that scrolls; cells of ``Html`` stay markup."""
    return Html(html_table(sheet))


def number(value: float) -> str:
    """Format a coordinate with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")


def _attribute(key: str, value: object) -> str:
    name = key.removesuffix("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = number(value) if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(text, quote=True)}"'
