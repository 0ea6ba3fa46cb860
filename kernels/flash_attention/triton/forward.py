# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Flash attention forward in Triton.

Algorithm: FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1) with the softmax in base 2.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.masks import Bounds, bound_keys, hide_keys
from autotune.kernels.tiles.precision import product_precision
from autotune.kernels.tiles.rows import Head, load_rows, locate_row, offset
from autotune.kernels.tiles.softmax import LOG2_E, begin_state, cap_scores, end_rows, fold_scores, fold_values


class Features(NamedTuple):
    """The computation of a binary: its features and its loads."""

    causal: bool
    window: bool
    softcap: bool
    precise: bool
    descriptor: bool


@triton.jit
def _block_bounds(bounds, BLOCK_K: tl.constexpr):
    """Round bounds to blocks of keys: outward where some row sees a key, inward where every row does."""
    full_low = tl.minimum(tl.cdiv(bounds.full_low, BLOCK_K) * BLOCK_K, bounds.high)
    full_high = tl.maximum(tl.maximum(bounds.full_high, 0) // BLOCK_K * BLOCK_K, full_low)
    return Bounds(bounds.low // BLOCK_K * BLOCK_K, full_low, full_high, bounds.high)


@triton.jit
def _attend(
    state, q_tile, rows, keys, values, start, stop, diagonal, window, score_scale, softcap,
    WIDTHS: tl.constexpr, FEATURES: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the keys ``start <= key < stop`` into the running softmax of one tile of queries."""
    for key in tl.range(start, stop, BLOCK_K):
        k_tile = load_rows(keys, key, BLOCK_K, WIDTHS.k, WIDTHS.padded_k, MASKED, FEATURES.descriptor)
        scores = tl.dot(q_tile, k_tile.T, input_precision=product_precision(k_tile.dtype))
        factor = score_scale
        if FEATURES.softcap:  # score_scale is scale / softcap here; the capped scores are taken to base 2 below
            scores = cap_scores(scores * score_scale, softcap, FEATURES.precise)
            factor = LOG2_E
        if MASKED:
            columns = key + tl.arange(0, BLOCK_K)
            present = (columns < keys.length)[None, :]
            ahead = columns[None, :] - rows[:, None] - diagonal
            scores = hide_keys(scores, present, ahead, window, FEATURES.causal, FEATURES.window)
        state, weights = fold_scores(state, scores, factor, MASKED)
        v_tile = load_rows(values, key, BLOCK_K, WIDTHS.v, WIDTHS.padded_v, MASKED, FEATURES.descriptor)
        state = fold_values(state, weights, v_tile)
    return state


_LENGTHS = ["heads", "group", "seq_q", "seq_kv", "window"]  # no binary of its own for a number


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=_LENGTHS)
def flash_attention_forward(
    q, k, v, out, log_sum_exp, q_strides, k_strides, v_strides, out_strides,
    heads, group, seq_q, seq_kv, window, score_scale, softcap,
    WIDTHS: tl.constexpr, FEATURES: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute ``out = softmax(q k^T) v`` over tensors ``[B, S, H, D]``, one tile of queries of one head a program.

    ``q``, ``k`` and ``v`` are pointers or tensor descriptors; ``log_sum_exp`` is fp32 ``[B, H, S]`` or None.
    """
    # Neighbouring programs share a head, and with it K and V in the L2. Under a causal mask late queries see the
    # most keys: each head's longest tiles start first. (Longest first over all heads was 1 to 31 % slower: D = 64
    # and 128, S = 512 to 16384, bf16, batch x seq = 16384, best of 60 configs; NVIDIA H200, 2026-11-21, CUDA graphs.)
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
    last_row = tl.minimum(first_row + BLOCK_Q, seq_q) - 1
    bounds = _block_bounds(
        bound_keys(first_row, last_row, diagonal, seq_kv, window, FEATURES.causal, FEATURES.window), BLOCK_K
    )  # fmt: skip
    state = begin_state(BLOCK_Q, WIDTHS.padded_v)
    if FEATURES.window:
        # Keys that enter the window of some rows only.
        state = _attend(
            state, q_tile, rows, keys, values, bounds.low, bounds.full_low, diagonal, window, score_scale, softcap,
            WIDTHS, FEATURES, BLOCK_K, True,
        )  # fmt: skip
    # Keys that every row sees: no mask.
    state = _attend(
        state, q_tile, rows, keys, values, bounds.full_low, bounds.full_high, diagonal, window, score_scale, softcap,
        WIDTHS, FEATURES, BLOCK_K, False,
    )  # fmt: skip
    # Keys on the diagonal, at the window's far edge, or in the last partial block.
    state = _attend(
        state, q_tile, rows, keys, values, bounds.full_high, bounds.high, diagonal, window, score_scale, softcap,
        WIDTHS, FEATURES, BLOCK_K, True,
    )  # fmt: skip

    row_sum, row_log_sum_exp = end_rows(state.row_max, state.row_sum)
    out_tile = state.accumulator / row_sum[:, None]
    columns = tl.arange(0, WIDTHS.padded_v)
    origin = locate_row(Head(out, out_strides, batch, head, seq_q), first_row)
    pointers = origin + offset(tl.arange(0, BLOCK_Q)[:, None], out_strides.row) + columns[None, :]
    in_range = (rows < seq_q)[:, None] & (columns < WIDTHS.v)[None, :]
    tl.store(pointers, out_tile.to(out.dtype.element_ty), mask=in_range)
    if log_sum_exp is not None:
        tl.store(log_sum_exp + offset(batch_head, seq_q) + rows, row_log_sum_exp, mask=rows < seq_q)
