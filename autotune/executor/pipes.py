"""The pipes between a parent and its children, and how a child ends with its parent."""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

_PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def take_standard_output() -> BinaryIO:
    """In a child: keep standard output for messages alone; whatever else is printed goes to standard error."""
    messages = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    return messages


def send(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    """Write one message as one line."""
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, however it ends (Linux only).

    The kernel means the *thread* that started this process: ``Child`` starts all from one that lasts. A parent that
    ended before this call is noticed by its process number: then this process ends here.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Take back what ``die_with_parent`` asked for."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)
