"""Printing: text for people, sheets, JSON, and the steps of a long command."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

from rich.console import Console
from rich.table import Table

from autotune.sheets import Sheet

PIPE_WIDTH: Final = 10_000  # a row of any table in one line, for whatever reads it


def make_console(as_json: bool = False) -> Console:
    """Make the console for people: standard output, or standard error where JSON takes the other.

    Messages of compilers and paths may hold brackets and colons, so nothing in a text is markup or an emoji.
    """
    console = Console(stderr=as_json, soft_wrap=True, markup=False, emoji=False, highlight=False)
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
            table.add_column(column.name, justify="left" if column.is_text else "right", overflow="fold")
        for row in sheet.texts():
            table.add_row(*row)
        console.print(table)
    for note in sheet.notes:
        console.print(note)


def print_json(data: object) -> None:
    """Print data as JSON on standard output; dataclasses as their fields."""
    print(json.dumps(data, indent=2, default=asdict))


def say(step: str) -> None:
    """Print on standard error which step of a long command begins."""
    print(f"{step} ...", file=sys.stderr, flush=True)
