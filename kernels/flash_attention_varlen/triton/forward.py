# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Attention forward over packed sequences in Triton.

Algorithm: FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1) with the softmax in base 2. The query heads of one KV
head are rows of one tile, so that keys are read once for all of them; the loop over keys is that of dense attention.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from autotune.kernels.flash_attention.triton_split_keys.forward import attend_keys
from autotune.kernels.flash_attention_varlen.triton.sequence_order import find_longest, find_packed, locate_sequences
from autotune.kernels.tiles.masks import Bounds, bound_keys
from autotune.kernels.tiles.outputs import store_outputs
from autotune.kernels.tiles.rows import Head, gather_rows, offset
from autotune.kernels.tiles.softmax import begin_state


class Features(NamedTuple):
    """What a binary computes, and in which order.

    ``descriptor`` is false: a tile's last rows may be another sequence's, which a descriptor would load, NaN and all.
    """

    causal: bool
    window: bool
    softcap: bool
    precise: bool
    longest_first: bool
    heads_together: bool
    descriptor: bool = False


@triton.jit
def _block_bounds(bounds, BLOCK_K: tl.constexpr):
    """Round bounds to blocks of keys: outward where some row sees a key, inward where every row does."""
    full_low = tl.minimum(tl.cdiv(bounds.full_low, BLOCK_K) * BLOCK_K, bounds.high)
    full_high = tl.maximum(tl.maximum(bounds.full_high, 0) // BLOCK_K * BLOCK_K, full_low)
    return Bounds(bounds.low // BLOCK_K * BLOCK_K, full_low, full_high, bounds.high)


@triton.jit
def _attend(
    q_tile, queries, keys, values, bounds, diagonal, window, score_scale, softcap,
    TILE: tl.constexpr, WIDTHS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Return the softmax of a tile's rows over the keys within ``bounds``."""
    state = begin_state(TILE.rows, WIDTHS.padded_v)
    if FEATURES.window:
        # Keys that enter the window of some rows only.
        state = attend_keys(
            state, q_tile, queries, keys, values, bounds.low, bounds.full_low, diagonal, window, score_scale, softcap,
            WIDTHS, FEATURES, TILE.keys, True,
        )  # fmt: skip
    # Keys that every row sees: no mask.
    state = attend_keys(
        state, q_tile, queries, keys, values, bounds.full_low, bounds.full_high, diagonal, window, score_scale, softcap,
        WIDTHS, FEATURES, TILE.keys, False,
    )  # fmt: skip
    # Keys on the diagonal, at the window's far edge, or in the last partial block.
    return attend_keys(
        state, q_tile, queries, keys, values, bounds.full_high, bounds.high, diagonal, window, score_scale, softcap,
        WIDTHS, FEATURES, TILE.keys, True,
    )  # fmt: skip


_NUMBERS = ["tokens", "key_tokens", "batch", "kv_heads", "window"]  # no binary of its own for a number
_INTEGERS = ["cu_seqlens_q", "cu_seqlens_k"]


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=[*_INTEGERS, *_NUMBERS])
def flash_attention_varlen_forward(
    q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, outputs, q_strides, k_strides, v_strides,
    tokens, key_tokens, batch, kv_heads, window, score_scale, softcap,
    TILE: tl.constexpr, WIDTHS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Compute one tile a program: ``q [T, H, D]``, ``out [T, H, D_v]``, ``log_sum_exp`` fp32 ``[T, H]``.

    Whatever offsets say, a sequence has no more queries than ``tokens`` and no more keys than ``key_tokens``.
    """
    program = tl.program_id(0)
    if FEATURES.heads_together:
        slot = program // kv_heads
        kv_head = program % kv_heads
    else:
        slots = tl.num_programs(0) // kv_heads
        slot = program % slots
        kv_head = program // slots
    if FEATURES.longest_first:
        sequence, behind = find_longest(cu_seqlens_q, cu_seqlens_k, batch, tokens, key_tokens, slot, TILE)
    else:
        sequence, behind = find_packed(cu_seqlens_q, batch, tokens, slot, TILE)
    begin, count = locate_sequences(cu_seqlens_q, sequence, batch, tokens)
    key_begin, length = locate_sequences(cu_seqlens_k, sequence, batch, key_tokens)
    # Under a causal mask a sequence's last queries see the most keys: its longest tile starts first.
    first_row = (tl.cdiv(count * TILE.group, TILE.rows) - 1 - behind) * TILE.rows
    if (first_row < 0) | (behind < 0):  # a slot without a tile
        return

    rows = first_row + tl.arange(0, TILE.rows)
    is_row = rows < count * TILE.group
    queries = rows // TILE.group
    heads = kv_head * TILE.group + rows % TILE.group
    diagonal = length - count  # the last query sees the last key; negative where queries outnumber keys
    last_row = tl.minimum(first_row + TILE.rows, count * TILE.group) - 1
    bounds = bound_keys(
        first_row // TILE.group, last_row // TILE.group, diagonal, length, window, FEATURES.causal, FEATURES.window
    )  # fmt: skip
    q_offsets = offset(begin + queries, q_strides.row) + offset(heads, q_strides.head)
    q_tile = gather_rows(q, q_offsets, None, is_row, WIDTHS.k, WIDTHS.padded_k)
    keys = Head(k + offset(key_begin, k_strides.row), k_strides, 0, kv_head, length)
    values = Head(v + offset(key_begin, v_strides.row), v_strides, 0, kv_head, length)
    state = _attend(
        q_tile, queries, keys, values, _block_bounds(bounds, TILE.keys), diagonal, window, score_scale, softcap,
        TILE, WIDTHS, FEATURES,
    )  # fmt: skip
    store_outputs(
        outputs, sinks, state, begin + queries, heads, kv_heads, is_row, TILE.group, WIDTHS.v, WIDTHS.padded_v
    )  # fmt: skip
