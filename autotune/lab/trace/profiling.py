"""Profile implementations step by step with torch's profiler, and write a trace file of each."""

import functools
import importlib.util
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from autotune.errors import MissingDependencyError, UnknownNameError, UsageError, one_line
from autotune.lab.bench.comparison import OURS
from autotune.lab.machine.processor import choose_kind
from autotune.lab.machine.subjects import chosen_baselines, prepare_served
from autotune.lab.trace.operator_times import STEP, TOP, OperatorTime, TraceDevice, top_operators
from autotune.operation import Operation
from autotune.shape import Shape

DEVICES: Final = ("cpu", "cuda", "hpu")
StepPhase = Literal["wait", "warm-up", "active"]
Prepare = Callable[[], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps that are skipped, that warm the profiler up, and that are recorded; ``repeat`` times, a trace each.

    The defaults are those of Intel's notebook on attention on Gaudi; UsageError for a number that is too small.
    """

    wait: int = 0
    warmup: int = 1
    active: int = 3
    repeat: int = 1

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name}={getattr(self, name)} is not allowed; expected at least {least}")

    @property
    def steps(self) -> int:
        return (self.wait + self.warmup + self.active) * self.repeat

    def phase(self, step: int) -> StepPhase:
        place = step % (self.wait + self.warmup + self.active)
        if place < self.wait:
            return "wait"
        return "warm-up" if place < self.wait + self.warmup else "active"


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step: its wall time in milliseconds from issue until the device was done, the profiler's own work counted."""

    number: int
    phase: StepPhase
    milliseconds: float


@dataclass(frozen=True, slots=True)
class Traced:
    """One implementation's steps, operators by time, and gzip Chrome traces; or a message why there are none."""

    name: str
    steps: tuple[TracedStep, ...] = ()
    operators: tuple[OperatorTime, ...] = ()
    timed_on: TraceDevice = "cpu"  # the device of the operators' times
    files: tuple[Path, ...] = ()
    message: str = ""


def choose_trace_device(device: str | None) -> TraceDevice:
    """Return the requested device; by default a Gaudi, else a GPU, else the CPU, whichever is here.

    Call it before anything loads torch: on a Gaudi the profiler needs ``HABANA_PROFILE`` in the environment by then,
    and it is set here unless it is already (docs.habana.ai, "Profiling with PyTorch"). UnknownNameError for another
    name, MissingDependencyError for a device that is not here.
    """
    if device is not None and device not in DEVICES:
        raise UnknownNameError(f"device={device!r} is unknown; allowed: {', '.join(DEVICES)}")
    has_bridge = "habana_frameworks" in sys.modules or importlib.util.find_spec("habana_frameworks") is not None
    if device == "hpu" or (device is None and has_bridge):
        os.environ.setdefault("HABANA_PROFILE", "profile_api")
        from autotune.kernels.baselines.gaudi import bridge

        if (reason := bridge.missing()) is None:
            return "hpu"
        if device == "hpu":
            raise MissingDependencyError(reason)
    return choose_kind(device)


def trace_all(
    operation: Operation[Any],
    shape: Shape,
    names: Sequence[str],
    folder: Path,
    *,
    device: TraceDevice,
    schedule: Schedule = Schedule(),
    stacks: bool = True,
) -> Iterator[Traced]:
    """Trace the baselines of these names, and on a GPU what ``get_kernel`` serves, over one set of inputs.

    Writes ``folder/NAME.json.gz`` for each, and ``NAME-2.json.gz`` and so on where the schedule repeats.
    """
    from autotune.registry import load_definition

    inputs = load_definition(operation.name).make_inputs(shape, seed=0, device="cpu" if device == "hpu" else device)
    if device == "hpu":  # drawn on the CPU: generators of other devices are not everywhere
        inputs = move(inputs, device)
    if device == "cuda":
        prepare: Prepare = functools.partial(_compiled, operation.name, shape, inputs)
        yield _trace_or_why(OURS, prepare, folder, device=device, schedule=schedule, stacks=stacks)
    for baseline, reason in chosen_baselines(operation.name, shape, names):
        if reason is not None:
            yield Traced(baseline.name, message=reason)
            continue
        prepare = functools.partial(baseline.prepare, shape, inputs)
        yield _trace_or_why(baseline.name, prepare, folder, device=device, schedule=schedule, stacks=stacks)


def _trace_or_why(name: str, prepare: Prepare, folder: Path, **how: Any) -> Traced:
    try:
        with warnings.catch_warnings(action="ignore"):  # a backend that refuses says so there, and raises
            return trace_call(name, prepare(), folder, **how)
    except OSError:
        raise  # the folder, not the implementation
    except Exception as failure:  # backends, compilers and libraries have no exception in common
        return Traced(name, message=one_line(failure))


def trace_call(
    name: str,
    call: Callable[[], object],
    folder: Path,
    *,
    device: TraceDevice = "cpu",
    schedule: Schedule = Schedule(),
    stacks: bool = True,
) -> Traced:
    """Run a call step by step under torch's profiler and write its traces.

    Each step begins and ends with an idle device; on a Gaudi in lazy mode ``mark_step`` ends it.

    Example:
        >>> trace_call("eager", Eager().prepare(shape, inputs), Path("traces")).files
        (PosixPath('traces/eager.json.gz'),)
    """
    from torch import profiler

    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    totals: list[Any] = []

    def keep(cycle: Any) -> None:
        files.append(folder / trace_name(name, len(files)))
        cycle.export_chrome_trace(str(files[-1]))
        totals.append(cycle.key_averages())

    with profiler.profile(
        activities=_activities(device),
        schedule=_actions(schedule),
        on_trace_ready=keep,
        with_stack=stacks,
        acc_events=True,  # else torch warns that each cycle forgets the last
    ) as profile:
        steps = _run_steps(call, schedule, _finisher(device), profile.step)
    operators, timed_on = top_operators(totals[-1], device, count=TOP)
    return Traced(name, tuple(steps), operators, timed_on, tuple(files))


def _actions(schedule: Schedule) -> Any:
    from torch import profiler

    with warnings.catch_warnings(action="ignore", category=UserWarning):  # the profiler's, where nothing warms up
        return profiler.schedule(**asdict(schedule))


def _run_steps(
    call: Callable[[], object], schedule: Schedule, finish: Callable[[], None], end_step: Callable[[], object]
) -> list[TracedStep]:
    from torch import profiler

    steps = []
    for number in range(schedule.steps):
        finish()
        started = time.perf_counter()
        with profiler.record_function(f"{STEP} {number}") if schedule.phase(number) != "wait" else nullcontext():
            result = call()
            finish()
        steps.append(TracedStep(number, schedule.phase(number), (time.perf_counter() - started) * 1e3))
        del result  # held until its step ended
        end_step()
    return steps


def trace_name(name: str, cycle: int) -> str:
    """Return the file name of an implementation's trace.

    Example:
        >>> trace_name("sdpa flash", 0), trace_name("sdpa flash", 1)
        ('sdpa_flash.json.gz', 'sdpa_flash-2.json.gz')
    """
    stem = re.sub(r"[^\w.=-]+", "_", name)
    return f"{stem}{f'-{cycle + 1}' if cycle else ''}.json.gz"


def move(inputs: Any, device: str) -> Any:
    """Copy a dataclass of inputs with its tensors on that device."""
    import torch

    assert is_dataclass(inputs)
    values = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    moved = {name: value.to(device) for name, value in values.items() if isinstance(value, torch.Tensor)}
    return replace(inputs, **moved)  # type: ignore[type-var]


def _activities(device: TraceDevice) -> list[Any]:
    """List the activities to record: the CPU's, and the device's where this torch has them.

    A Gaudi's exist once its bridge has been imported.
    """
    from torch import profiler

    known = profiler.ProfilerActivity
    names = {activity.name for activity in profiler.supported_activities()}  # type: ignore[no-untyped-call]
    # The bridge puts an enumeration of its own in the place of torch's, whose supported ones do not name a Gaudi.
    has_own = device == "hpu" and known.__module__.startswith("habana")
    is_seen = device != "cpu" and (device.upper() in names or has_own)
    return [known.CPU, *([getattr(known, device.upper())] if is_seen else [])]


def _finisher(device: TraceDevice) -> Callable[[], None]:
    if device == "cpu":
        return lambda: None
    if device == "cuda":
        import torch

        return torch.cuda.synchronize
    from autotune.kernels.baselines.gaudi import bridge

    end_step = bridge.step_marker()

    def finish() -> None:
        end_step()
        bridge.hpu().synchronize()

    return finish


def _compiled(operation: str, shape: Shape, inputs: Any) -> Callable[[], object]:
    run = prepare_served(operation, shape, inputs)
    run()
    return run
