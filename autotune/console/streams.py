"""Standard output and error that outlive their readers: ``autotune search | head`` still keeps its winner.

Tracebacks go there without credentials.
"""

import io
import os
import sys
from typing import Any, Final, TextIO

from autotune.redaction import redacted

OUTPUT, ERROR = 1, 2  # their descriptors
GOES_ON: Final = "autotune: standard output was closed: the rest is not printed, the command still does its work"

_reports_closing = False


def outlive_readers() -> None:
    """Drop output once its reader has left, and let the command end as usual."""
    sys.stdout = _lasting(sys.stdout, OUTPUT)
    sys.stderr = _lasting(sys.stderr, ERROR)


def print_traceback(*raised: Any) -> None:
    """Print an exception that nobody foresaw, with the credentials in its texts left out (``sys.excepthook``)."""
    import traceback

    error = next(each for each in raised if isinstance(each, BaseException))
    print(redacted("".join(traceback.format_exception(error))), end="", file=sys.stderr)


def report_closing() -> None:
    """Report on standard error when standard output is closed: for commands that do more than print."""
    global _reports_closing
    _reports_closing = True


class _Lasting(io.FileIO):
    """A descriptor that becomes the null device when its reader leaves, for the processes started after it too."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _discard(self.fileno())  # Python writes what is left once more when it ends
            if not isinstance(error, BrokenPipeError):
                error.filename = "standard output" if self.fileno() == OUTPUT else "standard error"
                raise
        if self.fileno() == OUTPUT and _reports_closing:
            print(GOES_ON, file=sys.stderr)
        return len(data)


def _lasting(stream: TextIO | None, descriptor: int) -> TextIO:
    """Reopen a stream on a descriptor that lasts; Python has None for one that was closed before the start."""
    if stream is None:
        _discard(descriptor)  # a file that is opened later would take its number, and be printed into
        return open(descriptor, "w", encoding="utf-8", closefd=False)
    raw = _Lasting(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=bool(stream.line_buffering or getattr(stream, "write_through", False)),  # of python -u
    )


def _discard(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
