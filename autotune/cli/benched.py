"""What ``bench`` of shapes and of suites share: the forms of output, a table in print, and the end of the command."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from autotune.cli import interrupts
from autotune.errors import UsageError
from autotune.table import write_comparisons


@dataclass(frozen=True, slots=True)
class Forms:
    """What is wanted beside what people read: one text on standard output, and a Parquet file."""

    as_json: bool
    as_markdown: bool
    output: Path | None

    def check(self) -> None:
        """Look at them before anything is measured.

        Raises:
            UsageError: two texts are wanted, or the file cannot be written.
        """
        if self.as_json and self.as_markdown:
            raise UsageError("--json and --markdown both print on standard output; leave out one")
        if self.output is None:
            return
        if self.output.is_dir():
            raise UsageError(f"output={str(self.output)!r} cannot be written: Is a directory")
        folder = next(parent for parent in self.output.absolute().parents if parent.exists())
        try:
            with tempfile.TemporaryFile(dir=folder):  # permissions do not tell of read-only file systems
                pass
        except OSError as error:
            raise UsageError(f"output={str(self.output)!r} cannot be written: {error.strerror}") from error

    def hand_out(self, data: object, markdown: str, comparisons: Sequence[dict[str, Any]]) -> None:
        """Print and write; where nothing was compared a file stays as it was.

        Raises:
            TableError: the file cannot be written.
        """
        if self.as_json:
            print(json.dumps(data, indent=2))
        elif self.as_markdown:
            print(markdown, end="")
        if self.output is not None and comparisons:
            write_comparisons(self.output, comparisons)


def end_as(ending: BaseException | None) -> None:
    """End as what ended the work, behind the output of what was there."""
    if isinstance(ending, KeyboardInterrupt):
        raise typer.Exit(interrupts.exit_code())
    if ending is not None:
        raise ending


def print_rows(
    console: Console, headers: Sequence[str], from_left: Sequence[bool], rows: Sequence[Sequence[str]]
) -> None:
    """A table of text; ``from_left`` says of each column whether it is aligned to the left."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header, is_text in zip(headers, from_left, strict=True):
        table.add_column(header, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
