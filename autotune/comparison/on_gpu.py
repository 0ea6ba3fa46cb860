"""A comparison on a GPU: the served kernel, the default and baselines in the worker's race."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from autotune.comparison.entry import Comparison, make_entry
from autotune.dispatch import get_kernel
from autotune.executor import BaselineResult, Executor, Race
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.space import Config
from autotune.trial import Outcome, Status

OURS: Final = "autotune"  # as races, analyses and tables call what is served
DEFAULT: Final = "autotune default"


def compare_on_gpu(
    executor: Executor, operation: Operation[Any], shape: Shape, names: Sequence[str], *, seconds: float
) -> Comparison:
    """Race what ``get_kernel`` serves, the default and the baselines of these names for so many seconds at most.

    These begin when all are ready. Who fails says why, whether it is ours or a baseline.

    Raises:
        AutotuneError: the race cannot be run.
    """
    kernel = get_kernel(shape, device=executor.device.name, operation=operation.name)
    default = operation.space.default(shape, executor.device)
    executor.open(operation, shape)
    configs = list(dict.fromkeys([kernel.config, default]))
    started_at = datetime.now(UTC)
    race = executor.race(configs, seconds=seconds, baselines=list(names))
    return Comparison(
        operation.name,
        shape,
        executor.device.name,
        executor.toolchain,
        executor.policy,
        kernel.config,
        kernel.provenance.reason,
        tuple(make_entry(operation, shape, result, config) for result, config in _results(race, names)),
        executor.device,
        next((outcome.conditions for outcome in race.outcomes if outcome.status is Status.OK), None),
        started_at,
    )


def _results(race: Race, names: Sequence[str]) -> Iterator[tuple[BaselineResult, Config | None]]:
    """Ours with their configs, the served one first, then the baselines of these names."""
    extra = race.extra_bytes or (None,) * len(race.outcomes)
    for name, outcome, extra_bytes in zip((OURS, DEFAULT), race.outcomes, extra, strict=False):
        yield _result_of(name, outcome, extra_bytes), outcome.config
    yield from ((result, None) for result in race.baselines)
    for name in names:
        if all(result.name != name for result in race.baselines):
            yield BaselineResult(name, message="the race was lost before its turn"), None


def _result_of(name: str, outcome: Outcome, extra_bytes: int | None) -> BaselineResult:
    message = "" if outcome.status is Status.OK else f"{outcome.status}: {outcome.message}"
    return BaselineResult(name, outcome.timing, message, outcome.error, outcome.error_limit, extra_bytes)
