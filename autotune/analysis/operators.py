"""What took the time of a profile: operators of the CPU, or kernels of a device, by the time that is their own."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from autotune.comparison.suites.operators import is_operator

Place = Literal["cpu", "cuda", "hpu"]

TOP: Final = 8  # operators that are listed
STEP: Final = "autotune step"  # what a step is called in a trace
ADDRESS: Final = re.compile(r" object at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """An operator, or on a device a kernel, over the recorded steps of all cycles: its own time, without what it calls.

    ``share`` is its part of the time of all.
    """

    name: str
    calls: int
    milliseconds: float
    share: float


def top_operators(averages: Iterable[Any], place: Place, *, count: int = TOP) -> tuple[tuple[OperatorTime, ...], Place]:
    """The operators that took longest by themselves, from the profiler's averages, and what their time is of.

    On a device those are its kernels; where the profiler saw none, which some installations do not permit, the CPU's
    operators are listed instead.
    """
    events = [event for event in averages if not str(event.key).startswith(STEP)]
    on_cpu = [event for event in events if event.device_type.name == "CPU" and is_operator(event, on_device=False)]
    if place != "cpu":
        on_device = [
            event for event in events if event.device_type.name != "CPU" and is_operator(event, on_device=True)
        ]
        found = _largest([(event.key, event.count, event.self_device_time_total) for event in on_device], count)
        if found:
            return found, place
    return _largest([(event.key, event.count, event.self_cpu_time_total) for event in on_cpu], count), "cpu"


def _largest(found: Sequence[tuple[str, int, float]], count: int) -> tuple[OperatorTime, ...]:
    total = sum(microseconds for _, _, microseconds in found)
    ordered = sorted((item for item in found if item[2] > 0), key=lambda item: (-item[2], item[0]))[:count]
    return tuple(OperatorTime(ADDRESS.sub("", name), calls, us / 1e3, us / total) for name, calls, us in ordered)
