"""The work that decode over latents has for programs: blocks of rows that read the same keys, and shares of those."""

import math
from typing import Final

from autotune.device import Device
from autotune.dtypes import ITEM_BYTES
from autotune.search_spaces import bounds
from autotune.search_spaces.paged_decode.decode_merging import SPLITS
from autotune.search_spaces.paged_decode.decode_work import MANY_TILES, MAX_PROGRAMS, MIN_PROGRAMS, keys_read
from autotune.shape import PagedShape

PARTIAL_BYTES: Final = 4  # of an element
PROGRAMS: Final = 1  # an SM: a tile in flight is as much as several of narrow heads
RAGGED_PROGRAMS: Final = 3  # an SM, where sequences end at different times
MIN_TILES: Final = 2  # of a split
NEARLY: Final = 1.1  # times the fewest waves: more splits only add to what is merged
USUAL: Final = 128  # columns of values whose partial results are worth a split for each root of the keys


def count_blocks(shape: PagedShape, rows: int) -> int:
    """Count the programs that read the same keys, each for other rows."""
    return -(-shape.heads * shape.seq_q // rows)


def bad_splits(splits: int, shape: PagedShape, device: Device, *, rows: int, keys: int) -> str | None:
    """Return why keys, in tiles of so many, do not suffice for so many splits, or splits for the SMs, or None."""
    tiles, tiles_read = (-(-count // keys) for count in (shape.max_context, keys_read(shape).longest))
    if splits > tiles:
        return f"NUM_SPLITS={splits} of at most {tiles} tiles"
    programs = splits * shape.batch * count_blocks(shape, rows)
    made = f"NUM_SPLITS={splits} makes {programs} programs"
    if splits > 1 and programs > MAX_PROGRAMS * device.sm_count:
        return f"{made}, more than {MAX_PROGRAMS} for each of {device.sm_count} SMs"
    if programs < MIN_PROGRAMS * device.sm_count and MANY_TILES * splits < tiles_read:
        return f"{made}, which leave most of {device.sm_count} SMs idle"
    partial_bytes = splits * shape.heads * shape.seq_q * shape.head_dim_v * PARTIAL_BYTES
    # Products with more rows than a tile has anyhow take longer than reading, as much as they are more.
    key_bytes = shape.mean_context * shape.head_dim * ITEM_BYTES[shape.dtype] * count_blocks(shape, bounds.MIN_BLOCK)
    if splits > 1 and partial_bytes > key_bytes:
        return f"NUM_SPLITS={splits}: partial results of {partial_bytes} bytes for keys worth {key_bytes} bytes"
    return None


def usual_splits(shape: PagedShape, device: Device, *, rows: int, keys: int) -> int:
    """Return the fewest splits with which the SMs take about as few waves, of shares of a sequence, as they can."""
    reads, programs = keys_read(shape), shape.batch * count_blocks(shape, rows)
    worth = min(reads.longest / keys / MIN_TILES, math.sqrt(reads.longest * USUAL / shape.head_dim_v))
    most = max(1.0, min(worth, MAX_PROGRAMS * device.sm_count / programs))
    choices = [splits for splits in SPLITS if splits <= most]
    if reads.evenness < 1.0:
        wanted = RAGGED_PROGRAMS * device.sm_count / programs
        return next((splits for splits in choices if splits >= wanted), choices[-1])
    wave = PROGRAMS * device.sm_count
    waves = {splits: math.ceil(splits * programs / wave) / splits for splits in choices}
    return next(splits for splits in choices if waves[splits] <= NEARLY * min(waves.values()))
