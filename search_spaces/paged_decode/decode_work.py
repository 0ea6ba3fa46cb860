"""The work that a paged decode has for programs: the keys that are read, and configs that leave SMs idle or merge more
than they read."""

import math
from functools import lru_cache
from typing import Final, NamedTuple

from autotune.device import Device
from autotune.dtypes import KV_ITEM_BYTES
from autotune.search_spaces.lengths import spread_lengths
from autotune.shape import PagedShape
from autotune.space import Config

# Programs for each SM: fewer leave SMs idle, more only begin more often (NVIDIA H200, 2026-11-21, batch 1 to 128).
MIN_PROGRAMS, MAX_PROGRAMS = 0.5, 16
# The share of a window that is full in the mean, from which on its sequences are spread as if they were even. That took
# 1.00 to 1.03 times the best for shares of 0.81 and 0.87, and 1.07 to 1.20 times for 0.75; spread as uneven, 0.75 takes
# 1.00 times and 0.87 takes 1.05 (four problems, NVIDIA H200, 2026-11-27; ``benchmarks.portfolios --list``). Whole
# sequences are taken to be alike, of which nothing between 1/2 and 1 is recorded.
NEARLY_FULL: Final = 0.8
MANY_TILES: Final = 4  # that are read by each split: where SMs are idle, more splits pay
PARTIAL_BYTES: Final = {"float32": 4, "float16": 2, "bfloat16": 2}


class Reads(NamedTuple):
    """The keys that are read of a sequence, at most and in the mean: no more than the window has."""

    longest: int
    mean: int

    @property
    def evenness(self) -> float:
        """The mean over the longest, from above 0 to 1: the share of the time that a program a sequence is busy."""
        return self.mean / self.longest


@lru_cache(maxsize=1024)
def keys_read(shape: PagedShape) -> Reads:
    """Return how many keys of a sequence are read, of lengths as ``spread_lengths`` has them.

    Nearly full sequences, or windows, count as full.
    """
    reach, mean = shape.max_context, shape.mean_context
    if shape.window is not None and shape.window + shape.seq_q - 1 < reach:
        reach = shape.window + shape.seq_q - 1
        lengths = spread_lengths(shape.batch, shape.max_context, mean)
        mean = math.ceil(sum(min(reach, length) for length in lengths) / shape.batch)
    return Reads(reach, reach if mean >= NEARLY_FULL * reach else mean)


def lanes(config: Config, shape: PagedShape) -> int:
    """Count the programs that read the same sequence: its KV heads by HEADS, times the blocks of rows of those."""
    heads = config.integer("HEADS")
    return shape.kv_heads // heads * -(-heads * shape.group * shape.seq_q // config.integer("BLOCK_ROWS"))


def outweighs_reading(splits: int, partials: str, shape: PagedShape) -> str | None:
    """Return why partial results of so many splits take more bytes than the keys and values that are split, or None."""
    partial_bytes = splits * shape.group * shape.seq_q * shape.head_dim_v * PARTIAL_BYTES[partials]
    key_bytes = shape.mean_context * (shape.head_dim + shape.head_dim_v) * KV_ITEM_BYTES[shape.kv_dtype]
    if splits == 1 or partial_bytes <= key_bytes:
        return None
    return f"NUM_SPLITS={splits}: partial results of {partial_bytes} bytes for keys and values of {key_bytes} bytes"


def idle_work(config: Config, shape: PagedShape, device: Device) -> str | None:
    """Return why tiles or keys do not suffice for so many splits or programs, or splits for the SMs, or None."""
    tokens, parallel = max(1, config.integer("BLOCK_K") // config.integer("HEADS")), lanes(config, shape)
    tiles, tiles_read = (-(-keys // tokens) for keys in (shape.max_context, keys_read(shape).longest))
    if config["schedule"] == "flat":
        programs = config.integer("PROGRAMS_PER_SM") * device.sm_count // parallel
        if config["PROGRAMS_PER_SM"] != 1 and programs > shape.batch * tiles:
            return f"{programs} programs of a KV head for at most {shape.batch * tiles} tiles"
        return None
    splits = config.integer("NUM_SPLITS")
    if splits > tiles:
        return f"NUM_SPLITS={splits} of at most {tiles} tiles"
    programs = splits * shape.batch * parallel
    if splits > 1 and programs > MAX_PROGRAMS * device.sm_count:
        return (
            f"NUM_SPLITS={splits} makes {programs} programs, more than {MAX_PROGRAMS} for each of {device.sm_count} SMs"
        )
    if programs < MIN_PROGRAMS * device.sm_count and MANY_TILES * splits < tiles_read:
        return f"NUM_SPLITS={splits} makes {programs} programs, which leave most of {device.sm_count} SMs idle"
    return outweighs_reading(splits, str(config["PARTIALS"]), shape)
