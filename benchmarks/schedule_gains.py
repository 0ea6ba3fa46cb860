"""Gains of each parameter in the recorded sweeps of an implementation: ``python -m benchmarks.schedule_gains``; no GPU.

Of each sweep and each value of a parameter: the least time of the configs that have it, over the least of all. What is
1.00 costs nothing, whatever the other parameters are; the rest is what a kernel without the better value would lose.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.implementation import Implementation
from autotune.registry import get_implementation, implementation_names
from autotune.space import Value
from autotune.table import shipped_sweeps
from autotune.trial import Trial
from benchmarks.console import print_head, print_row
from benchmarks.recorded_shapes import read_recordings
from benchmarks.shipped_problems import OPERATION

GLUON = "gluon_hopper"


def gains(implementation: Implementation[Any], trials: Sequence[Trial]) -> dict[str, Mapping[Value, float]]:
    """Return the least time with each value of each parameter, over the least of all; of values that were timed."""
    (recorded,) = read_recordings(implementation, [trials])
    found: dict[str, dict[Value, float]] = {}
    for config, ratio in recorded.ratios.items():
        for name, value in config.items():
            values = found.setdefault(name, {})
            values[value] = min(ratio, values.get(value, math.inf))
    return {
        name: {value: ratio for value, ratio in values.items() if ratio < math.inf} for name, values in found.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table: a row for each value of a parameter that has several, a column for each sweep."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedule_gains", description=__doc__)
    names = implementation_names(OPERATION)
    parser.add_argument("--implementation", choices=names, default=GLUON, help=f"[default: {GLUON}]")
    implementation = get_implementation(OPERATION, parser.parse_args(arguments).implementation)
    sweeps = [sweep.trials() for sweep in shipped_sweeps(OPERATION, implementation=implementation.name)]
    tables = [gains(implementation, trials) for trials in sweeps]
    print_head("parameter", "value", *(str(trials[0].shape) for trials in sweeps))
    for parameter in implementation.space.parameters:
        for value in parameter.values:
            ratios = [table.get(parameter.name, {}).get(value) for table in tables]
            if any(
                ratio is not None and len(table[parameter.name]) > 1
                for ratio, table in zip(ratios, tables, strict=True)
            ):
                print_row(parameter.name, value, *("" if ratio is None else f"{ratio:.3f}" for ratio in ratios))


if __name__ == "__main__":
    main()
