# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Flash attention forward in Triton of heads wider than 256, some of the values' columns a program.

Algorithm: FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1) with the softmax in base 2. The accumulator of all
columns of a wide head may not fit the registers of a block. Programs that share rows then compute all their scores
each, and of the output some columns. An additive mask is a bias of the scaled, and capped, scores, as in T5 (Raffel et
al., arXiv 1910.10683, 2.1); a sink is one more logit of a row's denominator (Xiao et al., arXiv 2309.17453).
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.masks import Bounds, bound_keys, hide_keys
from autotune.kernels.tiles.precision import product_precision
from autotune.kernels.tiles.rows import Head, locate_row, offset
from autotune.kernels.tiles.softmax import (
    LOG2_E,
    begin_state,
    cap_scores,
    end_rows_with_sinks,
    fold_scores,
    fold_values,
)


class Features(NamedTuple):
    """Features of a binary, and how it loads; ``per_query``: the operand has a row for each query."""

    causal: bool
    window: bool
    softcap: bool
    boolean: bool
    additive: bool
    ends: bool
    per_query: bool
    precise: bool
    descriptor: bool


class ScoreOperands(NamedTuple):
    """Pointers, or None: to a mask ``[B, H, S_q, S_kv]``, sinks ``[H]``, and int32 ends of keys ``[B, S_q]``."""

    attn_mask: Any
    sinks: Any
    kv_ends: Any


class EntryStrides(NamedTuple):
    """Strides of a mask in elements, and that of ends in the batch, 0 where there is one entry for all."""

    batch: Any
    head: Any
    row: Any
    key: Any
    ends: Any


class AllStrides(NamedTuple):
    """Strides of queries, keys, values, the output and the operands, in elements."""

    q: Any
    k: Any
    v: Any
    out: Any
    operands: Any


class TileSizes(NamedTuple):
    """Rows of queries of a tile, of the keys that it goes over at once, and columns of their values."""

    queries: int
    keys: int
    columns: int


class ScoreUnits(NamedTuple):
    """Factors of the scores, and their cap: with one the scale is over the cap, and without one to base 2."""

    score_scale: Any
    softcap: Any


class Mask(NamedTuple):
    """The operands that hide keys of a tile of queries: pointers to the mask's entries of its rows and the stride of
    keys, the rows, their ends of keys, and how far a row's position lies behind its number."""

    pointers: Any
    key_stride: Any
    rows: Any
    ends: Any
    diagonal: Any


@triton.jit
def _block_bounds(bounds, BLOCK_K: tl.constexpr):
    """Round bounds to blocks of keys: outward where some row sees a key, inward where every row does."""
    full_low = tl.minimum(tl.cdiv(bounds.full_low, BLOCK_K) * BLOCK_K, bounds.high)
    full_high = tl.maximum(tl.maximum(bounds.full_high, 0) // BLOCK_K * BLOCK_K, full_low)
    return Bounds(bounds.low // BLOCK_K * BLOCK_K, full_low, full_high, bounds.high)


@triton.jit
def _locate_mask(attn_mask, strides, batch, head, rows, seq_q, PER_QUERY: tl.constexpr):
    """Return pointers ``[rows or 1, 1]`` to the first key's entry; rows past the last query have that one's."""
    origin = attn_mask + offset(batch, strides.batch) + offset(head, strides.head)
    if PER_QUERY:
        pointers = origin + offset(tl.minimum(rows, seq_q - 1), strides.row)[:, None]
    else:
        pointers = origin + tl.zeros([1, 1], tl.int64)
    return pointers


@triton.jit
def _load_columns(
    source, row, begin, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
    BOUNDED: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Load ``[ROWS, COLUMNS]`` from a row and a column on; what lies beyond WIDTH, and the length if BOUNDED, is 0.

    Descriptors are of ``[B, H, S, D]``, whose tile is one of rows and columns already: one of ``[B, S, H, D]`` takes a
    reshape, after which Triton 3.6 keeps queries in registers, which a wide head fills.
    """
    if DESCRIPTOR:
        tile = source.tensor.load([source.batch, source.head, row, begin]).reshape(ROWS, COLUMNS)
    else:
        rows = tl.arange(0, ROWS)
        columns = begin + tl.arange(0, COLUMNS)
        pointers = locate_row(source, row) + offset(rows[:, None], source.strides.row) + columns[None, :]
        if BOUNDED:
            mask = (row + rows < source.length)[:, None] & (columns < WIDTH)[None, :]
            tile = tl.load(pointers, mask=mask, other=0.0)
        elif WIDTH % COLUMNS != 0:
            tile = tl.load(pointers, mask=(columns < WIDTH)[None, :], other=0.0)
        else:
            tile = tl.load(pointers)
    return tile


@triton.jit
def _mask_scores(
    scores, factor, mask, keys, key, window, FEATURES: tl.constexpr, BLOCK_K: tl.constexpr, BOUNDED: tl.constexpr
):  # fmt: skip
    """Add the bias, which takes scores to base 2, and hide keys of a tile, BOUNDED or by the operand."""
    columns = key + tl.arange(0, BLOCK_K)
    if FEATURES.boolean or FEATURES.additive:
        entry_pointers = mask.pointers + offset(columns, mask.key_stride)[None, :]
        if BOUNDED:
            mask_tile = tl.load(entry_pointers, mask=(columns < keys.length)[None, :], other=0)
        else:
            mask_tile = tl.load(entry_pointers)
        if FEATURES.additive:
            scores = scores * factor + mask_tile.to(tl.float32) * LOG2_E
        else:
            scores = tl.where(mask_tile != 0, scores, float("-inf"))
    if BOUNDED:
        present = (columns < keys.length)[None, :]
        ahead = columns[None, :] - mask.rows[:, None] - mask.diagonal
        if FEATURES.ends:  # up to its end a row sees the future as its present
            ahead = tl.where(columns[None, :] < mask.ends[:, None], tl.minimum(ahead, 0), ahead)
        scores = hide_keys(scores, present, ahead, window, FEATURES.causal, FEATURES.window)
    return scores


@triton.jit
def _attend(
    state, q_tile, mask, keys, values, begin, start, stop, window, factors,
    WIDTHS: tl.constexpr, BLOCKS: tl.constexpr, FEATURES: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """Fold the keys ``start <= key < stop`` into the running softmax of one tile of queries.

    BOUNDED: some row does not see all of a tile, by causality, window or length.
    """
    BLOCK_K: tl.constexpr = BLOCKS.keys
    for key in tl.range(start, stop, BLOCK_K):
        k_tile = _load_columns(keys, key, 0, BLOCK_K, WIDTHS.padded_k, WIDTHS.k, BOUNDED, FEATURES.descriptor)
        scores = tl.dot(q_tile, k_tile.T, input_precision=product_precision(k_tile.dtype))
        factor = factors.score_scale
        if FEATURES.softcap:  # the capped scores are taken to base 2 below
            scores = cap_scores(scores * factors.score_scale, factors.softcap, FEATURES.precise)
            factor = LOG2_E
        scores = _mask_scores(scores, factor, mask, keys, key, window, FEATURES, BLOCK_K, BOUNDED)
        if FEATURES.additive:
            factor = 1.0
        # A mask may leave any row without a key.
        state, weights = fold_scores(state, scores, factor, BOUNDED or FEATURES.boolean or FEATURES.additive)
        v_tile = _load_columns(values, key, begin, BLOCK_K, BLOCKS.columns, WIDTHS.v, BOUNDED, FEATURES.descriptor)
        state = fold_values(state, weights, v_tile)
    return state


@triton.jit
def _store_rows(
    outputs, sinks, state, strides, batch, head, batch_head, first_row, begin, seq_q,
    WIDTHS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Finish rows, whose keys were all seen, and store their columns; with the first ones their logarithms."""
    sink = None
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32)
    factor, row_log_sum_exp = end_rows_with_sinks(state.row_max, state.row_sum, sink)
    rows = tl.arange(0, BLOCKS.queries)
    columns = begin + tl.arange(0, BLOCKS.columns)
    origin = locate_row(Head(outputs.out, strides, batch, head, seq_q), first_row)
    pointers = origin + offset(rows[:, None], strides.row) + columns[None, :]
    is_row = first_row + rows < seq_q
    in_range = is_row[:, None] & (columns < WIDTHS.v)[None, :]
    tl.store(pointers, (state.accumulator * factor[:, None]).to(outputs.out.dtype.element_ty), mask=in_range)
    if outputs.log_sum_exp is not None:
        pointers = outputs.log_sum_exp + offset(batch_head, seq_q) + first_row + rows
        tl.store(pointers, row_log_sum_exp, mask=is_row & (begin == 0))


_LENGTHS = ["heads", "group", "seq_q", "seq_kv", "window"]  # no binary of its own for a number


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=_LENGTHS)
def flash_attention_columns_forward(
    q, k, v, operands, outputs, strides, heads, group, seq_q, seq_kv, window, factors,
    WIDTHS: tl.constexpr, BLOCKS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute some columns of one tile of queries of one head a program, over tensors ``[B, S, H, D]``.

    ``q``, ``k`` and ``v`` are pointers, or tensor descriptors of ``[B, H, S, D]``; the log-sum-exp is fp32
    ``[B, H, S_q]`` or None.
    """
    BLOCK_Q: tl.constexpr = BLOCKS.queries
    # Programs of the same rows are neighbours, which share them and the keys in the L2. Their order is then that of
    # ``triton.forward``, for its reasons.
    parts: tl.constexpr = (WIDTHS.v + BLOCKS.columns - 1) // BLOCKS.columns
    begin = tl.program_id(0) % parts * BLOCKS.columns
    program = tl.program_id(0) // parts
    blocks = tl.cdiv(seq_q, BLOCK_Q)
    block = blocks - 1 - program % blocks if FEATURES.causal else program % blocks
    batch_head = program // blocks
    batch = batch_head // heads
    head = batch_head % heads
    kv_head = head // group
    queries = Head(q, strides.q, batch, head, seq_q)
    keys = Head(k, strides.k, batch, kv_head, seq_kv)
    values = Head(v, strides.v, batch, kv_head, seq_kv)
    first_row = block * BLOCK_Q
    rows = first_row + tl.arange(0, BLOCK_Q)
    diagonal = seq_kv - seq_q  # the last query sees the last key

    q_tile = _load_columns(queries, first_row, 0, BLOCK_Q, WIDTHS.padded_k, WIDTHS.k, True, FEATURES.descriptor)
    mask_pointers = None
    if FEATURES.boolean or FEATURES.additive:
        mask_pointers = _locate_mask(operands.attn_mask, strides.operands, batch, head, rows, seq_q, FEATURES.per_query)
    last_row = tl.minimum(first_row + BLOCK_Q, seq_q) - 1
    bounds = bound_keys(first_row, last_row, diagonal, seq_kv, window, FEATURES.causal, FEATURES.window)
    ends = None
    if FEATURES.ends:
        ends = tl.load(operands.kv_ends + offset(batch, strides.operands.ends) + rows, mask=rows < seq_q, other=0)
        high = tl.maximum(bounds.high, tl.minimum(tl.max(ends, 0), seq_kv))
        bounds = Bounds(bounds.low, bounds.full_low, bounds.full_high, high)
    mask = Mask(mask_pointers, strides.operands.key, rows, ends, diagonal)
    bounds = _block_bounds(bounds, BLOCKS.keys)
    state = begin_state(BLOCK_Q, BLOCKS.columns)
    if FEATURES.window:
        # Keys that enter the window of some rows only.
        state = _attend(
            state, q_tile, mask, keys, values, begin, bounds.low, bounds.full_low, window, factors,
            WIDTHS, BLOCKS, FEATURES, True,
        )  # fmt: skip
    # Keys that every row sees, but for the operand.
    state = _attend(
        state, q_tile, mask, keys, values, begin, bounds.full_low, bounds.full_high, window, factors,
        WIDTHS, BLOCKS, FEATURES, False,
    )  # fmt: skip
    # Keys on the diagonal, at the window's far edge, or in the last partial block.
    state = _attend(
        state, q_tile, mask, keys, values, begin, bounds.full_high, bounds.high, window, factors,
        WIDTHS, BLOCKS, FEATURES, True,
    )  # fmt: skip
    _store_rows(
        outputs, operands.sinks, state, strides.out, batch, head, batch_head, first_row, begin, seq_q, WIDTHS, BLOCKS
    )  # fmt: skip
