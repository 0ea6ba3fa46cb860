"""The time of a schedule of ``gluon_hopper``, estimated: that of the multiprocessor with the most to do.

A program takes one tile of queries after another, each a fixed number of tiles behind the last, and a multiprocessor
holds one program, by the registers of its consumers. So a call ends when the busiest multiprocessor has done its tiles:
their number is rounded up, those of a causal mask differ in length, and an order may give one program all long ones.
"""

import heapq
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.search_spaces.flash_attention.tile_times import TileTimes, tile_times
from autotune.search_spaces.flash_attention.warp_groups import ROWS
from autotune.shape import AttentionShape

# Of more tiles, the first heads stand for all, and of more programs the last: what is uneven there is little of all.
MOST_TILES: Final = 32768
MOST_PROGRAMS: Final = 1024


class ScheduleTimes(NamedTuple):
    """Microseconds that a multiprocessor is busy with tiles and each program, and that a launch takes in addition."""

    of_tile: TileTimes
    program: float
    launch: float


class TileSchedule(NamedTuple):
    """The rows and keys of a tile, and the order of tiles; ``workers`` programs share them, or each has its own."""

    consumers: int
    block_k: int
    workers: int | None
    section: int
    row_order: str

    @property
    def rows(self) -> int:
        """The rows of a tile."""
        return self.consumers * ROWS


# By the columns of keys and of values, and with softcap or without: fitted to 2,712 schedules that H200s and H100s of
# NVIDIA recorded until 2026-11-29 (``python -m benchmarks.schedule_times``). What is not here has too few recordings.
TIMES: Final[Mapping[tuple[int, int, bool], Mapping[tuple[int, int], ScheduleTimes]]] = {
    (64, 64, False): {
        (1, 64): ScheduleTimes(TileTimes(0.32, 0.00, 0.87), 2.85, 1.71),
        (1, 128): ScheduleTimes(TileTimes(0.55, 0.35, 0.87), 2.85, 1.71),
        (2, 64): ScheduleTimes(TileTimes(0.65, 0.00, 0.87), 2.85, 1.71),
        (2, 128): ScheduleTimes(TileTimes(1.11, 0.35, 0.87), 2.85, 1.71),
        (3, 64): ScheduleTimes(TileTimes(0.99, 0.00, 0.87), 2.85, 1.71),
        (3, 128): ScheduleTimes(TileTimes(1.48, 0.35, 0.87), 2.85, 1.71),
    },
    (96, 128, False): {
        (2, 64): ScheduleTimes(TileTimes(0.92, 0.57, 0.92), 2.38, 0.00),
        (2, 128): ScheduleTimes(TileTimes(1.37, 0.70, 0.92), 2.38, 0.00),
        (3, 64): ScheduleTimes(TileTimes(1.36, 0.57, 0.92), 2.38, 0.00),
    },
    (128, 128, False): {
        (1, 64): ScheduleTimes(TileTimes(0.40, 0.00, 1.10), 2.54, 2.40),
        (1, 128): ScheduleTimes(TileTimes(0.74, 0.28, 1.10), 2.54, 2.40),
        (2, 64): ScheduleTimes(TileTimes(0.81, 0.00, 1.10), 2.54, 2.40),
        (2, 128): ScheduleTimes(TileTimes(1.47, 0.28, 1.10), 2.54, 2.40),
        (3, 64): ScheduleTimes(TileTimes(1.21, 0.00, 1.10), 2.54, 2.40),
    },
    (128, 128, True): {
        (2, 64): ScheduleTimes(TileTimes(1.38, 0.00, 0.92), 2.75, 3.71),
        (2, 128): ScheduleTimes(TileTimes(2.78, 3.50, 0.92), 2.75, 3.71),
        (3, 64): ScheduleTimes(TileTimes(2.28, 0.00, 0.92), 2.75, 3.71),
    },
    (192, 128, False): {
        (2, 64): ScheduleTimes(TileTimes(0.99, 0.00, 1.52), 1.33, 6.67),
        (2, 128): ScheduleTimes(TileTimes(1.72, 0.70, 1.52), 1.33, 6.67),
        (3, 64): ScheduleTimes(TileTimes(1.40, 0.00, 1.52), 1.33, 6.67),
    },
    (256, 256, False): {
        (2, 64): ScheduleTimes(TileTimes(1.29, 0.00, 3.75), 0.78, 1.17),
    },
    (256, 256, True): {
        (2, 64): ScheduleTimes(TileTimes(1.78, 0.00, 4.34), 0.78, 2.07),
    },
}


def estimate(shape: AttentionShape, schedule: TileSchedule, times: ScheduleTimes, multiprocessors: int) -> float:
    """Return the microseconds until the busiest of so many multiprocessors is done, from the launch on."""
    rows = tile_times(shape, schedule.rows, schedule.block_k, times.of_tile)
    heads = shape.batch * shape.heads
    if schedule.workers is None:  # a tile goes to who is free: before the last ones all are equally busy
        last = min(heads, max(1, MOST_PROGRAMS // len(rows)))
        evenly = (heads - last) * (float(rows.sum()) + len(rows) * times.program) / multiprocessors
        return times.launch + evenly + _busiest(rows, last, schedule, times, multiprocessors)
    some = min(heads, max(1, MOST_TILES // len(rows)))
    return times.launch + _busiest(rows, some, schedule, times, multiprocessors) * heads / some


def _busiest(
    rows: NDArray[np.float64], heads: int, schedule: TileSchedule, times: ScheduleTimes, multiprocessors: int
) -> float:
    tiles = in_order(rows, heads, schedule.section, schedule.row_order)
    count = len(tiles) if schedule.workers is None else min(schedule.workers, len(tiles))
    shares = np.zeros((-(-len(tiles) // count), count))
    shares.ravel()[: len(tiles)] = tiles
    programs = shares.sum(axis=0) + times.program
    if count <= multiprocessors:
        return float(programs.max())
    busy: list[float] = programs[:multiprocessors].tolist()
    heapq.heapify(busy)
    for program in programs[multiprocessors:].tolist():  # each begins where one has ended
        heapq.heapreplace(busy, busy[0] + program)
    return max(busy)


def lower_bound(shape: AttentionShape, tile: tuple[int, int], times: ScheduleTimes, multiprocessors: int) -> float:
    """Return the microseconds that tiles of so many consumers and keys take at least, in whatever order they come."""
    consumers, block_k = tile
    rows = tile_times(shape, consumers * ROWS, block_k, times.of_tile)
    evenly = float(rows.sum()) * shape.batch * shape.heads / multiprocessors
    return times.launch + times.program + max(evenly, float(rows.max()))


def in_order(rows: NDArray[np.float64], heads: int, section: int, row_order: str) -> NDArray[np.float64]:
    """Return the times of the tiles of so many heads in the order in which programs take them.

    Tiles come by sections of heads: the same rows of each head, then the next rows. ``alternating`` begins with the
    last rows in even heads.
    """
    backwards = rows[::-1]
    even = rows if row_order == "natural" else backwards
    odd = backwards if row_order == "reversed" else rows
    pair = np.array((even, odd))
    if section == 1:
        return np.tile(pair.ravel(), (heads + 1) // 2)[: heads * len(rows)]
    of_heads = np.tile(pair, (section // 2, 1))
    whole, rest = divmod(heads, section)
    return np.concatenate([np.tile(of_heads.T.ravel(), whole), of_heads[:rest].T.ravel()])
