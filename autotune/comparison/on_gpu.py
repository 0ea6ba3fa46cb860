"""A comparison on a GPU: the served kernel, the default and baselines in the worker's race."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from autotune.comparison.entry import Comparison, make_entry
from autotune.dispatch import get_kernel
from autotune.errors import AutotuneError
from autotune.executor import BaselineResult, Executor
from autotune.operation import Operation
from autotune.shape import Shape
from autotune.trial import Outcome, Status

OURS = "autotune"
DEFAULT = "autotune default"


def compare_on_gpu(
    executor: Executor, operation: Operation[Any], shape: Shape, names: Sequence[str], *, seconds: float
) -> Comparison:
    """Race what ``get_kernel`` serves, the default and the baselines of these names for so many seconds.

    These begin when all are ready. A default that fails says why, as baselines do.

    Raises:
        AutotuneError: the served kernel does not run or computes something wrong.
    """
    kernel = get_kernel(shape, device=executor.device.name, operation=operation.name)
    default = operation.space.default(shape, executor.device)
    executor.open(operation, shape)
    configs = list(dict.fromkeys([kernel.config, default]))
    started_at = datetime.now(UTC)
    race = executor.race(configs, seconds=seconds, baselines=list(names))
    served = race.outcomes[0]
    if served.status is not Status.OK:
        raise AutotuneError(f"{kernel.config} is {served.status}: {served.message}")
    extra = race.extra_bytes or (None,) * len(configs)
    names_of_ours = (OURS, DEFAULT)[: len(configs)]
    ours = [
        (_result_of(name, outcome, extra_bytes), outcome.config)
        for name, outcome, extra_bytes in zip(names_of_ours, race.outcomes, extra, strict=True)
    ]
    told = {result.name for result in race.baselines}
    untold = [BaselineResult(name, message="the race was lost before its turn") for name in names if name not in told]
    others = [(result, None) for result in (*race.baselines, *untold)]
    return Comparison(
        operation.name,
        shape,
        executor.device.name,
        executor.toolchain,
        executor.policy,
        kernel.config,
        kernel.provenance.reason,
        tuple(make_entry(operation, shape, result, config) for result, config in (*ours, *others)),
        executor.device,
        served.conditions,
        started_at,
    )


def _result_of(name: str, outcome: Outcome, extra_bytes: int | None) -> BaselineResult:
    message = "" if outcome.status is Status.OK else f"{outcome.status}: {outcome.message}"
    return BaselineResult(name, outcome.timing, message, outcome.error, outcome.error_limit, extra_bytes)
