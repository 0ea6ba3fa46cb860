"""Sheets in Markdown, HTML and JSON."""

import json

from autotune import sheets
from autotune.sheets import Sheet
from autotune.trial import Timing

TIMES = Sheet(
    "Times <1>",
    (sheets.text("name"), sheets.time("a | b"), sheets.timing(), sheets.ratio("gain"), sheets.number("count")),
    (
        ("x|y", 84.2, Timing(6.247, 6.2, 6.3, 15), 1.236, 12345),
        ("<b>", None, "not run", None, None),
    ),
    ("a note",),
)


def test_markdown_aligns_columns_and_escapes_what_separates_cells() -> None:
    assert sheets.markdown(TIMES, level=2).splitlines() == [
        "## Times <1>",
        "",
        "| name | a \\| b | time | gain | count |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| x\\|y | 84.2 us | 6.247 us (6.200-6.300) | 1.24x | 12,345 |",
        "| <b> |  | not run |  |  |",
        "",
        "a note",
    ]


def test_a_sheet_without_rows_is_its_title_and_notes() -> None:
    empty = Sheet("Nothing", TIMES.columns, (), ("why",))
    assert sheets.markdown(empty, level=1) == "# Nothing\n\nwhy\n"


class Markup(str):
    """Markup of its own."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def test_html_escapes_text_and_keeps_markup() -> None:
    table = sheets.html_table(TIMES)
    assert "<caption>Times &lt;1&gt;</caption>" in table
    assert '<td>x|y</td><td class="number">84.2 us</td>' in table
    assert "<td>&lt;b&gt;</td>" in table
    linked = Sheet("t", (sheets.text("a"),), ((Markup("<i>x</i>"),),))
    assert "<td><i>x</i></td>" in sheets.html_table(linked)


def test_a_long_html_table_says_that_it_scrolls() -> None:
    rows = tuple((str(row),) for row in range(sheets.MAX_WHOLE + 1))
    assert "<small>61 rows, scroll</small>" in sheets.html_table(Sheet("t", (sheets.text("a"),), rows))
    assert "scroll</small>" not in sheets.html_table(Sheet("t", (sheets.text("a"),), rows[1:]))


def test_data_has_values_and_units() -> None:
    data = json.loads(json.dumps(sheets.sheet_data(TIMES)))
    assert data["columns"][1] == {"name": "a | b", "unit": "us"}
    assert data["rows"][0][1:4] == [84.2, {"median_us": 6.247, "low_us": 6.2, "high_us": 6.3, "samples": 15}, 1.236]
    assert data["rows"][1] == ["<b>", None, "not run", None, None]
    assert data["notes"] == ["a note"]
