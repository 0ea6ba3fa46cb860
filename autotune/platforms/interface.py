"""The interface to what vendors differ in; what ``torch.cuda`` does for all of them alike is written here, once."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final, NamedTuple

from autotune.device import Architecture, Device
from autotune.trial import Conditions

# What no device is numbered: a process sees those that are named before it (CUDA C++ Programming Guide, "CUDA
# Environment Variables"; torch counts those of ROCm alike, ``torch.cuda._parse_visible_devices``).
HIDDEN: Final = frozenset({"", "-1"})


class Target(NamedTuple):
    """The arguments of ``triton.backends.compiler.GPUTarget``."""

    backend: str
    arch: int | str
    warp_size: int


@dataclass(frozen=True, slots=True)
class DataSheet:
    """A vendor's statements about a device: dense TFLOP/s by the dtype of the operands, and GB/s of device memory."""

    device: Device
    tflops: Mapping[str, float]
    gbps: float


class FoundGpu(NamedTuple):
    """A GPU that was found without torch, and what opens this process's context on it, as ``open_context`` does."""

    device: Device
    open: Callable[[], int | None]


def own_pid(before: set[int], now: set[int]) -> int | None:
    """Return the pid by which the driver lists this process, of those before and after its context; None if unknown.

    In a container the driver's numbers are the host's: ours is the one that appears as the context does.
    """
    appeared = now - before
    return appeared.pop() if len(appeared) == 1 else os.getpid() if os.getpid() in now else None


class Platform(ABC):
    """A vendor's GPUs. ROCm answers to ``torch.cuda`` too, so events, graphs and memory have one implementation.

    ``driver_files`` exist on Linux where the vendor's driver is loaded; the first device that each of ``visibility``
    names in the environment is the first that its processes see. ``architectures`` are the listed ones.
    ``memory_checker`` is the vendor's tool that finds wrong accesses of kernels; empty where we run none. ``binary`` is
    the key of the machine code in Triton's ``CompiledKernel.asm``. ``devices`` are known by name as the driver reports
    it, each with other names that mean it; ``brands`` are words that any of these names may lack. ``launcher`` is the
    module of Triton's class that launches a binary, where its calls are known well enough to be made directly.
    """

    name: ClassVar[str]
    driver_files: ClassVar[tuple[str, ...]]
    visibility: ClassVar[tuple[str, ...]]
    memory_checker: ClassVar[str] = ""
    binary: ClassVar[str]
    launcher: ClassVar[str] = ""
    architectures: ClassVar[tuple[Architecture, ...]]
    data_sheets: ClassVar[tuple[DataSheet, ...]]
    brands: ClassVar[frozenset[str]]
    devices: ClassVar[Mapping[Device, tuple[str, ...]]]

    def has_driver(self) -> bool:
        """Return if the vendor's driver is loaded on this Linux, and the environment does not hide every GPU."""
        first = (os.environ.get(name, "0").split(",")[0].strip() for name in self.visibility)
        return not HIDDEN.intersection(first) and any(map(os.path.exists, self.driver_files))

    @abstractmethod
    def find_architecture(self, name: str) -> Architecture | None:
        """Return an architecture of this vendor, listed or not; None if the name is another vendor's."""

    @abstractmethod
    def target(self, architecture: Architecture) -> Target:
        """Return what Triton compiles for."""

    @abstractmethod
    def read_arch(self, properties: Any) -> str:
        """Return the architecture's name of torch's device properties."""

    def read_device(self, index: int) -> Device:
        """Read the GPU of that index as torch counts them."""
        import torch

        properties = torch.cuda.get_device_properties(index)
        return Device(
            name=properties.name,
            arch=self.read_arch(properties),
            sm_count=properties.multi_processor_count,
            memory_mib=properties.total_memory // 2**20,
        )

    def count_gpus(self) -> int | None:
        """Return how many GPUs torch would count, without torch; None where it must be asked."""
        return None

    def find_gpu(self, index: int) -> FoundGpu | None:
        """Return the GPU of that index, as ``read_device`` describes it, without torch; None where it must be asked."""
        return None

    def read_conditions(self, index: int) -> Conditions:
        """Read clocks, temperature, throttling, and if another process holds a context; empty where it is unknown."""
        return Conditions()

    def processes(self, index: int | None = None) -> set[int]:
        """Return the processes that hold a context on a GPU, by default on any, as the driver numbers them."""
        return set()

    def others_computed(self, index: int, own_pid: int, since: float) -> bool | None:
        """Return if another process has kept the GPU busy since that time; None where it is unknown."""
        return None

    def driver_version(self) -> str:
        """Return the version of the loaded driver; empty where it is unknown."""
        return ""

    @abstractmethod
    def read_resources(self, asm: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Return the registers and the bytes of stack a thread of a kernel, given Triton's ``CompiledKernel.asm``."""

    def machine_code(self, asm: Mapping[str, Any]) -> bytes | None:
        """Return the binary of a compiled kernel, or None."""
        code = asm.get(self.binary)
        return code if isinstance(code, bytes) else None

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize()

    def measure_us(self, work: Callable[[], object]) -> float:
        """Return the microseconds between two events about a piece of work on the current stream."""
        import torch

        event: Any = torch.cuda.Event
        start, stop = (event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1000.0

    def measure_each_us(self, works: Sequence[Callable[[], object]]) -> list[float]:
        """Return the microseconds between events about each piece of work, issued one after another."""
        import torch

        event: Any = torch.cuda.Event
        events = [event(enable_timing=True) for _ in range(len(works) + 1)]
        events[0].record()
        for work, end in zip(works, events[1:], strict=True):
            work()
            end.record()
        events[-1].synchronize()
        return [float(start.elapsed_time(end)) * 1000.0 for start, end in pairwise(events)]

    def capture(self, work: Callable[[], object], pool: Any = None) -> Callable[[], None]:
        """Capture a piece of work into a graph, in a pool of memory; returns its replay, which owns the graph."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            work()
        return graph.replay

    def measure_bytes(self, call: Callable[[], Any]) -> tuple[Any, int, int]:
        """Run a call; returns its result, and the bytes beyond those before it: the most, and those at its end."""
        import torch

        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
