"""SVG files: a drawing with its title, its size and its style."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from autotune.errors import UsageError
from autotune.lab.drawing.markup import Content, Html, element, figure_svg, number

HEAD: Final = 48  # the height of a title of two lines
STYLE: Final = (
    "svg{background:#fff;font-family:sans-serif}text{font-size:11px;fill:#222}.title{font-size:14px}"
    ".tick,.axis,.quiet{fill:#555}.middle{text-anchor:middle}.end{text-anchor:end}.grid{stroke:#ddd;stroke-width:.6}"
    ".line,.line-roof{fill:none;stroke:#0072B2;stroke-width:1.5}.line-roof{stroke:#000}.band{fill:#0072B2;opacity:.2}"
    ".ridge{stroke:#888;stroke-dasharray:2 3}.pale{opacity:.45}.ringed{stroke:#000;stroke-width:1.2}"
)


def check_figure(path: Path) -> None:
    """Check that a figure can be written to this path, before anything is measured for it.

    Raises:
        UsageError: the ending is not .svg, or there is no such folder.
    """
    if path.suffix.lower() != ".svg":
        expected = path.with_suffix(".svg").name
        raise UsageError(f"figure={str(path)!r} is not allowed: figures are drawn as SVG; expected {expected!r}")
    if not path.parent.is_dir():
        raise UsageError(f"figure={str(path)!r} lies in no folder; expected one that exists")


def write_figure(path: Path, title: Sequence[str], width: float, height: float, *children: Content) -> None:
    """Write a drawing of this size below a title of at most two lines.

    Raises:
        UsageError: as ``check_figure``.
    """
    check_figure(path)
    lines = [element("text", text, x=8, y=20 + 18 * index, class_="title") for index, text in enumerate(title)]
    below = element("g", *children, transform=f"translate(0 {HEAD})")
    svg = figure_svg(title[0], " ".join(title[1:]), width, height + HEAD, element("style", Html(STYLE)), *lines, below)
    sized = f'<svg xmlns="http://www.w3.org/2000/svg" width="{number(width)}" height="{number(height + HEAD)}"'
    path.write_text(f'<?xml version="1.0" encoding="utf-8"?>\n{svg.replace("<svg", sized, 1)}\n', encoding="utf-8")
