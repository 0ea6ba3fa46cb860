"""Measurement of the memory that a call holds, at most and at its end, by torch's allocators."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from autotune.platforms import platform_here

METHODS: Final = {
    "cpu": "torch's CPU allocator, every allocation and release of a run as its profiler records them",
    "cuda": "torch.cuda.max_memory_allocated over a run, after a first one",
}
CPU_DEVICE: Final = 0  # c10::DeviceType of the CPU in a trace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes beyond those held before a call: the most at one time, and those that are left while its result lives."""

    peak: int
    kept: int


def measure_held(call: Callable[[], T], kind: str) -> tuple[T, Held]:
    """Run a call on a device of that kind, ``"cpu"`` or ``"cuda"``; return its result and the memory that it held.

    A library's own buffers (MKL's, oneDNN's) are not seen, on a GPU nothing that does not pass through torch's caching
    allocator, which counts whole blocks: up to a MiB more than was asked for.
    """
    if kind == "cpu":
        return _measure_cpu(call)
    result, peak, kept = platform_here().measure_bytes(call)
    return result, Held(peak, kept)


def peak_of(call: Callable[[], object], kind: str) -> int:
    """Return the bytes that a call holds at most beyond those held before it, its result included."""
    return measure_held(call, kind)[1].peak


def extra_bytes(call: Callable[[], object], kind: str, *, prepared: int = 0) -> int:
    """Return the bytes that a call holds at most beside its result.

    Args:
        prepared: bytes allocated for it beforehand and held between its calls. A result of each call's own is no
            part of that; one that is the same tensor each time is, and is taken off.

    Example:
        >>> call, held = measure_held(lambda: Naive().prepare(shape, inputs), "cuda")
        >>> extra = extra_bytes(call, "cuda", prepared=held.kept)
    """
    result, held = measure_held(call, kind)
    storage = getattr(result, "untyped_storage", None)
    of_result = held.kept if held.kept > 0 or storage is None else storage().nbytes()
    return max(0, prepared + held.peak - of_result)


def _measure_cpu(call: Callable[[], T]) -> tuple[T, Held]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        result = call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return result, held_by(events)


def held_by(events: list[dict[str, Any]]) -> Held:
    """Return the highest and the last sum of a trace's ``[memory]`` events of the CPU; a release of memory whose
    allocation was not seen is not subtracted."""
    found = [event for event in events if event.get("name") == "[memory]"]
    live: dict[int, int] = {}
    highest = total = 0
    for details in (event["args"] for event in sorted(found, key=lambda event: float(event["ts"]))):
        if details.get("Device Type") != CPU_DEVICE:
            continue
        if details["Bytes"] > 0:
            live[details["Addr"]] = details["Bytes"]
            total += details["Bytes"]
        else:
            total -= live.pop(details["Addr"], 0)
        highest = max(highest, total)
    return Held(highest, total)
