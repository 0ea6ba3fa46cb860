"""The time of a schedule of ``gluon_hopper``, estimated: that of the multiprocessor with the most to do.

A program takes one tile of queries after another, each a fixed number of tiles behind the last, and a multiprocessor
holds one program, by the registers of its consumers. So a call ends when the busiest multiprocessor has done its tiles:
their number is rounded up, those of a causal mask differ in length, and an order may give one program all long ones.
"""

import heapq
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autotune.device import Device
from autotune.search_spaces.flash_attention.tile_work import rough_tiles
from autotune.search_spaces.flash_attention.warp_groups import ROWS
from autotune.shape import AttentionShape
from autotune.space import Config

# Of more tiles, the first heads stand for all, and of more programs the last: what is uneven there is little of all.
MOST_TILES: Final = 32768
MOST_PROGRAMS: Final = 1024
# Microseconds of a program, and of a launch. Rough: of 2,712 schedules that H200s and H100s of NVIDIA recorded until
# 2026-11-29 least squares gave 0.8 to 2.9 and 0 to 6.7, by heads.
PROGRAM, LAUNCH = 2.5, 2.0


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


def schedule_of(config: Config, device: Device) -> TileSchedule:
    """Return the part of a config that says how much each multiprocessor has to do."""
    count = device.sm_count
    fewer = {f"sm-{less}": max(1, count - less) for less in (1, 3)}
    workers = {"tiles": None, "sm": count, **fewer, "2sm": 2 * count}
    tile = config.integer("consumers"), config.integer("BLOCK_K")
    return TileSchedule(*tile, workers[str(config["workers"])], config.integer("section"), str(config["row_order"]))


def estimate(shape: AttentionShape, schedule: TileSchedule, multiprocessors: int) -> float:
    """Return the rough microseconds until the busiest of so many multiprocessors is done, from the launch on."""
    rows = rough_tiles(shape, schedule.rows, schedule.block_k)
    heads = shape.batch * shape.heads
    if schedule.workers is None:  # a tile goes to who is free: before the last ones all are equally busy
        last = min(heads, max(1, MOST_PROGRAMS // len(rows)))
        evenly = (heads - last) * (float(rows.sum()) + len(rows) * PROGRAM) / multiprocessors
        return LAUNCH + evenly + _busiest(rows, last, schedule, multiprocessors)
    some = min(heads, max(1, MOST_TILES // len(rows)))
    return LAUNCH + _busiest(rows, some, schedule, multiprocessors) * heads / some


def _busiest(rows: NDArray[np.float64], heads: int, schedule: TileSchedule, multiprocessors: int) -> float:
    tiles = in_order(rows, heads, schedule.section, schedule.row_order)
    count = len(tiles) if schedule.workers is None else min(schedule.workers, len(tiles))
    shares = np.zeros((-(-len(tiles) // count), count))
    shares.ravel()[: len(tiles)] = tiles
    programs = shares.sum(axis=0) + PROGRAM
    if count <= multiprocessors:
        return float(programs.max())
    busy: list[float] = programs[:multiprocessors].tolist()
    heapq.heapify(busy)
    for program in programs[multiprocessors:].tolist():  # each begins where one has ended
        heapq.heapreplace(busy, busy[0] + program)
    return max(busy)


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
