# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Decode attention over a paged cache of latents: one row a token is key and value of all heads.

Multi-head latent attention with its projections absorbed (DeepSeek-V2, arXiv 2405.04434, section 2.1): scores take a
row whole, values are its first columns. A tile of rows is loaded once, as the latent and what is beside it, whose
products are added: 512 and 64 columns are no 1024. Sequences are split as in Flash-Decoding (Dao et al.,
https://pytorch.org/blog/flash-decoding, 2023), and tiles are folded as in FlashAttention-2 (Dao, arXiv 2307.08691,
algorithm 1), in base 2.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.paged_decode.triton.forward import store_rows
from autotune.kernels.paged_decode.triton.queries import locate_rows
from autotune.kernels.paged_decode.triton.tile_list import Batch, count_tiles, load_length
from autotune.kernels.tiles.masks import hide_keys
from autotune.kernels.tiles.outputs import load_slopes
from autotune.kernels.tiles.pages import load_pages, locate_keys
from autotune.kernels.tiles.partials import store_partial
from autotune.kernels.tiles.rows import gather_rows, offset
from autotune.kernels.tiles.softmax import State, begin_state, cap_scores, weigh_scores

# No binary of its own for a number.
_LENGTHS = ["table_stride", "capacity", "cache_pages", "batch_size", "kv_heads", "window"]
_UNALIGNED = ["page_table", "seq_lens", *_LENGTHS]


class LatentWidths(NamedTuple):
    """Columns of the latent, a power of two; of what is beside it; and of the tile that holds the latter."""

    latent: int
    beside: int
    padded_beside: int


class LatentFeatures(NamedTuple):
    """Features of a binary; ``shared``: warp groups share the keys of a tile, see ``multiply_latents``."""

    window: bool
    softcap: bool
    shared: bool


class Parts(NamedTuple):
    """The two parts of a tile: the latent, and what is beside it."""

    latent: Any
    beside: Any


class Masking(NamedTuple):
    """Bounds of visible keys: the length of a sequence, the pages of the cache, each row's position and slope of ALiBi,
    and the window."""

    length: Any
    cache_pages: Any
    positions: Any
    slopes: Any
    window: Any


@triton.jit
def load_parts(pointer, fixed, moving, present, WIDTHS: tl.constexpr):
    """Load rows at the sums of these offsets, in two parts; absent rows are 0, and not read."""
    latent = gather_rows(pointer, fixed, moving, present, WIDTHS.latent, WIDTHS.latent)
    beside = gather_rows(pointer + WIDTHS.latent, fixed, moving, present, WIDTHS.beside, WIDTHS.padded_beside)
    return Parts(latent, beside)


@triton.jit
def are_listed(pages, cache_pages, TILE: tl.constexpr, PAGING: tl.constexpr):
    """Return which keys of a tile have a page of the cache; as unsigned numbers, negative entries are great."""
    RUN: tl.constexpr = PAGING.run
    listed = tl.cast(pages, tl.uint32, bitcast=True) < tl.cast(cache_pages, tl.uint32, bitcast=True)
    if TILE.tokens != RUN and RUN != 1:
        listed = tl.broadcast_to(listed[:, None], [TILE.tokens // RUN, RUN]).reshape(TILE.tokens)
    return listed


@triton.jit
def multiply_latents(queries, rows, length, SHARED: tl.constexpr):
    """Return the products of queries and keys, both parts of them.

    Where a product leads to another, Triton gives each warp rows of its own (3.6.0, sm_90), so that of 64 rows both of
    two warp groups compute all scores. SHARED hides the chain by a branch: a tile is of no empty sequence, and the
    other branch, which must not be cheap or it would be pulled out, is never taken. The groups then share the keys in
    the product of the latents, 8 of 9 parts.
    """
    if SHARED:
        if length > 0:
            scores = tl.dot(queries.beside, rows.beside.T)
            scores = tl.dot(queries.latent, rows.latent.T, scores)
        else:
            scores = tl.dot(queries.latent, rows.latent.T)
    else:
        scores = tl.dot(queries.beside, rows.beside.T)
        scores = tl.dot(queries.latent, rows.latent.T, scores)
    return scores


@triton.jit
def fold_latents(
    state, queries, latents, tile, pages, masking, score_scale, softcap,
    TILE: tl.constexpr, WIDTHS: tl.constexpr, PAGING: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Return the state with the keys of a tile, whose latent is both their second factor and their value."""
    keys = tile * TILE.tokens + tl.arange(0, TILE.tokens)
    length = masking.length
    low = 0
    if FEATURES.window:
        low = tl.maximum(length - TILE.queries - masking.window + 1, 0)
    present = (keys >= low) & (keys < length) & are_listed(pages, masking.cache_pages, TILE, PAGING)
    STRIDES: tl.constexpr = PAGING.key_strides
    fixed, moving = locate_keys(pages, tile, STRIDES, TILE.tokens, PAGING)
    rows = load_parts(latents, fixed, moving, present, WIDTHS)
    scores = multiply_latents(queries, rows, length, FEATURES.shared) * score_scale
    if FEATURES.softcap:
        scores = cap_scores(scores, softcap, False)
    ahead = keys[None, :] - masking.positions[:, None]
    if masking.slopes is not None:
        scores += masking.slopes[:, None] * ahead
    scores = hide_keys(scores, present[None, :], ahead, masking.window, True, FEATURES.window)

    weights, rescale, row_max = weigh_scores(scores, state.row_max, 1.0, True)
    accumulator = tl.dot(weights.to(rows.latent.dtype), rows.latent, state.accumulator * rescale[:, None])
    return State(accumulator, row_max, state.row_sum * rescale + tl.sum(weights, 1))


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=_UNALIGNED)
def latent_decode_split(
    q, cache, page_table, seq_lens, per_head, outputs, partials, q_strides,
    table_stride, capacity, cache_pages, batch_size, kv_heads, window, factors,
    TILE: tl.constexpr, WIDTHS: tl.constexpr, PAGING: tl.constexpr, FEATURES: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Take every SPLITS-th tile of one sequence, for a block of its rows; another kernel merges the shares.

    Neighbouring programs read the same keys, for other rows. The cache's second pointer is that of its values, the same
    as the first.
    """
    blocks: tl.constexpr = (TILE.used_rows + TILE.rows - 1) // TILE.rows
    score_scale, softcap = factors.scale, factors.softcap
    lane = tl.program_id(0)
    split = tl.program_id(1)
    block = lane % blocks
    sequence = lane // blocks
    batch = Batch(seq_lens, batch_size, capacity, window)
    length = load_length(batch, sequence)
    first, tiles = count_tiles(length, window, TILE, FEATURES.window)

    rows = locate_rows(0, block, TILE)
    slopes = per_head.slopes  # None where there are none
    if slopes is not None:
        slopes = load_slopes(slopes, rows.heads, rows.is_row)
    offsets = offset(sequence, q_strides[0]) + offset(rows.queries, q_strides[1]) + offset(rows.heads, q_strides[2])
    queries = load_parts(q, offsets, None, rows.is_row, WIDTHS)
    masking = Masking(length, cache_pages, length - TILE.queries + rows.queries, slopes, window)
    ROWS: tl.constexpr = TILE.rows
    WIDTH: tl.constexpr = WIDTHS.latent
    state = begin_state(ROWS, WIDTH)
    # A tile's pages are loaded while the tile before it is computed, see ``paged_decode_split``.
    table_row = page_table + offset(sequence, table_stride)
    pages = load_pages(table_row, first + split, 0, capacity, TILE.tokens, PAGING)
    for tile in tl.range(first + split, first + tiles, SPLITS):
        next_pages = load_pages(table_row, tile + SPLITS, 0, capacity, TILE.tokens, PAGING)
        state = fold_latents(
            state, queries, cache.k, tile, pages, masking, score_scale, softcap, TILE, WIDTHS, PAGING, FEATURES
        )
        pages = next_pages
    if SPLITS == 1:
        store_rows(outputs, per_head.sinks, state, sequence, 0, block * ROWS, kv_heads, ROWS, TILE, WIDTH, WIDTH)
    else:
        store_partial(partials, lane * SPLITS + split, state, WIDTH, ROWS, ROWS)
