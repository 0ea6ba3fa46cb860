"""The most memory that a call holds at one time, as torch's allocators tell it."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

METHODS: Final = {
    "cpu": "torch's CPU allocator, every allocation and release of a run as its profiler records them",
    "cuda": "torch.cuda.max_memory_allocated over a run, after a first one",
}
CPU_DEVICE: Final = 0  # c10::DeviceType of the CPU in a trace


def peak_of(call: Callable[[], Any], kind: str) -> int:
    """Bytes that a call holds at most beyond those held before it, its result included.

    On the CPU what a library allocates by itself (MKL's and oneDNN's buffers) is not seen, on a GPU neither what does
    not pass through torch's caching allocator.
    """
    return _cuda_peak(call) if kind == "cuda" else _cpu_peak(call)


def _cuda_peak(call: Callable[[], Any]) -> int:
    import torch

    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    del result
    return torch.cuda.max_memory_allocated() - before


def _cpu_peak(call: Callable[[], Any]) -> int:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        result = call()
        del result
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return highest_sum(events)


def highest_sum(events: list[dict[str, Any]]) -> int:
    """The highest running sum of a trace's ``[memory]`` events of the CPU; what was freed without being seen is not
    subtracted."""
    found = [event for event in events if event.get("name") == "[memory]"]
    held, highest = {}, 0
    live = 0
    for event in sorted(found, key=lambda event: float(event["ts"])):
        details = event["args"]
        if details.get("Device Type") != CPU_DEVICE:
            continue
        if details["Bytes"] > 0:
            held[details["Addr"]] = details["Bytes"]
            live += details["Bytes"]
        else:
            live -= held.pop(details["Addr"], 0)
        highest = max(highest, live)
    return highest
