"""Ctrl-C and SIGTERM stop a command in the same way; its exit code says which it was."""

import signal
from types import FrameType
from typing import NoReturn

_received: int = signal.SIGINT


def listen() -> None:
    """Let SIGTERM interrupt this process as Ctrl-C does, so that it ends its children and keeps what it has."""
    signal.signal(signal.SIGTERM, _interrupt)


def exit_code() -> int:
    """What a shell expects of a process that a signal ended: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + _received


def _interrupt(number: int, _: FrameType | None) -> NoReturn:
    global _received
    _received = number
    raise KeyboardInterrupt
