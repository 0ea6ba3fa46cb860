"""The generation of tables and environment: what answers rest on is read once in each, and anew in the next."""

import os
from functools import cache
from typing import Final

from autotune.dispatch import table_reading
from autotune.dispatch.pins import Switches, read_switches
from autotune.process_lock import ProcessLock

_number = 0
_lock: Final = ProcessLock()


def current_generation() -> int:
    """Return the number of the generation; who asks several things for one answer asks all of them of one number."""
    return _number


def begin_generation() -> None:
    """Read tables and environment again when they are asked next."""
    global _number
    with _lock:
        _number += 1
    table_reading.forget()
    switches_of.cache_clear()


@cache
def switches_of(generation: int) -> Switches:
    """Read the environment, once a generation."""
    return read_switches(os.environ)
