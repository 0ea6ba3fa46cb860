"""Widths of tiles of one byte an element, which the space of e4m3 and its launch share; they are in its hash."""

from typing import Final

from autotune.search_spaces.flash_attention.warp_groups import part_widths

BYTE_COLUMNS: Final = 32  # that an instruction sums over
VALUE_COLUMNS: Final = 64
MOST_COLUMNS: Final = 192  # of scores and of values, beside as many sums of a block


def byte_widths(head_dim: int, head_dim_v: int) -> tuple[int, int, int]:
    """Return the number of parts of queries and keys, the columns of each, and those of values, as ``part_widths``."""
    return part_widths(max(BYTE_COLUMNS, head_dim), head_dim_v)


def value_parts(width_v: int, block_k: int, sums: str) -> int:
    """Return the parts of 64 columns that values of one byte are multiplied in.

    There are several where registers do not hold the scores of a block, the sums of all columns and those of a block,
    or with none to spare: heads of 128 took 1.08 to 1.13 times as long in one part by blocks of 128 keys, 0.84 times by
    blocks of 64 (one NVIDIA H200, 2026-11-28, 16,384 tokens, no mask, medians of launches one after the other).
    """
    is_large = sums == "block" and block_k + width_v > MOST_COLUMNS
    return max(1, width_v // VALUE_COLUMNS) if is_large else 1
