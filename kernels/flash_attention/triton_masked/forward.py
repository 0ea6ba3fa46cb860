# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Flash attention forward in Triton with a mask operand and sinks.

Algorithm: FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1) with the softmax in base 2. An additive mask is a bias
of the scaled, and capped, scores, as in T5 (Raffel et al., arXiv 1910.10683, 2.1); a sink is one more logit of a row's
denominator (Xiao et al., arXiv 2309.17453).
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.masks import Bounds, bound_keys, hide_keys
from autotune.kernels.tiles.precision import product_precision
from autotune.kernels.tiles.rows import Head, load_rows, locate_row, offset
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
    skips_hidden: bool
    precise: bool
    descriptor: bool


class MaskOperands(NamedTuple):
    """Pointers, or None: to a mask ``[B, H, S_q, S_kv]``, sinks ``[H]``, and int32 ends of keys ``[B, S_q]``."""

    attn_mask: Any
    sinks: Any
    kv_ends: Any


class OperandStrides(NamedTuple):
    """Strides of a mask in elements, and that of ends in the batch, 0 where there is one entry for all."""

    batch: Any
    head: Any
    row: Any
    key: Any
    ends: Any


class Blocks(NamedTuple):
    """Rows of queries of a tile, and of the keys that it goes over at once."""

    queries: int
    keys: int


class ScoreFactors(NamedTuple):
    """Factors of the scores, and their cap: with one the scale is over the cap, and without one to base 2."""

    score_scale: Any
    softcap: Any


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
def _fold_tile(
    state, q_tile, mask_tile, rows, ends, keys, values, key, diagonal, window, factors,
    WIDTHS: tl.constexpr, FEATURES: tl.constexpr, BLOCK_K: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """Fold one tile of keys into the running softmax of one tile of queries."""
    k_tile = load_rows(keys, key, BLOCK_K, WIDTHS.k, WIDTHS.padded_k, BOUNDED, FEATURES.descriptor)
    scores = tl.dot(q_tile, k_tile.T, input_precision=product_precision(k_tile.dtype))
    factor = factors.score_scale
    if FEATURES.softcap:  # the capped scores are taken to base 2 below
        scores = cap_scores(scores * factors.score_scale, factors.softcap, FEATURES.precise)
        factor = LOG2_E
    if FEATURES.additive:
        scores = scores * factor + mask_tile.to(tl.float32) * LOG2_E
        factor = 1.0
    if FEATURES.boolean:
        scores = tl.where(mask_tile != 0, scores, float("-inf"))
    if BOUNDED:
        columns = key + tl.arange(0, BLOCK_K)
        present = (columns < keys.length)[None, :]
        ahead = columns[None, :] - rows[:, None] - diagonal
        if FEATURES.ends:  # up to its end a row sees the future as its present
            ahead = tl.where(columns[None, :] < ends[:, None], tl.minimum(ahead, 0), ahead)
        scores = hide_keys(scores, present, ahead, window, FEATURES.causal, FEATURES.window)
    # A mask may leave any row without a key.
    state, weights = fold_scores(state, scores, factor, BOUNDED or FEATURES.boolean or FEATURES.additive)
    v_tile = load_rows(values, key, BLOCK_K, WIDTHS.v, WIDTHS.padded_v, BOUNDED, FEATURES.descriptor)
    return fold_values(state, weights, v_tile)


@triton.jit
def _attend(
    state, q_tile, mask_rows, key_stride, rows, ends, keys, values, start, stop, diagonal, window, factors,
    WIDTHS: tl.constexpr, FEATURES: tl.constexpr, BLOCK_K: tl.constexpr, BOUNDED: tl.constexpr,
):  # fmt: skip
    """Fold the keys ``start <= key < stop``; of a boolean operand the tiles that it hides may be passed over.

    BOUNDED: some row does not see all of a tile, by causality, window or length.
    """
    for key in tl.range(start, stop, BLOCK_K):
        mask_tile = None
        if FEATURES.boolean or FEATURES.additive:
            columns = key + tl.arange(0, BLOCK_K)
            pointers = mask_rows + offset(columns, key_stride)[None, :]
            if BOUNDED:
                mask_tile = tl.load(pointers, mask=(columns < keys.length)[None, :], other=0)
            else:
                mask_tile = tl.load(pointers)
        if FEATURES.skips_hidden:
            if tl.max(tl.max(tl.where(mask_tile == 0, 0, 1), 1), 0) > 0:
                state = _fold_tile(
                    state, q_tile, mask_tile, rows, ends, keys, values, key, diagonal, window, factors,
                    WIDTHS, FEATURES, BLOCK_K, BOUNDED,
                )  # fmt: skip
        else:
            state = _fold_tile(
                state, q_tile, mask_tile, rows, ends, keys, values, key, diagonal, window, factors,
                WIDTHS, FEATURES, BLOCK_K, BOUNDED,
            )  # fmt: skip
    return state


@triton.jit
def _store_rows(
    outputs, sinks, state, strides, batch, head, batch_head, first_row, seq_q,
    WIDTHS: tl.constexpr, BLOCK_Q: tl.constexpr,
):  # fmt: skip
    """Finish rows, whose keys were all seen, and store them."""
    sink = None
    if sinks is not None:
        sink = tl.load(sinks + head).to(tl.float32)
    factor, row_log_sum_exp = end_rows_with_sinks(state.row_max, state.row_sum, sink)
    rows = first_row + tl.arange(0, BLOCK_Q)
    columns = tl.arange(0, WIDTHS.padded_v)
    origin = locate_row(Head(outputs.out, strides, batch, head, seq_q), first_row)
    pointers = origin + offset(tl.arange(0, BLOCK_Q)[:, None], strides.row) + columns[None, :]
    in_range = (rows < seq_q)[:, None] & (columns < WIDTHS.v)[None, :]
    tl.store(pointers, (state.accumulator * factor[:, None]).to(outputs.out.dtype.element_ty), mask=in_range)
    if outputs.log_sum_exp is not None:
        tl.store(outputs.log_sum_exp + offset(batch_head, seq_q) + rows, row_log_sum_exp, mask=rows < seq_q)


_LENGTHS = ["heads", "group", "seq_q", "seq_kv", "window"]  # no binary of its own for a number


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=_LENGTHS)
def flash_attention_masked_forward(
    q, k, v, operands, outputs, q_strides, k_strides, v_strides, operand_strides, out_strides,
    heads, group, seq_q, seq_kv, window, factors, WIDTHS: tl.constexpr, FEATURES: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Compute one tile of queries of one head a program, over tensors ``[B, S, H, D]``.

    ``q``, ``k`` and ``v`` are pointers or tensor descriptors; the log-sum-exp is fp32 ``[B, H, S_q]`` or None.
    """
    BLOCK_Q: tl.constexpr = BLOCKS.queries
    BLOCK_K: tl.constexpr = BLOCKS.keys
    # Neighbouring programs share a head, as in flash_attention/triton, and under a causal mask start the longest first.
    blocks = tl.cdiv(seq_q, BLOCK_Q)
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks if FEATURES.causal else program % blocks
    batch_head = program // blocks
    batch = batch_head // heads
    head = batch_head % heads
    kv_head = head // group
    queries = Head(q, q_strides, batch, head, seq_q)
    keys = Head(k, k_strides, batch, kv_head, seq_kv)
    values = Head(v, v_strides, batch, kv_head, seq_kv)
    first_row = block * BLOCK_Q
    rows = first_row + tl.arange(0, BLOCK_Q)
    diagonal = seq_kv - seq_q  # the last query sees the last key

    q_tile = load_rows(queries, first_row, BLOCK_Q, WIDTHS.k, WIDTHS.padded_k, True, FEATURES.descriptor)
    mask_rows = None
    if FEATURES.boolean or FEATURES.additive:
        mask_rows = _locate_mask(operands.attn_mask, operand_strides, batch, head, rows, seq_q, FEATURES.per_query)
    last_row = tl.minimum(first_row + BLOCK_Q, seq_q) - 1
    bounds = bound_keys(first_row, last_row, diagonal, seq_kv, window, FEATURES.causal, FEATURES.window)
    ends = None
    if FEATURES.ends:
        ends = tl.load(operands.kv_ends + offset(batch, operand_strides.ends) + rows, mask=rows < seq_q, other=0)
        high = tl.maximum(bounds.high, tl.minimum(tl.max(ends, 0), seq_kv))
        bounds = Bounds(bounds.low, bounds.full_low, bounds.full_high, high)
    bounds = _block_bounds(bounds, BLOCK_K)
    state = begin_state(BLOCK_Q, WIDTHS.padded_v)
    if FEATURES.window:
        # Keys that enter the window of some rows only.
        state = _attend(
            state, q_tile, mask_rows, operand_strides.key, rows, ends, keys, values, bounds.low, bounds.full_low,
            diagonal, window, factors, WIDTHS, FEATURES, BLOCK_K, True,
        )  # fmt: skip
    # Keys that every row sees, but for the operand.
    state = _attend(
        state, q_tile, mask_rows, operand_strides.key, rows, ends, keys, values, bounds.full_low, bounds.full_high,
            diagonal, window, factors, WIDTHS, FEATURES, BLOCK_K, False,
    )  # fmt: skip
    # Keys on the diagonal, at the window's far edge, or in the last partial block.
    state = _attend(
        state, q_tile, mask_rows, operand_strides.key, rows, ends, keys, values, bounds.full_high, bounds.high,
            diagonal, window, factors, WIDTHS, FEATURES, BLOCK_K, True,
    )  # fmt: skip
    _store_rows(
        outputs, operands.sinks, state, out_strides, batch, head, batch_head, first_row, seq_q, WIDTHS, BLOCK_Q
    )  # fmt: skip
