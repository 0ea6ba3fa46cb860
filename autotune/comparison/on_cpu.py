"""A comparison on this machine's processor: baselines alone, since no Triton kernel runs there."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from autotune import hardware
from autotune.allocations import extra_bytes
from autotune.comparison.entry import Comparison, make_entry
from autotune.comparison.room import why_scores_too_large, why_too_large
from autotune.correctness import Case, check_baseline, make_case
from autotune.errors import AutotuneError, one_line
from autotune.executor import BaselineResult
from autotune.operation import Baseline, Kernel, Operation
from autotune.registry import load_kernel
from autotune.shape import Shape
from autotune.timing import ClockStopwatch, race
from autotune.trial import Policy, Timing

CPU_POLICY: Final = Policy("eager", "warm")
MIN_ROUNDS: Final = 5
FEW_ROUNDS: Final = 3  # the least that have a median, where MIN_ROUNDS would take MANY times the seconds
MANY: Final = 4
MAX_ROUNDS: Final = 100
MANY_FLOPS: Final = 10**12  # of which reference and limit took 200 s (two busy cores, torch 2.13.0, 2026-11-22)
COMPILED: Final = ("flex",)  # baselines that compile before their first call
OnStep = Callable[[str], object]


def why_not_here(baseline: Baseline, shape: Shape) -> str | None:
    """Why a baseline cannot run on this machine or over this shape, or None; makes no inputs.

    Example:
        >>> why_not_here(Cudnn("cudnn"), shape)  # without a GPU
        'cuDNN needs an NVIDIA GPU, and none is here'
    """
    return baseline.available() or baseline.unsupported(shape)


def compare_on_cpu(
    operation: Operation[Any],
    shape: Shape,
    names: Sequence[str],
    *,
    seconds: float,
    room: int | None = None,
    on_step: OnStep = lambda step: None,
) -> Comparison:
    """Race the baselines of these names on the CPU, in torch's threads as they are set, for so many seconds at most.

    Memory is that of a call, with what is kept for it between calls. What cannot run here says why, as does what breaks
    while it is checked or timed; inputs are made only where one can run. What would not fit into ``room`` bytes, where
    these are known, is refused before anything is made. ``on_step`` is told in words what begins, since each step may
    take long: of rounds also how long, where that is more than the seconds.

    Raises:
        AutotuneError: inputs or reference do not fit this machine's memory, or cannot be made.
    """
    results, ready = _make_ready(operation, shape, names, room, on_step)
    expected = sum(entrant.seconds for entrant in ready.values())
    patience = max(seconds, 1.0)
    min_rounds = FEW_ROUNDS if MIN_ROUNDS * expected > MANY * patience else MIN_ROUNDS
    if ready:
        least = (1 + min_rounds) * expected  # one warms up
        about = f", which take about {least:.0f} s" if least > patience else f" and {MAX_ROUNDS} at most"
        on_step(f"timing {', '.join(ready)} for at most {seconds:g} s, but {min_rounds} rounds at least{about}")
    started_at = datetime.now(UTC)
    stopwatches = {name: entrant.stopwatch for name, entrant in ready.items()}
    for name, found in _race(stopwatches, seconds, min_rounds).items():
        change: dict[str, Any] = {"message": found} if isinstance(found, str) else {"timing": found}
        results[name] = replace(results[name], **change)
    ordered = sorted(results.values(), key=lambda result: result.timing is None)  # those with a time first
    return Comparison(
        operation.name,
        shape,
        hardware.processor_name(),
        hardware.toolchain(),
        CPU_POLICY,
        None,
        "",
        tuple(make_entry(operation, shape, result) for result in ordered),
        started_at=started_at,
        threads=torch_threads(),
    )


@dataclass(frozen=True, slots=True)
class _Entrant:
    """Who can be timed: its stopwatch, and about the seconds of one sample."""

    stopwatch: ClockStopwatch
    seconds: float


def _make_ready(
    operation: Operation[Any], shape: Shape, names: Sequence[str], room: int | None, on_step: OnStep
) -> tuple[dict[str, BaselineResult], dict[str, _Entrant]]:
    """What is known of each before it is timed, and those that can be."""
    kernel = load_kernel(operation.name)
    asked = [baseline for baseline in kernel.baselines() if baseline.name in names]
    results = {baseline.name: _refusal(baseline, shape, room) for baseline in asked}
    ready: dict[str, _Entrant] = {}
    able = [baseline for baseline in asked if not results[baseline.name].message]
    if not able:
        return results, ready
    if room is not None and (reason := why_too_large(operation, shape, room)) is not None:
        raise AutotuneError(reason)
    on_step(f"making inputs and their fp64 reference{_how_long(operation.cost(shape).flops)}")
    case = _make_case(kernel, shape)
    for baseline in able:
        on_step(f"{'compiling and checking' if baseline.name in COMPILED else 'checking'} {baseline.name}")
        results[baseline.name], entrant = _open(baseline, shape, case)
        if entrant is not None:
            ready[baseline.name] = entrant
    return results, ready


def _refusal(baseline: Baseline, shape: Shape, room: int | None) -> BaselineResult:
    """A result without a time: its message says why there will be none, and is empty where there may be one."""
    message = why_not_here(baseline, shape)
    if message is None and room is not None:
        message = why_scores_too_large(baseline.name, shape, room)
    message = message or ""
    return BaselineResult(baseline.name, message=message, verified_on_hardware=baseline.verified_on_hardware)


def torch_threads() -> int:
    """How many threads torch computes with."""
    import torch

    return torch.get_num_threads()


def _how_long(flops: int) -> str:
    """What is said of a reference that takes minutes: about how many products there are, by no clock."""
    return f", {flops / 1e12:,.0f} TFLOP: minutes on a processor" if flops >= MANY_FLOPS else ""


def _make_case(kernel: Kernel, shape: Shape) -> Case:
    try:
        return make_case(kernel, shape, "normal", device="cpu", seed=1)
    except (RuntimeError, MemoryError) as error:
        raise AutotuneError(f"inputs and reference cannot be made: {one_line(error)}") from error


def _open(baseline: Baseline, shape: Shape, case: Case) -> tuple[BaselineResult, _Entrant | None]:
    """What is known of a baseline before it is timed, and how it is; without that the message says why."""
    from autotune.executor.comparing import hold  # loads torch

    result = BaselineResult(baseline.name, verified_on_hardware=baseline.verified_on_hardware)
    try:
        call, held = hold(lambda: baseline.prepare(shape, case.inputs), "cpu")
        error, limit = check_baseline(call(), case)
        extra = extra_bytes(call, "cpu", prepared=held)
        started = time.perf_counter()
        entrant = _Entrant(ClockStopwatch(call), time.perf_counter() - started)  # which ran it once
    except Exception as failure:  # backends, compilers and libraries have no exception in common
        return replace(result, message=one_line(failure)), None
    return replace(result, error=error, error_limit=limit, extra_bytes=extra), entrant


def _race(stopwatches: Mapping[str, ClockStopwatch], seconds: float, min_rounds: int) -> dict[str, Timing | str]:
    """The time of each, or the message of one that broke, without which the others are raced again."""
    names = list(stopwatches)
    turns: list[int] = []
    try:
        timings = race(
            list(stopwatches.values()),
            contenders=0,
            seconds=seconds,
            on_turn=turns.append,
            min_rounds=min_rounds,
            max_rounds=MAX_ROUNDS,
        )
    except Exception as failure:  # as above
        broken = names[turns[-1]]
        others = {name: stopwatch for name, stopwatch in stopwatches.items() if name != broken}
        return {broken: one_line(failure), **_race(others, seconds, min_rounds)}
    return dict(zip(names, timings, strict=True))
