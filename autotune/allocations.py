"""The memory that a call holds, at most and at its end, as torch's allocators tell it."""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

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


def watch(call: Callable[[], T], kind: str) -> tuple[T, Held]:
    """Run a call on a device of that kind, ``"cpu"`` or ``"cuda"``; its result, and the memory that it held.

    On the CPU what a library allocates by itself (MKL's and oneDNN's buffers) is not seen, on a GPU neither what does
    not pass through torch's caching allocator, which counts whole blocks: up to a MiB more than was asked for.
    """
    return _watch_cuda(call) if kind == "cuda" else _watch_cpu(call)


def peak_of(call: Callable[[], object], kind: str) -> int:
    """Bytes that a call holds at most beyond those held before it, its result included."""
    return watch(call, kind)[1].peak


def extra_bytes(call: Callable[[], object], kind: str, *, prepared: int = 0) -> int:
    """Bytes that a call holds at most beside its result.

    Args:
        prepared: what was allocated for it beforehand and is held between its calls. A result of each call's own is no
            part of that; one that is the same tensor each time is, and is taken off.

    Example:
        >>> call, held = watch(lambda: Naive().prepare(shape, inputs), "cuda")
        >>> extra = extra_bytes(call, "cuda", prepared=held.kept)
    """
    result, held = watch(call, kind)
    storage = getattr(result, "untyped_storage", None)
    of_result = held.kept if held.kept > 0 or storage is None else storage().nbytes()
    return max(0, prepared + held.peak - of_result)


def _watch_cuda(call: Callable[[], T]) -> tuple[T, Held]:
    import torch

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    return result, Held(torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before)


def _watch_cpu(call: Callable[[], T]) -> tuple[T, Held]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        result = call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return result, held_by(events)


def held_by(events: list[dict[str, Any]]) -> Held:
    """The highest and the last running sum of a trace's ``[memory]`` events of the CPU; what was freed without being
    seen is not subtracted."""
    found = [event for event in events if event.get("name") == "[memory]"]
    live: dict[int, int] = {}
    highest = total = 0
    for event in sorted(found, key=lambda event: float(event["ts"])):
        details = event["args"]
        if details.get("Device Type") != CPU_DEVICE:
            continue
        if details["Bytes"] > 0:
            live[details["Addr"]] = details["Bytes"]
            total += details["Bytes"]
        else:
            total -= live.pop(details["Addr"], 0)
        highest = max(highest, total)
    return Held(highest, total)
