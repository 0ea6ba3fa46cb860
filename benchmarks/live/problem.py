"""The main shape, what is known of it, and races between configs."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from autotune.executor.gpu import GpuExecutor
from autotune.implementation import Implementation
from autotune.operation import Definition, Operation
from autotune.registry import get_implementation, get_operation, load_definition
from autotune.search import Limits
from autotune.shape import AttentionShape
from autotune.space import Config
from autotune.table import shipped_sweeps
from autotune.trial import Candidate, Stage, Status, Timing, Trial
from benchmarks.grids import OPERATION, TRITON, grid_shape

MAIN: Final = grid_shape(128, True, 4096)
LIMITS: Final = Limits(trials=120, seconds=60, converge=True)
RACE_SECONDS: Final = 8.0


def operation() -> Operation[Any]:
    return get_operation(OPERATION)


def definition() -> Definition:
    return load_definition(OPERATION)


def implementation() -> Implementation[Any]:
    return get_implementation(OPERATION, TRITON)


@cache
def optimum() -> Trial:
    """The fastest config of the main shape's recorded sweep.

    Raises:
        LookupError: no such sweep is shipped.
    """
    rows = [
        trial
        for sweep in shipped_sweeps(OPERATION, implementation=TRITON)
        for trial in sweep.trials()
        if trial.shape == MAIN
    ]
    raced = [(row.timing.median_us, row) for row in rows if row.stage is Stage.RACE and row.timing is not None]
    right = [(median, row) for median, row in raced if row.status is Status.OK]
    if not right:
        raise LookupError(f"no sweep of {MAIN} is shipped")
    return min(right, key=lambda item: item[0])[1]


def valid_configs() -> list[Config]:
    """Every valid config of the main shape, in the space's order."""
    return list(implementation().space.configs(MAIN, optimum().device))


@contextmanager
def opened(shape: AttentionShape) -> Iterator[GpuExecutor]:
    """An executor with a shape open."""
    executor = GpuExecutor()
    try:
        executor.open(operation(), shape)
        yield executor
    finally:
        executor.close()


def race(executor: GpuExecutor, configs: Iterable[Config], *, seconds: float = RACE_SECONDS) -> dict[Config, Timing]:
    """Times of configs that were measured interleaved on the open shape.

    Raises:
        RuntimeError: one of them has none.
    """
    found = {}
    wanted = [Candidate(TRITON, config) for config in dict.fromkeys(configs)]
    for outcome in executor.race(wanted, seconds=seconds).outcomes:
        if outcome.timing is None:
            raise RuntimeError(f"{outcome.config} has no time: {outcome.status}, {outcome.message}")
        found[outcome.config] = outcome.timing
    return found


def race_main(configs: Sequence[Config]) -> dict[Config, Timing]:
    """A race on the main shape by an executor of its own."""
    with opened(MAIN) as executor:
        return race(executor, configs)


def from_plain(values: dict[str, Any]) -> Config:
    """A config from JSON, in the space's order; what is left out does not apply."""
    return Config({parameter.name: values.get(parameter.name) for parameter in implementation().space.parameters})
