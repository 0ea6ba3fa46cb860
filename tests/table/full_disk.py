"""A disk that fills: what takes space fails from some point on, what frees space works."""

import errno
import math
import os
from collections.abc import Callable
from typing import Any

import pytest

from autotune.table import files

ENTRIES = ("mkdir", "fsync", "replace")  # a name needs space in its folder, and space may be allotted as late as fsync


class FullDisk:
    """Room for so many calls that take space, or for so many bytes: from then on the disk is full.

    The write that meets the limit is a short one, as on a real file system. Lasts as long as the monkeypatch.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, calls: float = math.inf, size: float = math.inf) -> None:
        self.calls = 0
        self.size = 0
        self._room = (calls, size)
        for name in ENTRIES:
            monkeypatch.setattr(os, name, self._entering(getattr(os, name)))
        write = os.write
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[: self._take(len(data))]))
        create = self._entering(open)
        monkeypatch.setattr(
            files,
            "open",
            lambda path, mode, **named: (create if "x" in mode else open)(path, mode, **named),
            raising=False,
        )

    def _entering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self._take(1)
            return original(*arguments, **named)

        return call

    def _take(self, wanted: int) -> int:
        """Return the bytes that a call gets, of those it wants."""
        room_calls, room_size = self._room
        self.calls += 1
        over = self.calls - room_calls
        fits = int(min(wanted, room_size - self.size)) if over <= 0 else wanted // 2 if over == 1 else 0
        if fits <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += fits
        return fits
