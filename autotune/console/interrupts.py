"""Ctrl-C and SIGTERM: both interrupt a command in the same way, and its exit code tells them apart."""

import itertools
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final, NoReturn

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_received: int = signal.SIGINT


def is_command() -> bool:
    """Return True in a process of the command, even while it still imports this package, and nowhere else."""
    started = (getattr(sys, "argv", None) or [""])[0]  # "-m" while ``python -m`` looks for its module
    is_module = started == "-m" and ("-m", "autotune") in itertools.pairwise(sys.orig_argv)
    return is_module or os.path.basename(started) in ("autotune", "autotune.exe")


def leave_at_once() -> None:
    """Let Ctrl-C and SIGTERM end this process silently: while it imports, before there are results.

    An exception that a signal raises inside an import is a long traceback, and some modules swallow or replace it.
    """
    _handle(_leave)


def stop_at_once() -> NoReturn:
    """End this process as ``leave_at_once`` lets Ctrl-C do."""
    _leave(signal.SIGINT, None)


def listen() -> None:
    """Let Ctrl-C and SIGTERM raise KeyboardInterrupt, so that this process ends its children and keeps its results."""
    _handle(_interrupt)


def exit_code() -> int:
    """Return the exit code that a shell expects after a signal: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + _received


def _handle(handler: Callable[[int, FrameType | None], NoReturn]) -> None:
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell's background jobs ignore Ctrl-C
            signal.signal(number, handler)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    os._exit(128 + number)


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    global _received
    _received = number
    raise KeyboardInterrupt


def stop() -> NoReturn:
    """End the command with the exit code of the signal that interrupted it."""
    sys.exit(exit_code())
