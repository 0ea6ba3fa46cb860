"""Widths of tiles of one byte an element, which the space of e4m3 and its launch share; they are in its hash."""

from typing import Final

from autotune.search_spaces.flash_attention.warp_groups import part_widths

BYTE_COLUMNS: Final = 32  # that an instruction sums over
VALUE_COLUMNS: Final = 64


def byte_widths(head_dim: int, head_dim_v: int) -> tuple[int, int, int]:
    """Return the number of parts of queries and keys, the columns of each, and those of values, as ``part_widths``."""
    return part_widths(max(BYTE_COLUMNS, head_dim), head_dim_v)


def value_parts(width_v: int, sums: str) -> int:
    """Return the parts of 64 columns that values of one byte are multiplied in; a block's sums of 128 fit registers."""
    return width_v // VALUE_COLUMNS if sums == "block" and width_v > 2 * VALUE_COLUMNS else 1
