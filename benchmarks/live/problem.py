"""The main shape, its recorded optimum, its tensors, and races between configs."""

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final

from autotune.executor.gpu import GpuExecutor
from autotune.registry import get_implementation, get_operation, load_definition
from autotune.search import Limits
from autotune.space import Config
from autotune.table import shipped_sweeps
from autotune.trial import Candidate, Stage, Status, Timing, Trial, median_us
from benchmarks.shipped_problems import OPERATION, TRITON, benchmark_shape

MAIN: Final = benchmark_shape(128, True, 4096)
ATTENTION: Final = get_operation(OPERATION)
IMPLEMENTATION: Final = get_implementation(OPERATION, TRITON)
LIMITS: Final = Limits(trials=120, seconds=60, converge=True)  # those of `autotune search`
RACE_SECONDS: Final = 8.0


@cache
def optimum() -> Trial:
    """Return the fastest config of the main shape's recorded sweep; raise LookupError if none is shipped."""
    rows = [row for sweep in shipped_sweeps(OPERATION, implementation=TRITON) for row in sweep.trials()]
    raced = [row for row in rows if (row.shape, row.stage, row.status) == (MAIN, Stage.RACE, Status.OK)]
    if not raced:
        raise LookupError(f"no sweep of {MAIN} is shipped")
    return min(raced, key=median_us)


def valid_configs() -> list[Config]:
    return list(IMPLEMENTATION.space.configs(MAIN, optimum().device))


def make_tensors(shape: Any) -> tuple[Any, Any]:
    """Return inputs on the GPU, and their first output in a tuple."""
    definition = load_definition(OPERATION)
    inputs = definition.make_inputs(shape, seed=0, device="cuda")
    return inputs, definition.empty_outputs(inputs)[:1]


def race(executor: GpuExecutor, configs: Iterable[Config], *, seconds: float = RACE_SECONDS) -> dict[Config, Timing]:
    """Measure configs interleaved on the open shape; raise RuntimeError if one has no time."""
    found = {}
    wanted = [Candidate(TRITON, config) for config in dict.fromkeys(configs)]
    for outcome in executor.race(wanted, seconds=seconds).outcomes:
        if outcome.timing is None:
            raise RuntimeError(f"{outcome.config} has no time: {outcome.status}, {outcome.message}")
        found[outcome.config] = outcome.timing
    return found


def race_main(configs: Sequence[Config]) -> dict[Config, Timing]:
    """Race configs on the main shape, by an executor of their own."""
    with closing(GpuExecutor()) as executor:
        executor.open(ATTENTION, MAIN)
        return race(executor, configs)


def from_plain(values: dict[str, Any]) -> Config:
    """Return a config from JSON, in the space's order; parameters that are left out do not apply."""
    return Config({parameter.name: values.get(parameter.name) for parameter in IMPLEMENTATION.space.parameters})


def to_plain(timings: dict[Config, Timing]) -> list[dict[str, Any]]:
    return [{"config": dict(config), **asdict(timing)} for config, timing in timings.items()]


def write_configs(path: Path, configs: Sequence[Config]) -> Path:
    path.write_text(json.dumps([dict(config) for config in configs]))
    return path
