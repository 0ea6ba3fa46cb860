"""The time of a tile of queries on Hopper, roughly, by what its matrix products and exponentials take.

What follows from it compares schedules of one implementation: orders of tiles that differ, and how many of them each
multiprocessor has. Networks that rank candidates weigh what else matters (``hopper_ranking``).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.search_spaces.flash_attention.tile_times import TileTimes, class_of, tile_times
from autotune.shape import AttentionShape

# Rough, of a multiprocessor of an H100 or H200 in a microsecond: 989.4 TFLOP/s of 16 bits by 132 (NVIDIA, "H100 Tensor
# Core GPU Datasheet"), and 16 exponentials a clock (CUDA C++ Programming Guide, throughput of arithmetic instructions).
MULTIPLIED: Final = 7.5e6
RAISED: Final = 2.7e4
CAPPED: Final = 2.2  # exponentials and hyperbolic tangents of a score with softcap
UNHIDDEN: Final = 0.5  # of what takes less time, products or exponentials, that the other does not hide
EDGE: Final = 0.3  # microseconds, of a block that some rows do not see, in addition
TILE, COLUMN = 0.5, 0.6 / 256  # of a tile, and of each column of its keys and values


def rough_times(shape: AttentionShape, rows: int, block_k: int) -> TileTimes:
    """Return the microseconds of parts of a tile of so many rows and blocks of so many keys."""
    width_k, width_v, softcap = class_of(shape)
    columns = width_k + width_v
    products = 2 * rows * block_k * columns / MULTIPLIED
    exponentials = rows * block_k * (CAPPED if softcap else 1.0) / RAISED
    block = max(products, exponentials) + UNHIDDEN * min(products, exponentials)
    return TileTimes(block, EDGE, TILE + COLUMN * columns)


def rough_tiles(shape: AttentionShape, rows: int, block_k: int) -> NDArray[np.float64]:
    """Return the microseconds of each tile of a head, from its first rows to its last."""
    return tile_times(shape, rows, block_k, rough_times(shape, rows, block_k))
