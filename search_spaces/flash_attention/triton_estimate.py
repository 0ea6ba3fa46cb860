"""The time of ``triton``, estimated: the share of a multiprocessor in all tiles, and the longest tile.

Its programs take one tile each, and several share a multiprocessor, which takes the next when one has ended. What is
so given out ends no later than an even share and the longest one after it (Graham, "Bounds on Multiprocessing Timing
Anomalies", SIAM Journal on Applied Mathematics 17, 1969).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.search_spaces.flash_attention.tile_times import LONGEST, TileTimes, class_of, tile_times
from autotune.shape import AttentionShape
from autotune.space import Config

ROWS, WARPS = 64, 4  # of the tiles that win there


class TritonTimes(NamedTuple):
    """Microseconds that a multiprocessor is busy with a tile, and that a launch takes in addition."""

    of_tile: TileTimes
    launch: float


# By the class of the shape and BLOCK_K: fitted to the fastest configs of 64 rows that H200s and H100s of NVIDIA
# recorded until 2026-11-29 (``python -m benchmarks.triton_times``), from which they are 1 to 6 % off in the mean.
TIMES: Final[Mapping[tuple[int, int, bool], Mapping[int, TritonTimes]]] = {
    (64, 64, False): {
        32: TritonTimes(TileTimes(0.18, 0.19, 0.46), 3.15),
        64: TritonTimes(TileTimes(0.28, 0.30, 0.46), 3.45),
        128: TritonTimes(TileTimes(0.56, 0.34, 1.29), 2.42),
    },
    (128, 128, False): {
        16: TritonTimes(TileTimes(0.19, 0.09, 1.29), 2.90),
        32: TritonTimes(TileTimes(0.25, 0.14, 1.00), 3.55),
        64: TritonTimes(TileTimes(0.47, 0.39, 1.35), 1.97),
        128: TritonTimes(TileTimes(1.17, 0.83, 2.09), 0.00),
    },
    (128, 128, True): {
        32: TritonTimes(TileTimes(0.39, 0.00, 1.29), 2.39),
        64: TritonTimes(TileTimes(0.73, 0.96, 0.96), 0.44),
    },
    (256, 256, False): {
        16: TritonTimes(TileTimes(0.33, 0.02, 2.73), 0.19),
        32: TritonTimes(TileTimes(0.46, 0.01, 2.61), 0.00),
    },
    (256, 256, True): {
        16: TritonTimes(TileTimes(0.38, 0.68, 0.17), 0.00),
        32: TritonTimes(TileTimes(0.60, 0.00, 2.22), 0.00),
    },
}


def estimate(config: Config, shape: AttentionShape, device: Device) -> float | None:
    """Return the microseconds that a config takes at best, whatever its stages and loads; None of what was not fitted.

    On other Hopper GPUs than the fitted ones it is as good as their tiles for each multiprocessor are alike.
    """
    block_k = config.integer("BLOCK_K")
    times = TIMES.get(class_of(shape), {}).get(block_k)
    is_fitted = (config["BLOCK_Q"], config["num_warps"], ITEM_BYTES[shape.dtype]) == (ROWS, WARPS, 2)
    if times is None or not is_fitted or shape.window is not None or shape.seq_q > LONGEST or not device.has("wgmma"):
        return None
    tiles = tile_times(shape, ROWS, block_k, times.of_tile)
    return times.launch + float(tiles.sum()) * shape.batch * shape.heads / device.sm_count + float(tiles.max())
