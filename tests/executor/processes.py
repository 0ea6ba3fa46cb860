"""Lists the processes that a test has started and not ended, children of children included."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MARK = "AUTOTUNE_TEST_MARK"
PATIENCE_SECONDS = 20.0


class Processes:
    """Processes that inherited a mark in their environment; zombies do not count."""

    def __init__(self, mark: str) -> None:
        self._mark = f"{MARK}={mark}".encode()

    def living(self) -> set[int]:
        return {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_marked(pid)}

    def wait_until(self, condition: Callable[[set[int]], bool]) -> set[int]:
        """The living, once the condition holds of them: signals and starts take a moment."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition(living := self.living()):
            assert time.monotonic() < deadline, f"still living: {living}"
            time.sleep(0.005)
        return living

    def wait_for(self, count: int) -> set[int]:
        return self.wait_until(lambda living: len(living) == count)

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # gone meanwhile
            return False


@contextmanager
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """Mark what is started from here on; nothing of it may outlive the block."""
    mark = os.urandom(8).hex()
    monkeypatch.setenv(MARK, mark)
    processes = Processes(mark)
    try:
        yield processes
        processes.wait_for(0)
    finally:
        for pid in processes.living():
            os.kill(pid, signal.SIGKILL)
