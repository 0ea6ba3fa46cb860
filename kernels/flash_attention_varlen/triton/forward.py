# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Attention forward over packed sequences, and over those of a padded batch, in Triton.

Algorithm: FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1) with the softmax in base 2. The query heads of one KV
head are rows of one tile, so that keys are read once for all of them: row ``i * group + g`` is query i of its head g.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.flash_attention_varlen.triton.sequence_order import (
    Sequences,
    find_counting,
    find_longest,
    find_packed,
    locate_sequences,
)
from autotune.kernels.tiles.masks import Bounds, bound_keys, hide_keys
from autotune.kernels.tiles.outputs import store_outputs
from autotune.kernels.tiles.precision import product_precision
from autotune.kernels.tiles.rows import Head, gather_rows, load_rows, offset
from autotune.kernels.tiles.softmax import LOG2_E, State, begin_state, cap_scores, fold_scores, fold_values


class Features(NamedTuple):
    """The computation of a binary: its features, its order, and its loads."""

    causal: bool
    window: bool
    softcap: bool
    precise: bool
    descriptor: bool
    longest_first: bool
    heads_together: bool


class Factors(NamedTuple):
    """Factors of the scores, and their cap: with one the scale is over the cap, and without one to base 2."""

    score_scale: Any
    softcap: Any


class Padding(NamedTuple):
    """Pointers to a number a sequence, counted from its first row, or None: how many queries count, and which keys."""

    q_lens: Any
    kv_lens: Any
    kv_starts: Any


@triton.jit
def _block_bounds(bounds, BLOCK_K: tl.constexpr):
    """Round bounds to blocks of keys: outward where some row sees a key, inward where every row does."""
    full_low = tl.minimum(tl.cdiv(bounds.full_low, BLOCK_K) * BLOCK_K, bounds.high)
    full_high = tl.maximum(tl.maximum(bounds.full_high, 0) // BLOCK_K * BLOCK_K, full_low)
    return Bounds(bounds.low // BLOCK_K * BLOCK_K, full_low, full_high, bounds.high)


@triton.jit
def _attend(
    state, q_tile, positions, keys, values, first_key, start, stop, window, factors,
    WIDTHS: tl.constexpr, FEATURES: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the keys ``start <= key < stop`` of a sequence, whose first is a packed row, into a tile's running softmax.

    ``positions`` are those of the rows' queries among the keys.
    """
    for key in tl.range(start, stop, BLOCK_K):
        row = first_key + key
        k_tile = load_rows(keys, row, BLOCK_K, WIDTHS.k, WIDTHS.padded_k, MASKED, FEATURES.descriptor)
        scores = tl.dot(q_tile, k_tile.T, input_precision=product_precision(k_tile.dtype))
        factor = factors.score_scale
        if FEATURES.softcap:  # the capped scores are taken to base 2 below
            scores = cap_scores(scores * factors.score_scale, factors.softcap, FEATURES.precise)
            factor = LOG2_E
        columns = key + tl.arange(0, BLOCK_K)
        present = first_key + columns < keys.length
        if MASKED:
            ahead = columns[None, :] - positions[:, None]
            scores = hide_keys(scores, present[None, :], ahead, window, FEATURES.causal, FEATURES.window)
        state, weights = fold_scores(state, scores, factor, MASKED)
        v_tile = load_rows(values, row, BLOCK_K, WIDTHS.v, WIDTHS.padded_v, MASKED, FEATURES.descriptor)
        # A descriptor loads rows of the next sequence, too: their weights are 0, but 0 x NaN is NaN.
        if MASKED and FEATURES.descriptor:
            v_tile = tl.where(present[:, None], v_tile, tl.zeros_like(v_tile))
        state = fold_values(state, weights, v_tile)
    return state


@triton.jit
def _compute_rows(
    q_tile, positions, keys, values, first_key, bounds, window, factors,
    TILE: tl.constexpr, WIDTHS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Return the softmax of a tile's rows over the keys within ``bounds``."""
    state = begin_state(TILE.rows, WIDTHS.padded_v)
    if FEATURES.window:
        # Keys that enter the window of some rows only.
        state = _attend(
            state, q_tile, positions, keys, values, first_key, bounds.low, bounds.full_low, window,
            factors, WIDTHS, FEATURES, TILE.keys, True,
        )  # fmt: skip
    # Keys that every row sees: no mask.
    state = _attend(
        state, q_tile, positions, keys, values, first_key, bounds.full_low, bounds.full_high, window,
        factors, WIDTHS, FEATURES, TILE.keys, False,
    )  # fmt: skip
    # Keys on the diagonal, at the window's far edge, or in the last partial block.
    return _attend(
        state, q_tile, positions, keys, values, first_key, bounds.full_high, bounds.high, window,
        factors, WIDTHS, FEATURES, TILE.keys, True,
    )  # fmt: skip


@triton.jit
def _empty_rows(state, is_kept):
    """Return the state in which only the rows that are kept have seen keys; of the others no NaN is left."""
    accumulator = tl.where(is_kept[:, None], state.accumulator, 0.0)
    row_max = tl.where(is_kept, state.row_max, float("-inf"))
    return State(accumulator, row_max, tl.where(is_kept, state.row_sum, 0.0))


_NUMBERS = ["tokens", "key_tokens", "batch", "kv_heads", "window"]  # no binary of its own for a number
_INTEGERS = ["cu_seqlens_q", "cu_seqlens_k"]


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=[*_INTEGERS, *_NUMBERS])
def flash_attention_varlen_forward(
    q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, padding, outputs, q_strides, k_strides, v_strides,
    tokens, key_tokens, batch, kv_heads, window, factors,
    TILE: tl.constexpr, WIDTHS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute one tile a program: ``q [T, H, D]``, ``out [T, H, D_v]``, ``log_sum_exp`` fp32 ``[T, H]``.

    ``k`` and ``v`` are pointers or tensor descriptors of ``[1, T, H_kv, D]``. Whatever offsets say, a sequence has no
    more queries than ``tokens`` and no more keys than ``key_tokens``. Of a padded batch, which has no offsets, each
    sequence has as many of its own, ``T`` is ``B, S`` above, and ``k`` and ``v`` are of ``[B, S, H_kv, D]``.
    """
    program = tl.program_id(0)
    queries_of = Sequences(cu_seqlens_q, None, padding.q_lens, tokens, batch)
    keys_of = Sequences(cu_seqlens_k, padding.kv_starts, padding.kv_lens, key_tokens, batch)
    if FEATURES.heads_together:
        slot = program // kv_heads
        kv_head = program % kv_heads
    else:
        slots = tl.num_programs(0) // kv_heads
        slot = program % slots
        kv_head = program // slots
    if FEATURES.longest_first:
        sequence, behind = find_longest(queries_of, keys_of, slot, TILE)
    else:
        sequence, behind = find_packed(queries_of, slot, TILE)
    begin, count = locate_sequences(queries_of, sequence)
    _, used = find_counting(queries_of, sequence, count)
    first_key, length = locate_sequences(keys_of, sequence)
    skipped, length = find_counting(keys_of, sequence, length)
    first_key += skipped
    # Under a causal mask a sequence's last queries see the most keys: its longest tile starts first.
    first_row = (tl.cdiv(count * TILE.group, TILE.rows) - 1 - behind) * TILE.rows
    if (first_row < 0) | (behind < 0):  # a slot without a tile
        return

    if cu_seqlens_q is None:
        entry = sequence
        first_output = offset(sequence, tokens)
        diagonal = key_tokens - tokens - skipped  # padding moves no query: the batch's last one sees its last key
    else:
        entry = 0
        first_output = begin
        diagonal = length - used  # the last query sees the last key; negative where queries outnumber keys
    rows = first_row + tl.arange(0, TILE.rows)
    is_row = rows < count * TILE.group
    is_used = rows < used * TILE.group
    queries = rows // TILE.group
    heads = kv_head * TILE.group + rows % TILE.group
    if padding.q_lens is not None:
        length = tl.where(first_row < used * TILE.group, length, 0)  # a tile of padding goes over no keys
    last_row = tl.minimum(first_row + TILE.rows, used * TILE.group) - 1
    bounds = bound_keys(
        first_row // TILE.group, last_row // TILE.group, diagonal, length, window, FEATURES.causal, FEATURES.window
    )  # fmt: skip
    origin = q + offset(entry, q_strides.batch)
    q_offsets = offset(begin + queries, q_strides.row) + offset(heads, q_strides.head)
    q_tile = gather_rows(origin, q_offsets, None, is_used, WIDTHS.k, WIDTHS.padded_k)
    keys = Head(k, k_strides, entry, kv_head, first_key + length)
    values = Head(v, v_strides, entry, kv_head, first_key + length)
    state = _compute_rows(
        q_tile, diagonal + queries, keys, values, first_key, _block_bounds(bounds, TILE.keys),
        window, factors, TILE, WIDTHS, FEATURES,
    )  # fmt: skip
    if padding.q_lens is not None:
        state = _empty_rows(state, is_used)
    store_outputs(
        outputs, sinks, state, first_output + queries, heads, kv_heads, is_row, TILE.group, WIDTHS.v, WIDTHS.padded_v
    )  # fmt: skip
