"""The place where calls are measured in this process, a processor or a GPU: their times, memory and operators."""

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from autotune import platforms
from autotune.allocations import extra_bytes
from autotune.device import Device
from autotune.errors import one_line
from autotune.lab.bench.profile_rows import is_operator
from autotune.timing import ClockStopwatch, Stopwatch, race
from autotune.trial import Conditions, Policy, Timing, Toolchain

if TYPE_CHECKING:
    from autotune.executor import Executor

Call = Callable[[], object]
CallT = TypeVar("CallT", bound=Call)
StopwatchT = TypeVar("StopwatchT", Stopwatch, ClockStopwatch)
OnStep = Callable[[str], object]

ROUNDS: Final = 15
CPU_SECONDS: Final = 1.0  # that rounds on a CPU may take, if they are more than CPU_MIN_ROUNDS
CPU_MIN_ROUNDS: Final = 3


class BrokenCallError(RuntimeError):
    """A call of this name raised while it was timed; ``reason`` is the exception in one line."""

    def __init__(self, name: str, failure: Exception) -> None:
        self.name, self.reason = name, one_line(failure)
        super().__init__(f"{name}: {self.reason}")


@dataclass(frozen=True, slots=True)
class Operator:
    """One torch operator of a call: its own microseconds, and the bytes that it allocated less those that it freed."""

    name: str
    calls: int
    microseconds: float
    bytes: int


class Machine(ABC):
    """A place where calls are measured. Inputs stay the same: small ones are found in caches.

    Attributes:
        kind: torch's name of the device.
        policy: how times are taken.
        on_step: called with a line of text before each step, since each may take long.
    """

    kind: Literal["cpu", "cuda"]
    policy: Policy

    def __init__(self, on_step: OnStep = lambda step: None) -> None:
        self.on_step = on_step

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the device."""

    @property
    def gpu(self) -> Device | None:
        """The device as tables identify it; None for a processor."""
        return None

    @property
    def threads(self) -> int | None:
        """Torch's threads on a processor; None for a GPU."""
        return None

    @property
    def toolchain(self) -> Toolchain:
        return platforms.toolchain()

    @abstractmethod
    def time(self, calls: Mapping[str, Call], *, rounds: int | None = None) -> dict[str, Timing]:
        """Time calls in interleaved rounds, by default 15; on a CPU at least 3, where calls are slow.

        Each call was run before; BrokenCallError names one that raises.
        """

    def watch(self) -> Callable[[], Conditions | None]:
        """Begin to watch the GPU; return a call that ends it and returns the state in between, None for a processor."""
        return lambda: None

    def steps(self, call: Call, *, warmups: int, active: int) -> tuple[float, ...]:
        """Return the microseconds of single runs, issued from Python and waited for, after some that warm up."""
        return tuple(self._step(call) for _ in range(warmups + active))[warmups:]

    @abstractmethod
    def _step(self, call: Call) -> float: ...

    def hold(self, prepare: Callable[[], CallT]) -> tuple[CallT, int]:
        """Make a call ready; return it, and the bytes that it holds from then on beside its inputs."""
        from autotune.executor.worker_race import hold  # loads torch

        return hold(prepare, self.kind)

    def extra_bytes(self, call: Call, *, prepared: int = 0) -> int:
        """Return the most memory that a call holds beside its result, with what was allocated beforehand."""
        return extra_bytes(call, self.kind, prepared=prepared)

    def operators(self, call: Call) -> tuple[Operator, ...]:
        """Return torch's operators in one run that took time or memory, by their own time, longest first."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        on_gpu = self.kind == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        with profile(activities=activities, profile_memory=True, acc_events=True) as profiler:
            call()
            if on_gpu:
                torch.cuda.synchronize()
        where = "device" if on_gpu else "cpu"
        measured = attrgetter("key", "count", f"self_{where}_time_total", f"self_{where}_memory_usage")
        found = [
            Operator(*measured(event))
            for event in profiler.key_averages()
            if event.device_type.name == "CPU" and is_operator(event, on_device=on_gpu)  # kernels have rows besides
        ]
        used = (each for each in found if each.microseconds > 0.0 or each.bytes)
        return tuple(sorted(used, key=lambda operator: -operator.microseconds))

    def release(self) -> None:
        gc.collect()

    def open_executor(self) -> "Executor":
        """Open the GPU in processes of its own, to judge configs of our kernels; MissingDependencyError without one."""
        from autotune.executor.select import Settings, open_gpu

        return open_gpu(Settings())


class CpuMachine(Machine):
    """This machine's processor, in torch's threads as they are set."""

    kind = "cpu"
    policy = Policy("eager", "warm")

    @property
    def name(self) -> str:
        return platforms.processor_name()

    @property
    def threads(self) -> int:
        import torch

        return torch.get_num_threads()

    def time(self, calls: Mapping[str, Call], *, rounds: int | None = None) -> dict[str, Timing]:
        started = time.perf_counter()
        stopwatches = open_all(calls, ClockStopwatch)
        fitting = int(CPU_SECONDS / max(time.perf_counter() - started, 1e-9))
        count = rounds or min(ROUNDS, max(CPU_MIN_ROUNDS, fitting))
        return time_in_turns(stopwatches, min_rounds=count)

    def _step(self, call: Call) -> float:
        started = time.perf_counter()
        call()
        return (time.perf_counter() - started) * 1e6


class GpuMachine(Machine):
    """The current GPU; times are replays of CUDA graphs."""

    kind = "cuda"
    policy = Policy("graph", "warm")

    @property
    def name(self) -> str:
        return self.gpu.name

    @property
    def gpu(self) -> Device:
        return platforms.current_device()

    def time(self, calls: Mapping[str, Call], *, rounds: int | None = None) -> dict[str, Timing]:
        import torch

        count = rounds or ROUNDS
        with ExitStack() as stack:
            pool = torch.cuda.graph_pool_handle()  # shared: graphs are replayed one after another, outputs never read
            stopwatches = open_all(calls, lambda call: stack.enter_context(Stopwatch([call], self.policy, pool)))
            return time_in_turns(stopwatches, min_rounds=count)

    def watch(self) -> Callable[[], Conditions]:
        # The context is there already. Where NVML numbers processes otherwise, as in a container, it does not show
        # which one is this process, and contention is that more than one holds a context.
        return platforms.Watch(platforms.open_context()).end

    def _step(self, call: Call) -> float:
        import torch

        event: Any = torch.cuda.Event  # untyped in torch
        start, stop = (event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        call()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1000.0

    def release(self) -> None:
        import torch

        gc.collect()
        torch.cuda.empty_cache()


def open_all(calls: Mapping[str, Call], make: Callable[[Call], StopwatchT]) -> dict[str, StopwatchT]:
    """Make a stopwatch of each call; BrokenCallError where one raises."""
    found = {}
    for name, call in calls.items():
        try:
            found[name] = make(call)
        except Exception as failure:  # backends, compilers and libraries have no exception in common
            raise BrokenCallError(name, failure) from failure
    return found


def time_in_turns(
    stopwatches: Mapping[str, StopwatchT], *, min_rounds: int, max_rounds: int | None = None, seconds: float = 0.0
) -> dict[str, Timing]:
    """Time calls in turns for this many seconds, within these rounds; by default for ``min_rounds``."""
    names, turns = list(stopwatches), [0]
    try:
        timings = race(
            list(stopwatches.values()),
            contenders=0,
            seconds=seconds,
            on_turn=turns.append,
            min_rounds=min_rounds,
            max_rounds=max_rounds or min_rounds,
        )
    except Exception as failure:  # as above
        raise BrokenCallError(names[turns[-1]], failure) from failure
    return dict(zip(names, timings, strict=True))
