"""A comparison on this machine's processor: baselines alone, since no Triton kernel runs there."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from autotune import hardware
from autotune.allocations import extra_bytes
from autotune.comparison.entry import Comparison, make_entry
from autotune.correctness import Case, check_baseline, make_case
from autotune.errors import AutotuneError, one_line
from autotune.executor import BaselineResult
from autotune.operation import Baseline, Operation
from autotune.registry import load_kernel
from autotune.shape import Shape
from autotune.timing import ClockStopwatch, race
from autotune.trial import Policy

POLICY: Final = Policy("eager", "warm")
MIN_ROUNDS: Final = 5
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
    on_step: OnStep = lambda step: None,
) -> Comparison:
    """Race the baselines of these names on the CPU, in torch's threads as they are set, for so many seconds.

    Memory is that of a call; what is kept for it between calls is not counted. What cannot run here says why; inputs
    are made only where one can. ``on_step`` is told in words what begins, since each step may take long.

    Raises:
        AutotuneError: inputs or reference do not fit this machine's memory, or cannot be made.
    """
    kernel = load_kernel(operation.name)
    asked = [baseline for baseline in kernel.baselines() if baseline.name in names]
    results = {baseline.name: _refusal(baseline, shape) for baseline in asked}
    able = [baseline for baseline in asked if not results[baseline.name].message]
    stopwatches: dict[str, ClockStopwatch] = {}
    if able:
        on_step("making inputs and their fp64 reference")
        try:
            case = make_case(kernel, shape, "normal", device="cpu", seed=1)
        except (RuntimeError, MemoryError) as error:
            message = one_line(error)
            raise AutotuneError(f"inputs and reference cannot be made: {message}") from error
        for baseline in able:
            on_step(f"checking {baseline.name}")
            results[baseline.name], call = _open(baseline, shape, case)
            if call is not None:
                stopwatches[baseline.name] = ClockStopwatch(call)
    if stopwatches:
        on_step(f"timing {', '.join(stopwatches)} for {seconds:g} s, at least {MIN_ROUNDS} rounds")
    started_at = datetime.now(UTC)
    timings = race(list(stopwatches.values()), contenders=0, seconds=seconds, min_rounds=MIN_ROUNDS)
    for name, timing in zip(stopwatches, timings, strict=True):
        results[name] = replace(results[name], timing=timing)
    ordered = sorted(results.values(), key=lambda result: result.timing is None)  # those with a time first
    return Comparison(
        operation.name,
        shape,
        hardware.processor_name(),
        hardware.toolchain(),
        POLICY,
        None,
        "",
        tuple(make_entry(operation, shape, result) for result in ordered),
        started_at=started_at,
        threads=_threads(),
    )


def _refusal(baseline: Baseline, shape: Shape) -> BaselineResult:
    """A result without a time: its message says why there will be none, and is empty where there may be one."""
    message = why_not_here(baseline, shape) or ""
    return BaselineResult(baseline.name, message=message, verified_on_hardware=baseline.verified_on_hardware)


def _threads() -> int:
    import torch

    return torch.get_num_threads()


def _open(baseline: Baseline, shape: Shape, case: Case) -> tuple[BaselineResult, Callable[[], object] | None]:
    result = BaselineResult(baseline.name, verified_on_hardware=baseline.verified_on_hardware)
    try:
        call = baseline.prepare(shape, case.inputs)
        error, limit = check_baseline(call(), case)
        extra = extra_bytes(call, "cpu")
    except Exception as failure:  # backends, compilers and libraries have no exception in common
        message = one_line(failure)
        return replace(result, message=message), None
    return replace(result, error=error, error_limit=limit, extra_bytes=extra), call
