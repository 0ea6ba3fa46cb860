"""Printing: text for people, sheets, JSON, and the steps of a long command."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from autotune.errors import printable
from autotune.redaction import redacted
from autotune.sheets import Sheet

PIPE_WIDTH: Final = 10_000  # a row of any table in one line, for whatever reads it


class PlainConsole(Console):
    """A console whose texts are characters alone: what a table or a compiler wrote draws nothing on a terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print texts and what rich draws; a text ends with no line break but its last."""
        super().print(*map(_as_shown, objects), **options)


def _as_shown(part: Any) -> Any:
    if not isinstance(part, str):
        return part
    line = part.rstrip("\n")
    return _shown(line) + part[len(line) :]


def _shown(text: str) -> str:
    return printable(redacted(text))


def make_console(as_json: bool = False) -> PlainConsole:
    """Make the console for people: standard output, or standard error where JSON takes the other.

    Messages of compilers and paths may hold brackets and colons, so nothing in a text is markup or an emoji.
    """
    console = PlainConsole(stderr=as_json, soft_wrap=True, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_sheets(console: Console, sheets: Iterable[Sheet]) -> None:
    """Print the title, the table and the notes of each sheet, with an empty line behind it."""
    for sheet in sheets:
        print_sheet(console, sheet)
        console.print()


def print_sheet(console: Console, sheet: Sheet) -> None:
    if sheet.title:
        console.print(sheet.title, style="bold")
    if sheet.rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in sheet.columns:
            table.add_column(_shown(column.name), justify="left" if column.is_text else "right", overflow="fold")
        for row in sheet.texts():
            table.add_row(*map(_shown, row))
        console.print(table)
    for note in sheet.notes:
        console.print(note)


def print_json(data: object) -> None:
    """Print data as JSON on standard output; dataclasses as their fields, URIs without credentials."""
    print(redacted(json.dumps(data, indent=2, default=asdict)))


def say(step: str) -> None:
    """Print on standard error which step of a long command begins."""
    print(f"{redacted(step)} ...", file=sys.stderr, flush=True)
