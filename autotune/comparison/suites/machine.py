"""Where a suite measures, in this process: the processor, or the GPU; times, memory and operators of calls."""

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

from autotune import hardware
from autotune.allocations import extra_bytes
from autotune.comparison.on_cpu import CPU_POLICY, OnStep, torch_threads
from autotune.comparison.suites.operators import is_operator
from autotune.device import Device
from autotune.executor import Executor
from autotune.executor.select import Settings, open_gpu
from autotune.timing import ClockStopwatch, Stopwatch, race
from autotune.trial import Conditions, Policy, Timing, Toolchain

Call = Callable[[], object]
CallT = TypeVar("CallT", bound=Call)

GPU_POLICY: Final = Policy("graph", "warm")
ROUNDS: Final = 15
CPU_SECONDS: Final = 1.0  # that rounds on a CPU may take, where there are
CPU_MIN_ROUNDS: Final = 3


def _say_nothing(step: str) -> None:
    """For whom nobody waits."""


@dataclass(frozen=True, slots=True)
class Operator:
    """What one torch operator took of a call: its own microseconds, and the bytes it allocated less those it freed."""

    name: str
    calls: int
    microseconds: float
    bytes: int


class Machine(Protocol):
    """What a suite asks of the place where it measures. Inputs stay the same: small ones are found in caches."""

    @property
    def kind(self) -> Literal["cpu", "cuda"]:
        """Torch's name of the device."""

    @property
    def name(self) -> str: ...

    @property
    def gpu(self) -> Device | None:
        """What tables identify the GPU by; None of a processor."""

    @property
    def toolchain(self) -> Toolchain: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def threads(self) -> int | None:
        """Torch's on a processor, None on a GPU."""

    @property
    def on_step(self) -> OnStep:
        """Told in words what begins, since each step may take long."""

    def time(self, calls: Mapping[str, Call], *, rounds: int | None = None) -> dict[str, Timing]:
        """Medians of interleaved samples, so many of each (15; on a CPU 3 at least, where calls are slow).

        Each call was run before.
        """

    def watch(self) -> Callable[[], Conditions | None]:
        """Begin to watch the GPU; the result ends it and tells its state in between, None of a processor."""

    def steps(self, call: Call, *, warmups: int, active: int) -> tuple[float, ...]:
        """Microseconds of so many single runs, issued from Python and waited for, after those of the warm-up."""

    def hold(self, prepare: Callable[[], CallT]) -> tuple[CallT, int]:
        """A call that is made ready, and the bytes that it holds from then on beside its inputs."""

    def extra_bytes(self, call: Call, *, prepared: int = 0) -> int:
        """The most memory that a call holds at one time beside its result, with what was allocated beforehand."""

    def operators(self, call: Call) -> tuple[Operator, ...]:
        """Torch's operators of one run, by their own time, longest first."""

    def release(self) -> None:
        """Give back what earlier cases left behind."""

    def open_executor(self) -> Executor:
        """What judges configs of our kernels, in processes of its own.

        Raises:
            MissingDependencyError: there is no GPU.
        """


@dataclass(frozen=True, slots=True)
class CpuMachine:
    """This machine's processor, in torch's threads as they are set."""

    kind: Literal["cpu"] = "cpu"
    policy: Policy = CPU_POLICY
    on_step: OnStep = _say_nothing

    @property
    def name(self) -> str:
        return hardware.processor_name()

    @property
    def gpu(self) -> None:
        return None

    @property
    def threads(self) -> int:
        return torch_threads()

    @property
    def toolchain(self) -> Toolchain:
        return hardware.toolchain()

    def time(self, calls: Mapping[str, Call], *, rounds: int | None = None) -> dict[str, Timing]:
        started = time.perf_counter()
        stopwatches = [ClockStopwatch(call) for call in calls.values()]
        fitting = int(CPU_SECONDS / max(time.perf_counter() - started, 1e-9))
        count = rounds or min(ROUNDS, max(CPU_MIN_ROUNDS, fitting))
        timings = race(stopwatches, contenders=0, seconds=0.0, min_rounds=count, max_rounds=count)
        return dict(zip(calls, timings, strict=True))

    def watch(self) -> Callable[[], None]:
        return lambda: None

    def steps(self, call: Call, *, warmups: int, active: int) -> tuple[float, ...]:
        times = []
        for _ in range(warmups + active):
            started = time.perf_counter()
            call()
            times.append((time.perf_counter() - started) * 1e6)
        return tuple(times[warmups:])

    def hold(self, prepare: Callable[[], CallT]) -> tuple[CallT, int]:
        return _hold(prepare, self.kind)

    def extra_bytes(self, call: Call, *, prepared: int = 0) -> int:
        return extra_bytes(call, "cpu", prepared=prepared)

    def operators(self, call: Call) -> tuple[Operator, ...]:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
            call()
        found = (
            Operator(event.key, event.count, event.self_cpu_time_total, event.self_cpu_memory_usage)
            for event in profiler.key_averages()
            if is_operator(event, on_device=False)
        )
        return _by_time(found)

    def release(self) -> None:
        gc.collect()

    def open_executor(self) -> Executor:
        return open_gpu(Settings())


@dataclass(frozen=True, slots=True)
class GpuMachine:
    """The current CUDA or ROCm GPU; times are replays of CUDA graphs."""

    kind: Literal["cuda"] = "cuda"
    policy: Policy = GPU_POLICY
    on_step: OnStep = _say_nothing

    @property
    def name(self) -> str:
        return self.gpu.name

    @property
    def gpu(self) -> Device:
        return hardware.current_device()

    @property
    def threads(self) -> None:
        return None

    @property
    def toolchain(self) -> Toolchain:
        return hardware.toolchain()

    def time(self, calls: Mapping[str, Call], *, rounds: int | None = None) -> dict[str, Timing]:
        import torch

        count = rounds or ROUNDS
        with ExitStack() as stack:
            pool = torch.cuda.graph_pool_handle()  # replayed one after another, and nobody reads them
            stopwatches = [stack.enter_context(Stopwatch([call], self.policy, pool)) for call in calls.values()]
            timings = race(stopwatches, contenders=0, seconds=0.0, min_rounds=count, max_rounds=count)
        return dict(zip(calls, timings, strict=True))

    def watch(self) -> Callable[[], Conditions]:
        # The context is there already. Where NVML numbers processes otherwise, as in a container, its own cannot be
        # told from others, and contention is that more than one holds a context.
        return hardware.Watch(hardware.open_context()).end

    def steps(self, call: Call, *, warmups: int, active: int) -> tuple[float, ...]:
        import torch

        event: Any = torch.cuda.Event  # untyped in torch
        times = []
        for _ in range(warmups + active):
            start, stop = (event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            call()
            stop.record()
            stop.synchronize()
            times.append(float(start.elapsed_time(stop)) * 1000.0)
        return tuple(times[warmups:])

    def hold(self, prepare: Callable[[], CallT]) -> tuple[CallT, int]:
        return _hold(prepare, self.kind)

    def extra_bytes(self, call: Call, *, prepared: int = 0) -> int:
        return extra_bytes(call, "cuda", prepared=prepared)

    def operators(self, call: Call) -> tuple[Operator, ...]:
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
            call()
            torch.cuda.synchronize()
        found = (
            Operator(event.key, event.count, event.self_device_time_total, event.self_device_memory_usage)
            for event in profiler.key_averages()
            if event.device_type.name == "CPU" and is_operator(event, on_device=True)  # kernels have rows besides
        )
        return _by_time(found)

    def release(self) -> None:
        import torch

        gc.collect()
        torch.cuda.empty_cache()

    def open_executor(self) -> Executor:
        return open_gpu(Settings())


def _hold(prepare: Callable[[], CallT], kind: str) -> tuple[CallT, int]:
    from autotune.executor.comparing import hold  # loads torch

    return hold(prepare, kind)


def _by_time(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Those that took time or memory, the longest first."""
    used = (item for item in operators if item.microseconds > 0.0 or item.bytes)
    return tuple(sorted(used, key=lambda operator: -operator.microseconds))
