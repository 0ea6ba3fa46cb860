"""A table as Markdown."""

from autotune.report.markdown import table_lines


def test_a_cell_may_hold_what_separates_cells() -> None:
    lines = table_lines(["name", "a | b"], [["x|y", "12"]], is_text=[True, False])
    assert lines == ["| name | a \\| b |", "| --- | ---: |", "| x\\|y | 12 |"]


def test_a_table_without_rows_is_its_head() -> None:
    assert table_lines(["name"], [], is_text=[False]) == ["| name |", "| ---: |"]
