"""Standard output and error that outlive who reads them: of ``autotune search | head`` the winner is still kept."""

import io
import os
import sys
from typing import Any, Final, TextIO

OUTPUT, ERROR = 1, 2  # their descriptors
GOES_ON: Final = "autotune: standard output was closed: the rest is not printed, the command still does its work"

_is_told = False


def outlive_readers() -> None:
    """Drop what is printed once nobody reads it any more, and let the command end as if somebody did."""
    sys.stdout = _lasting(sys.stdout, OUTPUT)
    sys.stderr = _lasting(sys.stderr, ERROR)


def tell_of_closing() -> None:
    """Say on standard error when standard output is closed: of commands that have more to do than to print."""
    global _is_told
    _is_told = True


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
        if self.fileno() == OUTPUT and _is_told:
            print(GOES_ON, file=sys.stderr)
        return len(data)


def _lasting(stream: TextIO | None, descriptor: int) -> TextIO:
    """The same stream with a descriptor that lasts. None is Python's for one that was closed before it began."""
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
