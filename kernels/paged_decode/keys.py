# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Where the keys of a tile lie in a paged cache, and what is loaded from there, in Triton."""

import triton
import triton.language as tl

from autotune.kernels.flash_attention.forward import _offset


@triton.jit
def locate_keys(
    pages, tile, TOKENS: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, STRIDES: tl.constexpr,
    HEADS: tl.constexpr = 1, WORD: tl.constexpr = 1,
):  # fmt: skip
    """Where a tile's keys lie in a cache, HEADS heads of one token after another: two 64-bit offsets to be added, in
    words of WORD elements; the first is the same for all tiles unless runs are shorter than tiles and than pages.

    STRIDES of page, slot and head are constants: what is added to a pointer for all tiles is computed once, and an
    address of a tile is one multiplication and addition. As arguments they made the loop over bf16 tiles of 64 368
    instructions long instead of 314 (SASS of sm_90, ptxas 12.8, 2026-11-21).
    """
    rows = tl.arange(0, TOKENS * HEADS)
    slots = rows // HEADS
    shift = tl.cast(0, tl.int64)
    if RUN == TOKENS:
        shift = _offset(tile * TOKENS % PAGE_SIZE, STRIDES[1] // WORD)
    else:
        if RUN * HEADS != 1:  # multiplied afterwards: how far offsets are aligned is not known past a reshape
            pages = tl.broadcast_to(pages[:, None], [TOKENS // RUN, RUN * HEADS]).reshape(TOKENS * HEADS)
        if RUN != PAGE_SIZE:
            slots += tile * TOKENS
        slots %= PAGE_SIZE
    fixed = _offset(slots, STRIDES[1] // WORD)
    if HEADS != 1:
        fixed += _offset(rows % HEADS, STRIDES[2] // WORD)
    return fixed, _offset(pages, STRIDES[0] // WORD) + shift + tl.zeros([TOKENS * HEADS], tl.int64)


@triton.jit
def load_rows(
    rows_ptr, fixed, moving, present, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, PARTS: tl.constexpr = 1
):  # fmt: skip
    """Rows at the sums of these offsets as a tile; absent rows and padding columns are 0, and not read.

    In two PARTS, the first holds the first two columns of every four, in the order of ``packing.unpack_pairs``.
    """
    columns = tl.arange(0, BLOCK_WIDTH // PARTS)
    if PARTS == 2:
        columns = columns // 2 * 4 + columns % 2
    mask = present[:, None]
    if WIDTH != BLOCK_WIDTH:
        mask = mask & (columns < WIDTH)[None, :]
    pointers = rows_ptr + fixed[:, None] + columns[None, :]
    if moving is not None:
        pointers += moving[:, None]
    return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def load_scales(
    scales, pages, tile, present,
    TOKENS: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, STRIDES: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """The scales of a tile's keys, 0 of absent ones."""
    fixed, moving = locate_keys(pages, tile, TOKENS, PAGE_SIZE, RUN, STRIDES, HEADS)
    return tl.load(scales + fixed + moving, mask=present, other=0.0)
