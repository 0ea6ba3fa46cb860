"""Fit the times by which ``flash_attention/triton`` is estimated: ``python -m benchmarks.triton_times``; no GPU.

Of each recorded shape without a window and each tile of 64 rows, the fastest config counts, of all GPUs of the
architecture alike. Of each class of heads and each number of keys the times of a block, an edge, a tile and a
launch are fitted by least squares of the relative errors, with outliers weighted down. Prints what
``search_spaces/flash_attention/triton_estimate.py`` holds, with the mean error of estimates; what these times fit badly
is left out.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.registry import get_implementation
from autotune.search_spaces.flash_attention.tile_times import TileTimes, class_of, tile_times
from autotune.search_spaces.flash_attention.triton_estimate import ROWS, WARPS, TritonTimes
from autotune.shape import AttentionShape
from autotune.trial import Status, Trial
from benchmarks.merge import RESULTS
from benchmarks.portfolios import tables_of
from benchmarks.recorded_shapes import is_usual
from benchmarks.schedule_times import FAR, OUTLIER, ROUNDS, parse_stores, solve
from benchmarks.shipped_problems import OPERATION

LEAST: Final = 10  # shapes by which four times are fitted
MOST_ERROR: Final = 0.07  # mean error of a fit: beyond it more counts than what is fitted
SHORTEST: Final = 25.0  # us, that some call of these takes less than: of long ones alone a launch is not told apart
UNITS: Final = (TileTimes(1, 0, 0), TileTimes(0, 1, 0), TileTimes(0, 0, 1))

Class = tuple[tuple[int, int, bool], int]  # of ``class_of``, and BLOCK_K
Problem = tuple[AttentionShape, Device]


def observe(trials: Iterable[Trial]) -> dict[Class, dict[Problem, float]]:
    """Return the least time, in us, of each shape's tiles of 64 rows by four warps, unless others take far less."""
    least: dict[Problem, dict[int, float]] = defaultdict(dict)
    for trial in trials:
        shape, config = trial.shape, trial.config
        assert isinstance(shape, AttentionShape)
        is_alike = trial.device.has("wgmma") and ITEM_BYTES[shape.dtype] == 2 and shape.window is None
        is_timed = is_usual(trial) and trial.status is Status.OK and trial.timing is not None
        if is_alike and is_timed and (config["BLOCK_Q"], config["num_warps"]) == (ROWS, WARPS):
            assert trial.timing is not None
            known, block_k = least[shape, trial.device], config.integer("BLOCK_K")
            known[block_k] = min(trial.timing.median_us, known.get(block_k, math.inf))
    found: dict[Class, dict[Problem, float]] = defaultdict(dict)
    for (shape, device), times in least.items():
        for block_k, time in times.items():
            if time <= FAR * min(times.values()):
                found[class_of(shape), block_k][shape, device] = time
    return {kind: times for kind, times in sorted(found.items()) if _can_be_fitted(list(times.values()))}


def _can_be_fitted(times: Sequence[float]) -> bool:
    return len(times) >= LEAST and min(times) <= SHORTEST


def fit(block_k: int, measured: dict[Problem, float]) -> tuple[TritonTimes, float]:
    """Fit times to measured ones by least squares of relative errors, and return the mean of these, too."""
    times = np.array(list(measured.values()))
    matrix = np.array([_counts(shape, device, block_k) for shape, device in measured])
    weights, errors = np.ones(len(times)), np.zeros(len(times))
    solution = [0.0] * matrix.shape[1]
    for _ in range(ROUNDS):
        solution = solve(matrix / times[:, None] * weights[:, None], weights)
        errors = np.abs(np.log(matrix @ solution / times))
        weights = 1.0 / np.maximum(errors, OUTLIER)
    block, edge, tile, launch = solution
    return TritonTimes(TileTimes(block, edge, tile), launch), float(errors.mean())


def _counts(shape: AttentionShape, device: Device, block_k: int) -> list[float]:
    """Return how often a block, an edge, a tile and a launch count: those of an even share, and of the longest tile."""
    blocks, edges, tiles = (tile_times(shape, ROWS, block_k, unit) for unit in UNITS)
    longest = max(range(len(blocks)), key=lambda tile: (float(blocks[tile]), float(edges[tile])))
    heads = shape.batch * shape.heads / device.sm_count
    return [*(sum(each) * heads + each[longest] for each in (blocks, edges, tiles)), 1.0]


def main(arguments: Sequence[str] | None = None) -> None:
    stores = parse_stores("benchmarks.triton_times", __doc__, arguments)
    tables = tables_of(get_implementation(OPERATION, "triton"), RESULTS, stores)
    found: dict[tuple[int, int, bool], list[str]] = defaultdict(list)
    for (kind, block_k), measured in observe(trial for table in tables for trial in table).items():
        times, error = fit(block_k, measured)
        if error <= MOST_ERROR:
            values = f"TileTimes({', '.join(f'{value:.2f}' for value in times.of_tile)}), {times.launch:.2f}"
            line = f"        {block_k}: TritonTimes({values}),  # {len(measured)} shapes, in the mean {error:.1%} off"
            found[kind].append(line)
    for kind, lines in found.items():
        print(f"    {kind}: {{", *lines, "    },", sep="\n")


if __name__ == "__main__":
    main()
