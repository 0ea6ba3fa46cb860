"""Who takes part in a suite's race, what is measured of each, and the race as a comparison."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch

from autotune.comparison.entry import Comparison, make_entry
from autotune.comparison.on_gpu import OURS
from autotune.comparison.suites.machine import Machine
from autotune.correctness import Case, error_limit
from autotune.dispatch import TunedKernel
from autotune.errors import BaselineUnavailableError, MissingDependencyError, one_line
from autotune.executor import BaselineResult
from autotune.operation import Baseline, Kernel
from autotune.registry import get_operation
from autotune.shape import Shape
from autotune.trial import Conditions, Timing

Run = Callable[[], torch.Tensor]
Check = Callable[[torch.Tensor], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Contender:
    """A name, and what makes the call that is timed; it may raise, and the message then stands for the time.

    ``check`` tells the largest error of its output and what it may be, and raises where that is something else.
    """

    name: str
    prepare: Callable[[], Run]
    check: Check
    verified_on_hardware: bool = True


def of_baseline(baseline: Baseline, shape: Shape, inputs: Any, check: Check, *, name: str = "") -> Contender:
    """A baseline over these inputs, by another name where one is given."""

    def prepare() -> Run:
        return baseline.prepare(shape, inputs)

    return Contender(name or baseline.name, prepare, check, baseline.verified_on_hardware)


def of_served(kernel: TunedKernel, tensors: Sequence[torch.Tensor], check: Check, **options: Any) -> Contender:
    """The kernel that is served, over the tensors and options that a user calls it with."""

    def prepare() -> Run:
        return lambda: kernel(*tensors, **options)

    return Contender(OURS, prepare, check)


def judge_inputs(kernel: Kernel, inputs: Any) -> Case:
    """These inputs with the fp64 reference of their output, and its limit by eager torch's error in the same type."""
    (reference,) = kernel.reference(inputs)
    (output,) = kernel.empty_output(inputs)
    (eager,) = kernel.reference(inputs, dtype=output.dtype)
    return Case("normal", inputs, (reference,), (error_limit(reference, eager, output.dtype),))


@dataclass(frozen=True, slots=True)
class Measured:
    """The contenders' results by name, the calls of those that are right, and who is not timed and why.

    ``absent`` names those that cannot be had here, ``failed`` those that are wrong or broke. The race began at
    ``started_at``, which has its time zone; ``conditions`` are the GPU's during it, None on a processor.
    """

    results: Mapping[str, BaselineResult]
    calls: Mapping[str, Run]
    absent: tuple[str, ...]
    failed: tuple[str, ...]
    started_at: datetime
    conditions: Conditions | None


def measure_case(machine: Machine, names: Sequence[str], make: Callable[[], Sequence[Contender]]) -> Measured:
    """``measure`` over the contenders of these names; where they cannot be made, since inputs or reference do not fit
    the memory, that is the failure of each."""
    try:
        contenders = make()
    except (RuntimeError, MemoryError) as failure:
        message = f"inputs and reference cannot be made: {one_line(failure)}"
        results = {name: BaselineResult(name, message=message) for name in names}
        return Measured(results, {}, (), (message,), datetime.now(UTC), None)
    return measure(machine, contenders)


def measure(machine: Machine, contenders: Sequence[Contender]) -> Measured:
    """Check all, measure their memory, and race those that are right."""
    results: dict[str, BaselineResult] = {}
    calls: dict[str, Run] = {}
    absent: list[str] = []
    failed: list[str] = []

    def fail(name: str, message: str) -> None:
        results[name] = replace(results[name], message=message)
        failed.append(f"{name}: {message}")
        calls.pop(name, None)

    for contender in contenders:
        name = contender.name
        results[name] = BaselineResult(name, verified_on_hardware=contender.verified_on_hardware)
        try:
            try:
                call, held = machine.hold(contender.prepare)
            except (MissingDependencyError, BaselineUnavailableError) as missing:
                message = " ".join(str(missing).split())
                results[name] = replace(results[name], message=message)
                absent.append(f"not compared: {name}: {message}")
                continue
            error, limit = contender.check(call())
            extra_bytes = machine.extra_bytes(call, prepared=held)
        except Exception as failure:  # backends, compilers and libraries have no exception in common
            fail(name, one_line(failure))
            continue
        calls[name] = call
        results[name] = replace(results[name], error=error, error_limit=limit, extra_bytes=extra_bytes)
    for name, message in _untimed(machine, calls).items():
        fail(name, message)
    started_at, end_watch = datetime.now(UTC), machine.watch()
    try:
        for name, timing in machine.time(calls).items():
            results[name] = replace(results[name], timing=timing)
    except Exception as failure:  # as above; alone each of them could be timed
        for name in list(calls):
            fail(name, f"the race broke: {one_line(failure)}")
    conditions = end_watch()
    return Measured(results, calls, tuple(absent), tuple(failed), started_at, conditions)


def _untimed(machine: Machine, calls: Mapping[str, Run]) -> dict[str, str]:
    """Those that run but cannot be timed, such as what no CUDA graph can hold."""
    found: dict[str, str] = {}
    for name, call in calls.items():
        try:
            machine.time({name: call}, rounds=1)
        except Exception as failure:  # as above
            found[name] = one_line(failure)
    return found


def make_comparison(
    machine: Machine, operation: str, shape: Shape, found: Measured, served: TunedKernel | None = None
) -> Comparison:
    """What was measured over one problem, those without a time last."""
    ordered = sorted(found.results.values(), key=lambda result: result.timing is None)
    config = None if served is None else served.config
    return Comparison(
        operation,
        shape,
        machine.name,
        machine.toolchain,
        machine.policy,
        config,
        "" if served is None else served.provenance.reason,
        tuple(
            make_entry(get_operation(operation), shape, result, config if result.name == OURS else None)
            for result in ordered
        ),
        machine.gpu,
        found.conditions,
        found.started_at,
        machine.threads,
    )


def ratio(numerator: Timing | None, denominator: Timing | None) -> float | None:
    """How many times as long the first takes as the second; None where one has no time."""
    return None if numerator is None or denominator is None else numerator.median_us / denominator.median_us


def served_notes(kernels: Mapping[str, TunedKernel | None]) -> tuple[str, ...]:
    """Which config "ours" was, and why that one; of several problems, by what each is called, equal ones together.

    Why one of several has the default is not told: of each another row is the nearest. Of use after the race only: a
    config that the toolchain refuses is replaced at the first call.
    """
    served = {label: kernel for label, kernel in kernels.items() if kernel is not None}
    if len(served) < 2:
        return tuple(f"served: {kernel.config} ({kernel.provenance.reason})" for kernel in served.values())
    alike: dict[str, list[str]] = {}
    for label, kernel in served.items():
        why = "untuned default" if kernel.provenance.rung == "default" else kernel.provenance.reason
        alike.setdefault(f"{kernel.config} ({why})", []).append(label)
    untuned = sum(kernel.provenance.rung == "default" for kernel in served.values())
    count = f"{untuned} of {len(served)} served configs are the untuned default"
    return (count, *(f"served at {'; '.join(labels)}: {what}" for what, labels in alike.items()))
