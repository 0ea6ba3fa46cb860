"""Tables as typed data, and their renderers in Markdown, HTML and JSON; ``autotune.console.output`` has the fourth.

A cell is a value, which its column formats; a text, which every renderer shows as it is; or None, an empty cell. JSON
has the values themselves.
"""

import html
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from autotune import units
from autotune.errors import printable
from autotune.trial import Timing

MAX_WHOLE: Final = 60  # rows of an HTML table that is shown whole; a longer one scrolls


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading, its unit in JSON, the alignment of its cells (words to the left), and the text of a value."""

    name: str
    unit: str = ""
    is_text: bool = False
    format: Callable[[Any], str] = str

    def text(self, cell: object) -> str:
        """Return a cell as people read it."""
        if cell is None:
            return ""
        return cell if isinstance(cell, str) else self.format(cell)


def number(name: str, form: str = ",", unit: str = "") -> Column:
    """Make a column of numbers in a format specification."""
    return Column(name, unit, format=lambda value: format(value, form))


def rate(name: str, unit: str) -> Column:
    """Make a column of rates whose unit stands in its heading."""
    return Column(name, unit, format=units.three_digits)


def _columns(unit: str, form: Callable[[Any], str], usual_name: str = "") -> Callable[..., Column]:
    """Return what makes columns of one kind, given their name; it may be left out where there is a usual one."""
    return lambda name=usual_name: Column(name, unit, format=form)


text: Final = partial(Column, is_text=True)
time: Final = _columns("us", units.time_text, "time")  # of microseconds
timing: Final = _columns("us", units.timing_text, "time")  # of ``Timing``: the median with its interval
tflops: Final = _columns("TFLOP/s", units.tflops_text, "rate")
gbps: Final = _columns("GB/s", units.gbps_text, "rate")
mib: Final = _columns("B", units.mib_text, "memory")  # of bytes
size: Final = _columns("B", units.bytes_text)  # of bytes, each in the unit that reads best
ratio: Final = _columns("", units.ratio_text)
percent: Final = _columns("", units.percent_text)  # of shares


@dataclass(frozen=True, slots=True)
class Sheet:
    """A title, a table, and lines below it; a sheet without rows is its title and its notes."""

    title: str = ""
    columns: tuple[Column, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
    notes: tuple[str, ...] = ()

    def texts(self) -> list[list[str]]:
        """Return the cells as people read them, row by row."""
        return [[column.text(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


def markdown(sheet: Sheet, *, level: int = 0) -> str:
    """Render a sheet as Markdown; the title is a heading of this level, or left out at level 0.

    Example:
        >>> print(markdown(Sheet("", (text("name"), time()), (("a|b", 84.2),))), end="")
        | name | time |
        | --- | ---: |
        | a\\|b | 84.2 us |
    """
    blocks = [f"{'#' * level} {sheet.title}"] if level and sheet.title else []
    if sheet.rows:
        rules = ["---" if column.is_text else "---:" for column in sheet.columns]
        texts = (
            [printable(cell.replace("\n", " ")).replace("|", "\\|") for cell in row]
            for row in (sheet.names, *sheet.texts())
        )
        blocks.append("\n".join(f"| {' | '.join(row)} |" for row in (next(texts), rules, *texts)))
    return "\n\n".join([*blocks, *sheet.notes]) + "\n"


def html_table(sheet: Sheet) -> str:
    """Render a sheet's table as HTML, in a box that scrolls sideways, and down if it is long; its title is the caption.

    A cell that has a method ``__html__`` is markup already; every other text is escaped. Notes are left out.
    """
    is_long = len(sheet.rows) > MAX_WHOLE
    small = f"<small>{len(sheet.rows):,} rows, scroll</small>" if is_long else ""
    head = "".join(_html_cell("th", column, column.name) for column in sheet.columns)
    body = "".join(
        f"<tr>{''.join(_html_cell('td', column, cell) for column, cell in zip(sheet.columns, row, strict=True))}</tr>"
        for row in sheet.rows
    )
    caption = html.escape(sheet.title)
    return (
        f'<div class="{"scroll long" if is_long else "scroll"}" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><caption>{caption}{small}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _html_cell(kind: str, column: Column, cell: object) -> str:
    attributes = ("" if column.is_text else ' class="number"') + (' scope="col"' if kind == "th" else "")
    markup = getattr(cell, "__html__", None)
    inner = html.escape(column.text(cell)) if markup is None else markup()
    return f"<{kind}{attributes}>{inner}</{kind}>"


def sheet_data(sheet: Sheet) -> dict[str, Any]:
    """Return a sheet as plain data for JSON: values as they were measured, with the unit of each column."""
    return {
        "title": sheet.title,
        "columns": [{"name": column.name, "unit": column.unit} for column in sheet.columns],
        "rows": [[_plain(cell) for cell in row] for row in sheet.rows],
        "notes": list(sheet.notes),
    }


def _plain(cell: object) -> object:
    if isinstance(cell, Timing):
        return asdict(cell)
    return cell if cell is None or isinstance(cell, bool | int | float | str) else str(cell)
