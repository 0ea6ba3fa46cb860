"""The forms of output that ``bench`` has for shapes and suites, and the end of the command."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.console import interrupts
from autotune.console.output import print_json
from autotune.errors import UsageError
from autotune.table import write_comparisons


@dataclass(frozen=True, slots=True)
class Forms:
    """The wanted forms beside the tables for people: one text on standard output, and a Parquet file."""

    as_json: bool
    as_markdown: bool
    output: Path | None

    def check(self) -> None:
        """Raise UsageError where two texts are wanted, or the file cannot be written, before anything is measured."""
        if self.as_json and self.as_markdown:
            raise UsageError("--json and --markdown both print on standard output; leave out one")
        if self.output is None:
            return
        if self.output.is_dir():
            raise UsageError(f"output={str(self.output)!r} cannot be written: Is a directory")
        folder = next(parent for parent in self.output.absolute().parents if parent.exists())
        try:
            tempfile.TemporaryFile(dir=folder).close()  # permissions do not tell of read-only file systems
        except OSError as error:
            raise UsageError(f"output={str(self.output)!r} cannot be written: {error.strerror}") from error

    def hand_out(self, data: object, markdown: str, comparisons: Sequence[dict[str, Any]]) -> None:
        """Print and write; without comparisons the file stays as it was."""
        if self.as_json:
            print_json(data)
        elif self.as_markdown:
            print(markdown, end="")
        if self.output is not None and comparisons:
            write_comparisons(self.output, comparisons)


def end_as(ending: BaseException | None) -> None:
    """Raise the exception that ended the work early, once its output is written."""
    if isinstance(ending, KeyboardInterrupt):
        interrupts.stop()
    if ending is not None:
        raise ending
