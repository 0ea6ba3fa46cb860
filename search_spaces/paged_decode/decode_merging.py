"""The number of splits that pay, and the type of their partial results: of paged decode, by its sizes alone.

Splits read the keys of a sequence at once, and leave results that a second kernel merges. Constants were chosen as
those of ``decode_default`` were.
"""

import math
from typing import Final

from autotune.device import Device
from autotune.dtypes import KV_ITEM_BYTES
from autotune.search_spaces import bounds
from autotune.search_spaces.paged_decode.decode_work import keys_read, outweighs_reading
from autotune.shape import PagedShape

PROGRAMS_PER_SM: Final = (1, 2, 3, 4, 6, 8)
MAX_SPLITS_LAST: Final = 8  # that one program merges: with 16 and more it took longer than a second kernel
MIN_SPLITS_HALF: Final = 8  # below, partial results are too few for their type to matter
SPLITS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)
USUAL: Final = 128  # numbers of a row of most heads
# Splits shorten reading as their number, and lengthen merging as much: together least where they follow the square
# root of the keys, fewer where partial results are wider: half the root, but all of it where each program has an SM of
# its own and keys have 16 bits.
SPLITS_OF_ROOT: Final = 0.5
# Partial results of so many bytes in float32, merged so many at once, are left in 16 bits: less where heads are broad,
# and where little is read; 30 problems drawn and recorded on the H200 (2026-11-28) take 0.98 of the time in the mean
# with a quarter of the bytes that were asked for before. Caches of 8 bits want more of both.
NARROWED_BYTES, NARROWED_SPLITS = 2**19, 8
NARROWED_BYTES_OF_8_BITS, NARROWED_SPLITS_OF_8_BITS = 2**21, 12
SHORT, PART_OF_SHORT = 8192, 3 / 8


def worth_merging(shape: PagedShape, device: Device, sequences: int) -> float:
    """Return the most splits that shorten reading by more than merging takes, each of a tile at least.

    A window begins within a tile, so that one more is read, and another makes the number one of the space.

    Args:
        sequences: the programs that there would be without splits.
    """
    longest, width = keys_read(shape).longest, _width(shape)
    tiles = longest / bounds.MIN_BLOCK_K + (2 if longest < shape.max_context else 0)
    root = math.sqrt(longest * USUAL / width)
    has_own_sm = sequences * _round_down(min(tiles, root)) <= device.sm_count
    return min(tiles, root if has_own_sm and KV_ITEM_BYTES[shape.kv_dtype] > 1 else SPLITS_OF_ROOT * root)


def most_splits(shape: PagedShape, most: float) -> int:
    """Return the most splits of the space, up to ``most`` or one.

    Of sequences of one length they leave no more bytes than they read. Of others too many are not preferred at all:
    equal shares take their place.
    """
    is_even = keys_read(shape).evenness == 1.0
    return max(
        each
        for each in SPLITS
        if each <= max(1.0, most)
        and not (is_even and outweighs_reading(each, partials_type(shape, each), shape) is not None)
    )


def partials_type(shape: PagedShape, splits: int) -> str:
    """Return the type that partial results of so many splits are left in."""
    width = _width(shape)
    partial_bytes = 4 * splits * shape.batch * shape.heads * shape.seq_q * width
    many, least = float(NARROWED_BYTES), NARROWED_SPLITS
    if KV_ITEM_BYTES[shape.kv_dtype] == 1:
        many, least = NARROWED_BYTES_OF_8_BITS, NARROWED_SPLITS_OF_8_BITS
    many *= (PART_OF_SHORT if keys_read(shape).longest < SHORT else 1.0) * USUAL / max(USUAL, width)
    return shape.dtype if partial_bytes >= many and splits >= least else "float32"


def _width(shape: PagedShape) -> int:
    return bounds.padded_widths(shape.head_dim, shape.head_dim_v)[1]


def _round_down(splits: float) -> int:
    """Return the most splits of the space that are no more, and one at least."""
    return max(each for each in SPLITS if each <= max(1.0, splits))
