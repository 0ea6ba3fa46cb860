"""The systems of a race in this process: their preparation, check and times, and the race as a comparison."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from autotune.correctness import Case, check_baseline, error_limit
from autotune.errors import BaselineUnavailableError, MissingDependencyError, one_line
from autotune.executor import BaselineResult
from autotune.lab.bench.comparison import OURS, Comparison, make_entry
from autotune.lab.bench.machines import BrokenCallError, Machine
from autotune.operation import Baseline, Definition
from autotune.registry import get_operation
from autotune.shape import Shape
from autotune.trial import Conditions, Timing

if TYPE_CHECKING:
    import torch

    from autotune.dispatch import TunedKernel

Run = Callable[[], "torch.Tensor"]
Check = Callable[["torch.Tensor"], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Entrant:
    """One system of a race.

    Attributes:
        prepare: makes the call that is timed; if it raises, the message stands in place of the time.
        check: returns the largest error of an output and its limit, and raises where the output is wrong.
    """

    name: str
    prepare: Callable[[], Run]
    check: Check
    verified_on_hardware: bool = True


def of_baseline(baseline: Baseline, shape: Shape, inputs: Any, check: Check, *, name: str = "") -> Entrant:
    """Enter a baseline over these inputs, by another name if one is given."""
    return Entrant(name or baseline.name, lambda: baseline.prepare(shape, inputs), check, baseline.verified_on_hardware)


def of_served(kernel: "TunedKernel", tensors: "Sequence[torch.Tensor]", check: Check) -> Entrant:
    """Enter the kernel that is served, over the tensors that a user calls it with."""
    return Entrant(OURS, lambda: lambda: kernel(*tensors), check)


def judge_inputs(definition: Definition, inputs: Any) -> Case:
    """Compute the fp64 reference of the first output, and its limit by eager torch's error in the same type."""
    reference = definition.reference(inputs)[0]
    dtype = definition.empty_outputs(inputs)[0].dtype
    eager = definition.reference(inputs, dtype=dtype)[0]
    return Case("normal", definition, inputs, (reference,), (error_limit(reference, eager, dtype),))


def checker(definition: Definition, inputs: Any) -> Check:
    """Make a check against the fp64 reference of these inputs."""
    case = judge_inputs(definition, inputs)
    return lambda out: check_baseline(out, case)


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a race: all by name, and the calls of those that are right.

    ``absent`` has a line for each that is not available here, ``failed`` one for each that is wrong or broke; the start
    has its time zone, and the GPU's conditions are None on a processor.
    """

    results: Mapping[str, BaselineResult]
    calls: Mapping[str, Run]
    absent: tuple[str, ...]
    failed: tuple[str, ...]
    started_at: datetime
    conditions: Conditions | None


def measure_case(machine: Machine, names: Sequence[str], make: Callable[[], Sequence[Entrant]]) -> Measured:
    """Make and ``measure`` the entrants of these names; if inputs or reference do not fit the memory, all fail."""
    try:
        entrants = make()
    except (RuntimeError, MemoryError) as failure:
        message = f"inputs and reference cannot be made: {one_line(failure)}"
        results = {name: BaselineResult(name, message=message) for name in names}
        return Measured(results, {}, (), (message,), datetime.now(UTC), None)
    return measure(machine, entrants)


def measure(
    machine: Machine, entrants: Sequence[Entrant], on_check: Callable[[str], object] = lambda name: None
) -> Measured:
    """Check all, measure their memory, and race those that are right; one that breaks costs no other its time.

    ``on_check`` is called with the name of each entrant before it is made ready.
    """
    results: dict[str, BaselineResult] = {}
    calls: dict[str, Run] = {}
    absent: list[str] = []
    failed: list[str] = []

    def fail(name: str, message: str) -> None:
        results[name] = replace(results[name], message=message)
        failed.append(f"{name}: {message}")
        calls.pop(name, None)

    for entrant in entrants:
        name, call = entrant.name, None
        on_check(name)
        results[name] = BaselineResult(name, verified_on_hardware=entrant.verified_on_hardware)
        try:
            call, held = machine.hold(entrant.prepare)
            error, limit = entrant.check(call())
            extra_bytes = machine.extra_bytes(call, prepared=held)
        except Exception as failure:  # backends, compilers and libraries have no exception in common
            if call is None and isinstance(failure, MissingDependencyError | BaselineUnavailableError):
                message = " ".join(str(failure).split())
                results[name] = replace(results[name], message=message)
                absent.append(f"not compared: {name}: {message}")
            else:
                fail(name, one_line(failure))
            continue
        calls[name] = call
        results[name] = replace(results[name], error=error, error_limit=limit, extra_bytes=extra_bytes)
    times: dict[str, Timing] | None = None
    while times is None:  # one that breaks is removed, and the others are timed again
        started_at, end_watch = datetime.now(UTC), machine.watch()
        try:
            times = machine.time(calls) if calls else {}
        except BrokenCallError as broken:
            fail(broken.name, broken.reason)
        conditions = end_watch()
    results |= {name: replace(results[name], timing=timing) for name, timing in times.items()}
    return Measured(results, calls, tuple(absent), tuple(failed), started_at, conditions)


def make_comparison(
    machine: Machine,
    operation: str,
    shape: Shape,
    found: Measured,
    served: "TunedKernel | None" = None,
    *,
    ours: str = OURS,
) -> Comparison:
    """Return what was measured over one shape as a comparison, entries without a time last; ``ours`` was served."""
    ordered = sorted(found.results.values(), key=lambda result: result.timing is None)
    candidates = {} if served is None else {ours: served.candidate}
    return Comparison(
        operation,
        shape,
        machine.name,
        machine.toolchain,
        machine.policy,
        tuple(make_entry(get_operation(operation), shape, each, candidates.get(each.name)) for each in ordered),
        "" if served is None else served.provenance.reason,
        machine.gpu,
        found.conditions,
        found.started_at,
        machine.threads,
    )


def ratio(numerator: Timing | None, denominator: Timing | None) -> float | None:
    return None if numerator is None or denominator is None else numerator.median_us / denominator.median_us


def served_notes(kernels: "Mapping[str, TunedKernel | None]") -> tuple[str, ...]:
    """Return lines on the candidate that was served for each label and the reason, equal ones together.

    Of several, a default is not explained: each has another nearest row. Call this after the race only, since one
    that the toolchain refuses is replaced at the first call.
    """
    served = {label: kernel for label, kernel in kernels.items() if kernel is not None}
    if len(served) < 2:
        return tuple(f"served: {kernel.candidate} ({kernel.provenance.reason})" for kernel in served.values())
    alike: dict[str, list[str]] = {}
    for label, kernel in served.items():
        why = kernel.provenance.default or kernel.provenance.reason
        alike.setdefault(f"{kernel.candidate} ({why})", []).append(label)
    defaults = Counter(name for kernel in served.values() if (name := kernel.provenance.default) is not None)
    whose = ", ".join(f"the {name} ({count})" for name, count in sorted(defaults.items()))
    untuned = f"{defaults.total()} of {len(served)} served configs are untuned{': ' if whose else ''}{whose}"
    return (untuned, *(f"served at {'; '.join(labels)}: {text}" for text, labels in alike.items()))
