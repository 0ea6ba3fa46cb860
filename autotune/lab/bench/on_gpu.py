"""A comparison on a GPU: the served kernel, the default and baselines in the worker's race."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from autotune.dispatch import Among, get_kernel
from autotune.executor import BaselineResult, Executor, Race
from autotune.lab.bench.comparison import DEFAULT, OURS, Comparison, make_entry
from autotune.operation import Operation
from autotune.registry import get_implementation
from autotune.shape import Shape
from autotune.trial import Candidate, Status


def compare_on_gpu(
    executor: Executor,
    operation: Operation[Any],
    shape: Shape,
    names: Sequence[str],
    *,
    seconds: float,
    among: Among = "ours",
) -> Comparison:
    """Race what ``get_kernel`` serves, the default and the named baselines, for at most so many seconds of timing.

    ``among`` are the implementations that may be served; the default is of the one that is. A system
    that fails, ours or a baseline, is an entry with the reason.

    Raises:
        AutotuneError: the race cannot be run.
    """
    kernel = get_kernel(shape, device=executor.device.name, among=among, operation=operation.name)
    served = kernel.candidate
    space = get_implementation(operation.name, served.implementation).space
    default = replace(served, config=space.default(shape, executor.device))
    executor.open(operation, shape)
    candidates = list(dict.fromkeys([served, default]))
    started_at = datetime.now(UTC)
    race = executor.race(candidates, seconds=seconds, baselines=list(names))
    return Comparison(
        operation.name,
        shape,
        executor.device.name,
        executor.toolchain,
        executor.policy,
        tuple(make_entry(operation, shape, result, candidate) for result, candidate in _results(race, names)),
        kernel.provenance.reason,
        executor.device,
        next((outcome.conditions for outcome in race.outcomes if outcome.status is Status.OK), None),
        started_at,
    )


def _results(race: Race, names: Sequence[str]) -> Iterator[tuple[BaselineResult, Candidate | None]]:
    """Yield ours with their candidates, the served one first, then the named baselines."""
    extra = race.extra_bytes or (None,) * len(race.outcomes)
    for name, each, extra_bytes in zip((OURS, DEFAULT), race.outcomes, extra, strict=False):
        message = "" if each.status is Status.OK else f"{each.status}: {each.message}"
        result = BaselineResult(name, each.timing, message, each.error, each.error_limit, extra_bytes)
        yield result, each.candidate
    yield from ((result, None) for result in race.baselines)
    for name in names:
        if all(result.name != name for result in race.baselines):
            yield BaselineResult(name, message="the race was lost before its turn"), None
