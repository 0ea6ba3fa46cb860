"""How the commands print: text as it is, wrapped by nobody but the terminal; and what a long one is doing."""

import sys
from typing import Final

from rich.console import Console

PIPE_WIDTH: Final = 10_000  # a row of any table in one line, for whatever reads it


def make_console(as_json: bool = False) -> Console:
    """Where a command writes for people: standard output, or standard error where JSON takes the other.

    Messages of compilers and paths may hold brackets and colons, so nothing in a text is markup or an emoji.
    """
    console = Console(stderr=as_json, soft_wrap=True, markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def say(step: str) -> None:
    """Tell on standard error what begins, so that whoever waits sees that a long command lives."""
    print(f"{step} ...", file=sys.stderr, flush=True)
