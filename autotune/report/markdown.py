"""Tables as Markdown."""

from collections.abc import Iterable, Sequence


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]], *, is_text: Sequence[bool]) -> list[str]:
    """The lines of a table; columns of text begin at the left, numbers end at the right.

    Example:
        >>> table_lines(["name", "us"], [["a|b", "12"]], is_text=[True, False])
        ['| name | us |', '| --- | ---: |', '| a\\\\|b | 12 |']
    """
    return [_row(row) for row in (head, ["---" if text else "---:" for text in is_text], *rows)]


def _row(values: Sequence[str]) -> str:
    escaped = (value.replace("|", "\\|") for value in values)
    return f"| {' | '.join(escaped)} |"
