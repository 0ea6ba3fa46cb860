# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Attention of packed queries over a paged cache: chunked prefill, and decode rows among the chunks.

Algorithm: FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1) with the softmax in base 2; keys that every row of a
tile sees, and those that need a mask, are folded in by loops of their own.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from autotune.kernels.paged_prefill.triton.quantized import (
    fit_queries,
    fold_row_scores,
    fold_token_scores,
    load_token_scales,
    scale_outputs,
    widen,
)
from autotune.kernels.tiles.masks import Bounds, bound_keys, hide_keys
from autotune.kernels.tiles.outputs import load_slopes, store_outputs
from autotune.kernels.tiles.pages import Cache, PageList, clamp_pages, load_pages, locate_keys
from autotune.kernels.tiles.precision import product_precision
from autotune.kernels.tiles.rows import gather_rows, offset
from autotune.kernels.tiles.softmax import begin_state, cap_scores, fold_scores, fold_values

# Sequences that a program looks at together. One size for all batches, so that all run one binary.
SEQUENCES_AT_ONCE = tl.constexpr(256)


class Tile(NamedTuple):
    """A tile is a block of rows of one sequence and one KV head; row ``i * group + g`` is query i of its head g.

    Tiles of at most ``small_rows`` rows, those of decode steps, are computed as such; 0: all as tiles of ``rows``.
    """

    group: int
    rows: int
    small_rows: int
    keys: int


class Features(NamedTuple):
    """Features of a binary, and which programs are neighbours: the heads of one page, or the tiles of one head.

    ``token_scales``: keys and values have one scale a slot and head.
    """

    causal: bool
    window: bool
    softcap: bool
    precise: bool
    token_scales: bool
    heads_together: bool


@triton.jit
def _first_slot(begin, sequence, TILE: tl.constexpr):
    """Return the slot of a sequence's first tile, given the number of queries before it.

    A sequence of n rows has ``cdiv(n, TILE.rows)`` tiles, and this gives it that many slots, or one more, from the
    packed queries' offsets alone: no program sums the tiles of the sequences before its own.
    """
    return tl.cast(begin, tl.int64) * TILE.group // TILE.rows + sequence


@triton.jit
def _find_sequence(cu_seqlens_q, batch, slot, TILE: tl.constexpr):
    """Return the sequence that this slot belongs to: the last one whose first slot is not behind it."""
    passed = 0
    for start in range(0, batch, SEQUENCES_AT_ONCE):
        sequences = start + tl.arange(0, SEQUENCES_AT_ONCE)
        begins = tl.load(cu_seqlens_q + sequences, mask=sequences < batch, other=0)
        is_passed = (_first_slot(begins, sequences, TILE) <= slot) & (sequences < batch)
        passed += tl.sum(is_passed.to(tl.int32))
    return tl.maximum(passed - 1, 0)  # of a slot before all, where offsets begin behind 0


@triton.jit
def _tile_bounds(bounds, BLOCK_K: tl.constexpr):
    """Convert bounds of keys to bounds of tiles: outward where some row sees a key, inward where every row does."""
    low = bounds.low // BLOCK_K
    high = tl.cdiv(bounds.high, BLOCK_K)
    full_low = tl.minimum(tl.cdiv(bounds.full_low, BLOCK_K), high)
    full_high = tl.maximum(tl.maximum(bounds.full_high, 0) // BLOCK_K, full_low)
    return Bounds(low, full_low, full_high, high)


@triton.jit
def _score_keys(
    q_tile, k_tile, key_scales, keys, present, positions, slopes, window, score_scale, softcap,
    FEATURES: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return scores, -inf if MASKED where a query may not see the key, and the factor that takes them to base 2.

    ``score_scale`` is one for all, or one a row where keys are quantized.
    """
    scores = tl.dot(q_tile, k_tile.T, input_precision=product_precision(k_tile.dtype))
    if key_scales is not None:
        scores = scores * key_scales[None, :]
    if FEATURES.softcap:
        scores = cap_scores(scores * score_scale, softcap, FEATURES.precise)
        factor = 1.0
    elif slopes is not None or key_scales is not None:
        scores = scores * score_scale
        factor = 1.0
    else:
        factor = score_scale  # one multiplication with the subtraction of the maximum
    if MASKED or slopes is not None:
        ahead = keys[None, :] - positions[:, None]
        if slopes is not None:
            scores += slopes[:, None] * (ahead if FEATURES.causal else -tl.abs(ahead))
        if MASKED:
            visible = None if FEATURES.causal else present[None, :]
            scores = hide_keys(scores, visible, ahead, window, FEATURES.causal, FEATURES.window)
    return scores, factor


@triton.jit
def _fold_tiles(
    state, pages, q_tile, positions, slopes, cache, page_list, start, stop, bounds, window, score_scale, softcap,
    WIDTHS: tl.constexpr, PAGING: tl.constexpr, FEATURES: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the keys of the tiles ``start <= tile < stop`` into the running softmax; ``pages`` are the first tile's."""
    K_STRIDES: tl.constexpr = PAGING.key_strides
    V_STRIDES: tl.constexpr = PAGING.value_strides
    K_SCALE_STRIDES: tl.constexpr = PAGING.key_scale_strides
    V_SCALE_STRIDES: tl.constexpr = PAGING.value_scale_strides
    # Rows have factors of their own until scores are multiplied by them.
    ROW_FACTORS: tl.constexpr = cache.k_scales is not None and not FEATURES.softcap and slopes is None
    for tile in tl.range(start, stop):
        # A tile's pages are loaded while the tile before it is computed, see paged_decode.
        if MASKED:
            next_pages = load_pages(page_list.row, tile + 1, bounds.low, bounds.high, BLOCK_K, PAGING)
        else:
            next_pages = load_pages(page_list.row, tl.minimum(tile + 1, stop - 1), None, None, BLOCK_K, PAGING)
        pages = clamp_pages(pages, page_list.cache_pages)
        keys = tile * BLOCK_K + tl.arange(0, BLOCK_K)
        present = (keys >= bounds.low) & (keys < bounds.high) if MASKED else tl.full([BLOCK_K], True, tl.int1)
        k_fixed, k_moving = locate_keys(pages, tile, K_STRIDES, BLOCK_K, PAGING)
        k_tile = widen(gather_rows(cache.k, k_fixed, k_moving, present, WIDTHS.k, WIDTHS.padded_k), q_tile.dtype)
        key_scales = None
        value_scales = None
        if FEATURES.token_scales:
            key_scales = load_token_scales(cache.k_scales, pages, tile, present, K_SCALE_STRIDES, BLOCK_K, PAGING)
            value_scales = load_token_scales(cache.v_scales, pages, tile, present, V_SCALE_STRIDES, BLOCK_K, PAGING)
        scores, factor = _score_keys(
            q_tile, k_tile, key_scales, keys, present, positions, slopes, window, score_scale, softcap,
            FEATURES, MASKED,
        )  # fmt: skip
        if FEATURES.token_scales:
            state, weights = fold_token_scores(state, scores, value_scales, MASKED)
        elif ROW_FACTORS:
            state, weights = fold_row_scores(state, scores, factor, MASKED)
        else:
            state, weights = fold_scores(state, scores, factor, MASKED)
        v_fixed, v_moving = locate_keys(pages, tile, V_STRIDES, BLOCK_K, PAGING)
        v_tile = widen(gather_rows(cache.v, v_fixed, v_moving, present, WIDTHS.v, WIDTHS.padded_v), q_tile.dtype)
        state = fold_values(state, weights, v_tile)
        pages = next_pages
    return state


@triton.jit
def _compute_tile(
    q, q_strides, cache, page_list, per_head, outputs,
    first_row, begin, count, length, kv_head, kv_heads, window, score_scale, softcap,
    ROWS: tl.constexpr, TILE: tl.constexpr, WIDTHS: tl.constexpr, PAGING: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute ROWS rows from ``first_row`` of the ``count`` queries that begin at ``begin`` in the packed ones."""
    BLOCK_K: tl.constexpr = TILE.keys
    rows = first_row + tl.arange(0, ROWS)
    is_row = rows < count * TILE.group
    queries = rows // TILE.group
    heads = kv_head * TILE.group + rows % TILE.group
    diagonal = length - count  # position of the sequence's first query; negative where queries outnumber keys
    positions = diagonal + queries
    last_row = tl.minimum(first_row + ROWS, count * TILE.group) - 1
    first = diagonal + first_row // TILE.group
    last = diagonal + last_row // TILE.group
    keys_end = None if FEATURES.causal else length
    bounds = bound_keys(first, last, 0, keys_end, window, FEATURES.causal, FEATURES.window)
    tiles = _tile_bounds(bounds, BLOCK_K)

    # The first pages of every loop wait together, beside the queries.
    low_pages = load_pages(page_list.row, tiles.low, bounds.low, bounds.high, BLOCK_K, PAGING)
    full_pages = low_pages
    if FEATURES.window:
        full_pages = load_pages(page_list.row, tiles.full_low, bounds.low, bounds.high, BLOCK_K, PAGING)
    last_pages = load_pages(page_list.row, tiles.full_high, bounds.low, bounds.high, BLOCK_K, PAGING)
    q_offsets = offset(begin + queries, q_strides[0]) + offset(heads, q_strides[1])
    q_tile = gather_rows(q, q_offsets, None, is_row, WIDTHS.k, WIDTHS.padded_k)
    slopes = per_head.slopes
    if slopes is not None:
        slopes = load_slopes(slopes, heads, is_row)
    k_scales, v_scales = cache.k_scales, cache.v_scales  # None where there are none
    if k_scales is not None:
        k_scales += offset(kv_head, PAGING.key_scale_strides[2])
        v_scales += offset(kv_head, PAGING.value_scale_strides[2])
        q_tile, score_scale = fit_queries(q_tile, score_scale, k_scales, FEATURES.token_scales)
    cache = Cache(
        cache.k + offset(kv_head, PAGING.key_strides[2]), cache.v + offset(kv_head, PAGING.value_strides[2]),
        k_scales, v_scales,
    )  # fmt: skip

    state = begin_state(ROWS, WIDTHS.padded_v)
    if FEATURES.window:
        # Keys that enter the window of some rows only.
        state = _fold_tiles(
            state, low_pages, q_tile, positions, slopes, cache, page_list, tiles.low, tiles.full_low,
            bounds, window, score_scale, softcap, WIDTHS, PAGING, FEATURES, BLOCK_K, True,
        )  # fmt: skip
    # Keys that every row sees: no mask.
    state = _fold_tiles(
        state, full_pages, q_tile, positions, slopes, cache, page_list, tiles.full_low, tiles.full_high,
        bounds, window, score_scale, softcap, WIDTHS, PAGING, FEATURES, BLOCK_K, False,
    )  # fmt: skip
    # Keys on the diagonal, at the window's far edge, or in the last partial tile.
    state = _fold_tiles(
        state, last_pages, q_tile, positions, slopes, cache, page_list, tiles.full_high, tiles.high,
        bounds, window, score_scale, softcap, WIDTHS, PAGING, FEATURES, BLOCK_K, True,
    )  # fmt: skip
    if v_scales is not None and not FEATURES.token_scales:
        state = scale_outputs(state, v_scales)
    store_outputs(
        outputs, per_head.sinks, state, begin + queries, heads, kv_heads, is_row,
        TILE.group, WIDTHS.v, WIDTHS.padded_v,
    )  # fmt: skip


# No binary of its own for a number.
_NUMBERS = ["table_stride", "capacity", "cache_pages", "tokens", "batch", "kv_heads", "window"]
_INTEGERS = ["page_table", "seq_lens", "cu_seqlens_q"]


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=[*_INTEGERS, *_NUMBERS])
def paged_prefill_forward(
    q, cache, page_table, seq_lens, cu_seqlens_q, per_head, outputs, q_strides,
    table_stride, capacity, cache_pages, tokens, batch, kv_heads, window, factors,
    TILE: tl.constexpr, WIDTHS: tl.constexpr, PAGING: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute one tile a program: ``q [T, H, D]``, ``out [T, H, D_v]``, ``log_sum_exp`` fp32 ``[T, H]``.

    Whatever lengths and offsets say, a sequence has no more keys than ``capacity``, its table's, and queries within T.
    """
    score_scale, softcap = factors.scale, factors.softcap
    program = tl.program_id(0)
    if FEATURES.heads_together:
        slot = program // kv_heads
        kv_head = program % kv_heads
    else:
        slots = tl.num_programs(0) // kv_heads
        slot = program % slots
        kv_head = program // slots
    sequence = _find_sequence(cu_seqlens_q, batch, slot, TILE)
    begin = tl.maximum(tl.load(cu_seqlens_q + sequence), 0)
    count = tl.minimum(tl.load(cu_seqlens_q + sequence + 1), tokens) - begin
    # A sequence's last queries see the most keys: its longest tile starts first.
    behind = (slot - _first_slot(begin, sequence, TILE)).to(tl.int32)
    first_row = (tl.cdiv(count * TILE.group, TILE.rows) - 1 - behind) * TILE.rows
    if (first_row < 0) | (behind < 0) | (count <= 0):  # a slot without a tile
        return
    length = tl.minimum(tl.maximum(tl.load(seq_lens + sequence), 0), capacity)
    page_list = PageList(page_table + offset(sequence, table_stride), cache_pages)
    if TILE.small_rows != 0 and count * TILE.group - first_row <= TILE.small_rows:
        _compute_tile(
            q, q_strides, cache, page_list, per_head, outputs,
            first_row, begin, count, length, kv_head, kv_heads, window, score_scale, softcap,
            TILE.small_rows, TILE, WIDTHS, PAGING, FEATURES,
        )  # fmt: skip
        return
    _compute_tile(
        q, q_strides, cache, page_list, per_head, outputs,
        first_row, begin, count, length, kv_head, kv_heads, window, score_scale, softcap,
        TILE.rows, TILE, WIDTHS, PAGING, FEATURES,
    )  # fmt: skip
