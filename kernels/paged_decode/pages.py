# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The pages of a tile's keys in a table, in Triton."""

import triton
import triton.language as tl


@triton.jit
def load_pages(
    table_row, tile, low, high, TOKENS: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr
):  # fmt: skip
    """The page of each run of RUN keys of a tile; 0 where no key of the run lies in ``low <= key < high``."""
    starts = tile * TOKENS
    if RUN != TOKENS:
        starts += tl.arange(0, TOKENS // RUN) * RUN
    return tl.load(table_row + starts // PAGE_SIZE, mask=(starts < high) & (starts + RUN > low), other=0)
