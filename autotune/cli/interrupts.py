"""Ctrl-C and SIGTERM stop a command in the same way; its exit code says which it was."""

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final, NoReturn

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_received: int = signal.SIGINT


def leave_at_once() -> None:
    """Let Ctrl-C and SIGTERM end this process silently: while it imports, where nothing is to be kept yet.

    An exception that a signal raises inside an import is a long traceback, and some modules lose it or turn it into
    another one.
    """
    _handle(_leave)


def listen() -> None:
    """Let Ctrl-C and SIGTERM interrupt what this process does, so that it ends its children and keeps what it has."""
    _handle(_interrupt)


def exit_code() -> int:
    """What a shell expects of a process that a signal ended: 130 for Ctrl-C, 143 for SIGTERM."""
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
