"""The operators of a CPU, or kernels of a device, that took most of a profile's time by themselves."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from autotune.lab.bench.profile_rows import is_operator

TraceDevice = Literal["cpu", "cuda", "hpu"]

TOP: Final = 8  # operators that are listed
STEP: Final = "autotune step"  # what a step is called in a trace
ADDRESS: Final = re.compile(r" object at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """Own time of an operator, or on a device a kernel, over the recorded steps of all cycles, without what it calls.

    ``share`` is its part of the time of all.
    """

    name: str
    calls: int
    milliseconds: float
    share: float


def top_operators(
    averages: Iterable[Any], device: TraceDevice, *, count: int = TOP
) -> tuple[tuple[OperatorTime, ...], TraceDevice]:
    """Return the operators that took longest by themselves, and the device that their times are of.

    On a device those are its kernels; where the profiler saw none, which some installations do not permit, the CPU's
    operators are listed instead.
    """
    events = [event for event in averages if not str(event.key).startswith(STEP)]
    on_cpu = [event for event in events if event.device_type.name == "CPU" and is_operator(event, on_device=False)]
    if device != "cpu":
        on_device = [
            event for event in events if event.device_type.name != "CPU" and is_operator(event, on_device=True)
        ]
        found = _largest([(event.key, event.count, event.self_device_time_total) for event in on_device], count)
        if found:
            return found, device
    return _largest([(event.key, event.count, event.self_cpu_time_total) for event in on_cpu], count), "cpu"


def _largest(found: Sequence[tuple[str, int, float]], count: int) -> tuple[OperatorTime, ...]:
    total = sum(microseconds for _, _, microseconds in found)
    ordered = sorted((item for item in found if item[2] > 0), key=lambda item: (-item[2], item[0]))[:count]
    return tuple(OperatorTime(ADDRESS.sub("", name), calls, us / 1e3, us / total) for name, calls, us in ordered)
