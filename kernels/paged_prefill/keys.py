# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Where the keys of a tile lie in a paged cache, and what is loaded from there, in Triton.

Strides are arguments here, constants in ``paged_decode``. As constants they save a sixth of the instructions, but ptxas
then computes addresses between the copies that take them, and prefill is slower: 2048 queries in tiles of 64 x 64 took
111 us (``benchmarks.record`` at commit f58df06, NVIDIA H200, 2026-11-22), and 97 us as here (the same, 2026-11-21).
"""

import triton
import triton.language as tl

from autotune.kernels.flash_attention.forward import _offset


@triton.jit
def locate_keys(
    pages, tile, stride_page, stride_slot, TOKENS: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr,
    stride_head=0, HEADS: tl.constexpr = 1,
):  # fmt: skip
    """Where a tile's keys lie in a cache: 64-bit offsets of its rows, HEADS heads of one token after another."""
    rows = tl.arange(0, TOKENS * HEADS)
    slots = rows // HEADS
    if RUN == TOKENS:
        slots += tile * TOKENS % PAGE_SIZE
    else:
        if RUN * HEADS != 1:  # multiplied afterwards: how far offsets are aligned is not known past a reshape
            pages = tl.broadcast_to(pages[:, None], [TOKENS // RUN, RUN * HEADS]).reshape(TOKENS * HEADS)
        if RUN != PAGE_SIZE:
            slots += tile * TOKENS
        slots %= PAGE_SIZE
    offsets = _offset(pages, stride_page) + _offset(slots, stride_slot)
    if HEADS != 1:
        offsets += _offset(rows % HEADS, stride_head)
    return offsets


@triton.jit
def load_rows(
    rows_ptr, offsets, present, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, PARTS: tl.constexpr = 1
):  # fmt: skip
    """Rows at these offsets as a tile; absent rows and padding columns are 0, and not read.

    In two PARTS, the first holds the first two columns of every four, in the order of ``packing.unpack_pairs``.
    """
    columns = tl.arange(0, BLOCK_WIDTH // PARTS)
    if PARTS == 2:
        columns = columns // 2 * 4 + columns % 2
    mask = present[:, None]
    if WIDTH != BLOCK_WIDTH:
        mask = mask & (columns < WIDTH)[None, :]
    return tl.load(rows_ptr + offsets[:, None] + columns[None, :], mask=mask, other=0.0)
