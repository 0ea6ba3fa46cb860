"""In the worker: baselines made ready for a race, checked against the reference, with the memory that they need."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from autotune.correctness import Case, check_baseline
from autotune.executor import BaselineResult, Baselines
from autotune.operation import Baseline
from autotune.shape import Shape
from autotune.timing import Stopwatch
from autotune.trial import Policy


def choose_baselines(known: Sequence[Baseline], wanted: Baselines) -> list[Baseline]:
    """Those that take part in a race: of names those that are known, in their own order."""
    if wanted == "none":
        return []
    if wanted == "every":
        return list(known)
    if wanted == "fastest":
        return [baseline for baseline in known if baseline.is_usual]
    return [baseline for baseline in known if baseline.name in wanted]


def open_baseline(
    baseline: Baseline,
    shape: Shape,
    inputs: Sequence[Any],
    case: Case,
    policy: Policy,
    pool: Any,
    stack: ExitStack,
) -> tuple[BaselineResult, Stopwatch | None]:
    """What is known of a baseline before it is timed, and its stopwatch, warmed up; without one the message says why.

    Raises:
        Exception: what the baseline raises, but for the reasons that it has said beforehand.
    """
    result = BaselineResult(baseline.name, verified_on_hardware=baseline.verified_on_hardware)
    if (reason := baseline.available() or baseline.unsupported(shape)) is not None:
        return replace(result, message=reason), None
    call = baseline.prepare(shape, case.inputs)
    error, limit = check_baseline(call(), case)
    result = replace(result, error=error, error_limit=limit, extra_bytes=measure_extra_bytes(call))
    del call
    stopwatch = stack.enter_context(Stopwatch([baseline.prepare(shape, each) for each in inputs], policy, pool))
    stopwatch.warm_up()
    return result, stopwatch


def measure_extra_bytes(call: Callable[[], object]) -> int:
    """The most memory in bytes that torch hands out during a call and that its result does not keep."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del result
    return int(extra)
