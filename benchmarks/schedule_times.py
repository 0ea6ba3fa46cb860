"""Fit the times by which the default of ``gluon_hopper`` estimates schedules: ``python -m benchmarks.schedule_times``.

Of each recorded shape without a window and each tile and order of tiles, the fastest config counts, of all GPUs of the
architecture alike; tiles of fewer than five such schedules are left out. Each size of tile has the time of a block of
its own; one number of keys shares that of an edge, one class of heads those of a tile, a program and a launch. They are
fitted by least squares of the relative errors, with outliers weighted down. Prints what
``search_spaces/flash_attention/makespan.py`` holds, with the mean error of estimates; the mean error of those of shapes
with a window, by the times that it holds; then, of recorded shapes where these change the default, both times over that
of the best. No GPU.
"""

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.optimize import nnls

from autotune.device import Device
from autotune.registry import get_implementation
from autotune.search_spaces.flash_attention import makespan
from autotune.search_spaces.flash_attention.gluon_hopper_default import schedule_of, usual_schedule
from autotune.search_spaces.flash_attention.makespan import ScheduleTimes, TileSchedule
from autotune.search_spaces.flash_attention.tile_times import TileTimes, class_of
from autotune.shape import AttentionShape
from autotune.trial import Status, Trial
from benchmarks.console import print_head, print_row
from benchmarks.merge import RESULTS
from benchmarks.portfolios import tables_of
from benchmarks.recorded_shapes import RecordedShape, is_usual, read_recordings
from benchmarks.shipped_problems import OPERATION

ROUNDS: Final = 6
LEAST: Final = 5  # schedules of a tile, by which its times are fitted
RIDGE: Final = 0.01  # weight at which times are drawn to 0: where several count together alone, they share it
STEP: Final = 1e-5  # us, by which a time is changed to see how often it counts: estimates are linear nearby
OUTLIER: Final = 0.03  # relative error from which an observation counts less
FAR: Final = 1.6  # times the best: beyond it a config is slow for other reasons than its tiles
SHARED: Final = ("tile", "program", "launch")  # by all tiles of a class
MOST_TILES: Final = 8000  # of a call: in longer ones nothing but the time of a block counts


Parameter = tuple[str, Any]  # its name, and the tile or the number of keys that it is of


class Observed(NamedTuple):
    """The least time, in us, of the configs of a shape that have one schedule."""

    shape: AttentionShape
    device: Device
    schedule: TileSchedule
    time: float


def observe(trials: Iterable[Trial], *, windows: bool = False) -> dict[tuple[int, int, bool], list[Observed]]:
    """Return what recorded trials say of schedules, by the class of their shape: of those with a window, or without."""
    least: dict[tuple[AttentionShape, Device, TileSchedule], float] = {}
    for trial in trials:
        shape = trial.shape
        if not is_usual(trial) or trial.status is not Status.OK or trial.timing is None:
            continue
        assert isinstance(shape, AttentionShape)
        schedule = schedule_of(trial.config, trial.device)
        tiles = shape.batch * shape.heads * math.ceil(shape.seq_q / schedule.rows)
        if (shape.window is not None) == windows and tiles <= MOST_TILES:
            key = shape, trial.device, schedule
            least[key] = min(trial.timing.median_us, least.get(key, math.inf))
    best: dict[tuple[AttentionShape, Device], float] = defaultdict(lambda: math.inf)
    for (shape, device, _), time in least.items():
        best[shape, device] = min(time, best[shape, device])
    found: dict[tuple[int, int, bool], list[Observed]] = defaultdict(list)
    for (shape, device, schedule), time in least.items():
        if time <= FAR * best[shape, device]:
            found[class_of(shape)].append(Observed(shape, device, schedule, time))
    return dict(sorted(found.items()))


def often_observed(observed: Sequence[Observed]) -> list[Observed]:
    """Return the observations of tiles that have enough of them to be fitted: one consumer's if two's have."""
    counts = Counter(_fitted(_tile(each.schedule)) for each in observed)
    return [each for each in observed if counts[_fitted(_tile(each.schedule))] >= LEAST]


def fit(observed: Sequence[Observed]) -> tuple[dict[tuple[int, int], ScheduleTimes], float]:
    """Fit times to observations by least squares of relative errors, and return the mean of these, too.

    One consumer's block takes half as long as that of two, which the matrix unit takes at the least: it is rarely
    measured, and never with many blocks.
    """
    tiles = sorted({_tile(each.schedule) for each in observed})
    parameters: list[Parameter] = [("block", tile) for tile in sorted(set(map(_fitted, tiles)))]
    parameters += [("edge", block_k) for block_k in sorted({block_k for _, block_k in tiles})]
    parameters += [(name, None) for name in SHARED]
    values = dict.fromkeys(parameters, 1.0)
    errors = np.zeros(len(observed))
    for _ in range(ROUNDS):
        counts, estimates = zip(*(_linearize(each, values) for each in observed), strict=True)
        measured = np.array([each.time for each in observed])
        matrix = np.array([[count.get(each, 0.0) for each in parameters] for count in counts]) / measured[:, None]
        errors = np.abs(np.log(np.array(estimates) / measured))
        weights = 1.0 / np.maximum(errors, OUTLIER)
        values = dict(zip(parameters, solve(matrix * weights[:, None], weights), strict=True))
    return {tile: _times_of(tile, values) for tile in tiles}, float(errors.mean())


def _times_of(tile: tuple[int, int], values: dict[Parameter, float]) -> ScheduleTimes:
    block = values["block", _fitted(tile)] / (1 if tile == _fitted(tile) else 2)
    of_tile = TileTimes(block, values["edge", tile[1]], values["tile", None])
    return ScheduleTimes(of_tile, values["program", None], values["launch", None])


def _tile(schedule: TileSchedule) -> tuple[int, int]:
    return schedule.consumers, schedule.block_k


def _fitted(tile: tuple[int, int]) -> tuple[int, int]:
    """Return the tile whose block is fitted: of one consumer, whose block takes half as long, that of two."""
    consumers, block_k = tile
    return max(2, consumers), block_k


def _linearize(observed: Observed, values: dict[Parameter, float]) -> tuple[dict[Parameter, float], float]:
    """Return how often each parameter counts in an estimate, near these values, and the estimate."""
    shape, device, schedule, _ = observed
    tile = _tile(schedule)
    names = [("block", _fitted(tile)), ("edge", tile[1]), *((name, None) for name in SHARED)]

    def estimate(values: dict[Parameter, float]) -> float:
        return makespan.estimate(shape, schedule, _times_of(tile, values), device.sm_count)

    base = estimate(values)
    counts = {name: (estimate({**values, name: values[name] + STEP}) - base) / STEP for name in names}
    return counts, base


def solve(matrix: Any, wanted: Any) -> list[float]:
    """Return the least squares solution in which nothing is negative, and of several alike the smallest."""
    columns = matrix.shape[1]
    solution, _ = nnls(np.vstack([matrix, RIDGE * np.eye(columns)]), np.concatenate([wanted, np.zeros(columns)]))
    return list(map(float, solution))


def print_class(kind: tuple[int, int, bool], observed: Sequence[Observed]) -> None:
    """Fit a class and print it as the module holds it."""
    found, error = fit(observed)
    print(f"    {kind}: {{  # {len(observed)} schedules, in the mean {error:.1%} off")
    for tile, times in found.items():
        of_tile, program, launch = times
        values = ", ".join(f"{value:.2f}" for value in of_tile)
        print(f"        {tile}: ScheduleTimes(TileTimes({values}), {program:.2f}, {launch:.2f}),")
    print("    },")


def print_windows(observed: dict[tuple[int, int, bool], list[Observed]]) -> None:
    """Print how far the estimates of shapes with a window are off in the mean, by class and window."""
    errors: dict[tuple[tuple[int, int, bool], int], list[float]] = defaultdict(list)
    for kind, all_of_kind in observed.items():
        for shape, device, schedule, time in all_of_kind:
            times = makespan.TIMES.get(kind, {}).get(_tile(schedule))
            if times is not None:
                estimated = makespan.estimate(shape, schedule, times, device.sm_count)
                errors[kind, shape.window or 0].append(abs(math.log(estimated / time)))
    print_head("class", "window", "schedules", "off in the mean")
    for (kind, window), found in sorted(errors.items()):
        print_row(kind, window, len(found), f"{fmean(found):.1%}")


def print_changed(recordings: Iterable[RecordedShape]) -> None:
    """Print the recorded shapes where the default is not the usual schedule, and both times over that of the best."""
    print_head("usual", "default", "shape", "")
    for each in recordings:
        assert isinstance(each.shape, AttentionShape)
        usual = usual_schedule(each.shape, each.device)
        if each.default != usual:
            ratios = (each.ratios.get(config, math.nan) for config in (usual, each.default))
            differs = {name: value for name, value in each.default.items() if value != usual[name]}
            print_row(*(f"{ratio:.3f}" for ratio in ratios), each.shape, differs)


def parse_stores(program: str, description: str | None, arguments: Sequence[str] | None) -> list[Path]:
    """Parse the arguments of a command that fits times, and return the stores whose trials count, too."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", type=Path, action="append", default=[], help="trials beside those that ship")
    stores: list[Path] = parser.parse_args(arguments).store
    return stores


def main(arguments: Sequence[str] | None = None) -> None:
    stores = parse_stores("benchmarks.schedule_times", __doc__, arguments)
    implementation = get_implementation(OPERATION, "gluon_hopper")
    tables = tables_of(implementation, RESULTS, stores)
    trials = [trial for table in tables for trial in table]
    for kind, observed in observe(trials).items():
        print_class(kind, often_observed(observed))
    print()
    print_windows(observe(trials, windows=True))
    print()
    print_changed(read_recordings(implementation, tables))


if __name__ == "__main__":
    main()
