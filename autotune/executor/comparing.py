"""In the worker: baselines made ready for a race, checked against the reference, with the memory that they need."""

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

import torch

from autotune.allocations import extra_bytes, watch
from autotune.correctness import Case, check_baseline
from autotune.executor import BaselineResult, Baselines
from autotune.kernels.baselines.baseline import OverCopies
from autotune.operation import Baseline
from autotune.shape import Shape
from autotune.timing import Stopwatch
from autotune.trial import Policy

CallT = TypeVar("CallT", bound=Callable[[], object])


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
    *,
    with_memory: bool = True,
) -> tuple[BaselineResult, Stopwatch | None]:
    """What is known of a baseline before it is timed, and its stopwatch, warmed up; without one the message says why.

    Raises:
        Exception: what the baseline raises, but for the reasons that it has said beforehand.
    """
    result = BaselineResult(baseline.name, verified_on_hardware=baseline.verified_on_hardware)
    if (reason := baseline.available() or baseline.unsupported(shape)) is not None:
        return replace(result, message=reason), None

    def prepare() -> Callable[[], torch.Tensor]:
        return baseline.prepare(shape, case.inputs)

    call, held = hold(prepare, "cuda") if with_memory else (prepare(), 0)
    error, limit = check_baseline(call(), case)
    extra = extra_bytes(call, "cuda", prepared=held) if with_memory else None
    result = replace(result, error=error, error_limit=limit, extra_bytes=extra)
    del call
    stopwatch = stack.enter_context(Stopwatch([baseline.prepare(shape, each) for each in inputs], policy, pool))
    stopwatch.warm_up()
    return result, stopwatch


def hold(prepare: Callable[[], CallT], kind: str) -> tuple[CallT, int]:
    """A baseline's call on a device of that kind, ``"cpu"`` or ``"cuda"`` (the current one), and the bytes that it
    holds beside its inputs; copies count as these, as far as they take no more than what they stand for."""

    def prepare_and_tidy() -> CallT:
        call = prepare()
        gc.collect()  # what compiling and planning left behind is nobody's
        return call

    gc.collect()  # nor must what others left be freed meanwhile
    call, held = watch(prepare_and_tidy, kind)
    return call, max(0, held.kept - (call.input_bytes if isinstance(call, OverCopies) else 0))
