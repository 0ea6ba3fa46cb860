"""The processor that an analysis runs on, a CPU or a GPU: its name, last cache, parallelism and free memory."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from autotune import platforms
from autotune.errors import MissingDependencyError, UnknownNameError

ProcessorKind = Literal["cpu", "cuda"]
KINDS: Final = ("cpu", "cuda")

USUAL_CACHE: Final = 32 * 2**20  # bytes; where the system does not tell a CPU's
KEPT_FREE: Final = 0.8  # of the free memory at most is asked for: others compute here, too


@dataclass(frozen=True, slots=True)
class Processor:
    """``cache_bytes`` are the last-level cache's (a GPU's L2), ``units`` torch's threads or a GPU's multiprocessors."""

    kind: ProcessorKind
    name: str
    cache_bytes: int
    units: int

    def __str__(self) -> str:
        unit = "SMs" if self.kind == "cuda" else "thread" if self.units == 1 else "threads"
        cache = "L2" if self.kind == "cuda" else "last-level cache"
        return f"{self.name}, {self.units} {unit}, {self.cache_bytes / 2**20:.0f} MiB of {cache}"


def choose_kind(device: str | None) -> ProcessorKind:
    """Return the requested kind, by default the GPU where there is one; load no torch where there is no driver.

    UnknownNameError for another name, MissingDependencyError for ``"cuda"`` without a GPU.
    """
    if device is not None and device not in KINDS:
        raise UnknownNameError(f"device={device!r} is unknown; allowed: {', '.join(KINDS)}")
    if device == "cuda" and not platforms.has_gpu():
        raise MissingDependencyError("device='cuda': no GPU is visible; use 'cpu', or run `autotune doctor`")
    if device is None:
        return "cuda" if platforms.has_gpu() else "cpu"
    return "cuda" if device == "cuda" else "cpu"


def read_processor(kind: ProcessorKind) -> Processor:
    """Describe this machine's processor of that kind; MissingDependencyError without torch."""
    torch = _torch()
    if kind == "cpu":
        return Processor("cpu", platforms.processor_name(), _cpu_cache(), torch.get_num_threads())
    properties = torch.cuda.get_device_properties(0)
    return Processor("cuda", properties.name, properties.L2_cache_size, properties.multi_processor_count)


def usable_bytes(processor: Processor) -> int:
    """Return four fifths of the device's free memory, within the limit of a container."""
    if processor.kind == "cuda":
        torch = _torch()
        cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return int(KEPT_FREE * (torch.cuda.mem_get_info()[0] + cached))
    return int(KEPT_FREE * min(_available(), _container_room()))


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingDependencyError("measuring needs torch: pip install torch") from None
    return torch


def _cpu_cache() -> int:
    """Return the size of the largest cache that Linux lists for the first core."""
    texts = [_text(str(path)).strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    found = [int(text[:-1]) * units[text[-1]] for text in texts if re.fullmatch(r"\d+[KMG]", text)]
    return max(found, default=USUAL_CACHE)


def _available() -> int:
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", _text("/proc/meminfo"), re.MULTILINE)
    if found:
        return int(found[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container_room() -> int:
    """Return the memory that the control group (v2 or v1) leaves; 2^63 where there is no limit."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, taken = (_text(f"/sys/fs/cgroup/{name}").strip() for name in (limit, used))
        if most.isdecimal() and taken.isdecimal():
            return max(0, int(most) - int(taken))
    return 2**63


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
