# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The keys of a tile in a paged cache: their pages in the table, and their offsets in the cache."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.rows import offset


class Cache(NamedTuple):
    """Pointers to keys and values, and to their scales, or None where they are not quantized."""

    k: Any
    v: Any
    k_scales: Any = None
    v_scales: Any = None


class PageList(NamedTuple):
    """The pages of one sequence, in order: a pointer to its row of the page table, and how many pages the cache has."""

    row: Any
    cache_pages: Any


class Paging(NamedTuple):
    """The layout of a paged cache in memory; strides are of page, slot and head.

    A run is as many keys as surely lie in one page, side by side: the greatest that divides both page and tile.
    """

    page_size: int
    run: int
    key_strides: tuple[int, ...]
    value_strides: tuple[int, ...]
    key_scale_strides: tuple[int, ...] = ()
    value_scale_strides: tuple[int, ...] = ()


@triton.jit
def load_pages(table_row, tile, low, high, TOKENS: tl.constexpr, PAGING: tl.constexpr):
    """Load the page of each run of a tile; 0 where no key of the run lies in ``low <= key < high``.

    Without ``low`` all do.
    """
    RUN: tl.constexpr = PAGING.run
    starts = tile * TOKENS
    if RUN != TOKENS:
        starts += tl.arange(0, TOKENS // RUN) * RUN
    if low is None:
        pages = tl.load(table_row + starts // PAGING.page_size)
    else:
        present = (starts < high) & (starts + RUN > low)
        pages = tl.load(table_row + starts // PAGING.page_size, mask=present, other=0)
    return pages


@triton.jit
def clamp_pages(pages, cache_pages):
    """Return pages of the cache: its last one for what is none, so that nothing outside of it is read.

    As unsigned numbers, negative ones are great. Call it where pages are used, not where they are loaded: clamped
    before they pass to the next tile, pages are loaded no longer while the tile before is computed, but within their
    own iteration (SASS of sm_90, Triton 3.6.0).
    """
    last = tl.cast(cache_pages - 1, tl.uint32, bitcast=True)
    return tl.cast(tl.minimum(tl.cast(pages, tl.uint32, bitcast=True), last), tl.int32, bitcast=True)


@triton.jit
def locate_keys(
    pages, tile, STRIDES: tl.constexpr, TOKENS: tl.constexpr, PAGING: tl.constexpr,
    HEADS: tl.constexpr = 1, WORD: tl.constexpr = 1,
):  # fmt: skip
    """Locate a tile's keys in a cache, HEADS heads of one token after another.

    Return two 64-bit offsets to be added, in words of WORD elements; the first is the same for all tiles unless runs
    are shorter than tiles and than pages.

    STRIDES of page, slot and head are constants: what is added to a pointer for all tiles is computed once, and an
    address of a tile is one multiplication and addition. As arguments they made the loop over bf16 tiles of 64 368
    instructions long instead of 314 (SASS of sm_90, ptxas 12.8, 2026-11-21).
    """
    RUN: tl.constexpr = PAGING.run
    rows = tl.arange(0, TOKENS * HEADS)
    slots = rows // HEADS
    shift = tl.cast(0, tl.int64)
    if RUN == TOKENS:
        shift = offset(tile * TOKENS % PAGING.page_size, STRIDES[1] // WORD)
    else:
        if RUN * HEADS != 1:  # multiplied afterwards: how far offsets are aligned is not known past a reshape
            pages = tl.broadcast_to(pages[:, None], [TOKENS // RUN, RUN * HEADS]).reshape(TOKENS * HEADS)
        if PAGING.page_size != RUN:
            slots += tile * TOKENS
        slots %= PAGING.page_size
    fixed = offset(slots, STRIDES[1] // WORD)
    if HEADS != 1:
        fixed += offset(rows % HEADS, STRIDES[2] // WORD)
    return fixed, offset(pages, STRIDES[0] // WORD) + shift + tl.zeros([TOKENS * HEADS], tl.int64)
