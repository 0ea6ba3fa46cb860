"""The worker's first steps, which need no torch: it finds the GPU and opens it while it imports what takes seconds."""

import os
import threading
from contextlib import suppress
from typing import BinaryIO

from autotune import platforms
from autotune.device import Device
from autotune.executor import messages
from autotune.executor.child import send
from autotune.executor.messages import encode


class Beginning:
    """Waits for ``Start`` in a thread, tells the parent which GPU it is, and opens its context.

    What the driver alone cannot do is left to torch: ``device`` is then None, or ``is_open`` False.
    """

    def __init__(self, requests: int, answers: BinaryIO, index: int) -> None:
        self.is_wanted = False
        self.device: Device | None = None
        self.is_open = False
        self.own_pid: int | None = None
        self._requests, self._answers, self._index = requests, answers, index
        self._thread = threading.Thread(target=self._begin, name="beginning of a GPU", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Wait until the thread has done what it can."""
        self._thread.join()

    def _begin(self) -> None:
        self.is_wanted = read_line(self._requests) != b""
        if not self.is_wanted:
            return
        with suppress(Exception):  # met again, and told, by torch
            found = platforms.find_gpu(self._index)
            if found is None:
                return
            send(self._answers, encode(messages.Identified(found.device, platforms.toolchain())))
            self.device = found.device
            self.own_pid = found.open()
            self.is_open = True


def read_line(stream: int) -> bytes:
    """Read one line and not a byte more; empty at the end of the input.

    A buffer would be locked by the thread that waits for it, and an import that fails could not end the process.
    """
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(stream, 1)
        if not byte:
            return b""
        line += byte
    return line
