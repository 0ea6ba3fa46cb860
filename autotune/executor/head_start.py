"""A head start: the GPU's children are started before what their parent imports, and the budget runs from its start."""

import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from autotune import platforms
from autotune.executor.gpu_children import GpuChildren, start_children
from autotune.executor.settings import Settings

OWN_STATUS: Final = Path("/proc/self/stat")
START_FIELD: Final = 22  # of proc(5): ticks from the boot to this process's start
MAX_AGE_SECONDS: Final = 30.0  # of a process that begins to work; beyond, it is not what was started for it


@dataclass(frozen=True, slots=True)
class HeadStart:
    """The time at which the budget began to run, by ``time.monotonic()``, and the children that import meanwhile.

    Both are None where there is no GPU: the budget then runs from when the tuning begins.
    """

    started: float | None = None
    children: GpuChildren | None = None


@contextmanager
def head_start(settings: Settings, *, on_gpu: bool = True) -> Iterator[HeadStart]:
    """Start the children of a GPU if a driver is loaded; they are ended with the block, whoever used them.

    For a process that does this first: the budget runs from its start.
    """
    if not (on_gpu and platforms.has_driver()):
        yield HeadStart()
        return
    children = start_children(settings)
    try:
        yield HeadStart(process_started(), children)
    finally:
        children.close()


def process_started() -> float:
    """Return ``time.monotonic()`` at which this process was started; now where the system does not say."""
    now = time.monotonic()
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        fields = OWN_STATUS.read_text().rpartition(")")[2].split()  # the name before it may hold blanks
        ticks = int(fields[START_FIELD - 3])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
        if 0.0 <= age <= MAX_AGE_SECONDS:
            return now - age
    return now
