"""Constants of the kernel in Gluon that its space and its launch share; they are in its source's hash."""

from typing import Final

from autotune.search_spaces.bounds import SWIZZLE_COLUMNS, padded_widths

ROWS: Final = 64  # of queries a warp group: those of one of its instructions
# A thread's registers by the number of consumers: with the 24 of the producer's they fill an SM's 65,536, in steps of
# 8 (PTX ISA 8.5, setmaxnreg).
REGISTERS: Final = {1: 240, 2: 240, 3: 160}


def part_widths(head_dim: int, head_dim_v: int) -> tuple[int, int, int]:
    """Return the number of parts of queries and keys, the columns of each, and those of values.

    Tiles are powers of two wide. Scores are a sum over parts of the columns, so that three quarters of such a width are
    three parts: heads of 192 are not padded to 256. Values are, since parts of their columns were products apart.
    """
    width, width_v = padded_widths(head_dim, head_dim_v)
    if width > SWIZZLE_COLUMNS and head_dim <= 3 * width // 4:
        return 3, width // 4, width_v
    return 1, width, width_v
