# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Flash attention forward of few queries in Triton: programs share a sequence's keys, a second kernel merges.

Algorithm: Flash-Decoding (Dao et al., https://pytorch.org/blog/flash-decoding, 2023): FlashAttention-2 (Dao, arXiv
2307.08691, algorithm 1) over each share of the keys, in base 2, then the softmax over the shares. The query heads of
one KV head are rows of one tile, so that keys are read once for all of them: row ``i * group + g`` is query i of the
head g in the group.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.masks import Bounds, bound_keys, hide_keys
from autotune.kernels.tiles.partials import merge_partials, store_partial
from autotune.kernels.tiles.precision import product_precision
from autotune.kernels.tiles.rows import Head, gather_rows, load_rows, offset
from autotune.kernels.tiles.softmax import LOG2_E, State, begin_state, cap_scores, end_rows, fold_scores, fold_values


class Features(NamedTuple):
    """The features that a binary is compiled for.

    ``descriptor``: keys and values are loaded by descriptors. ``shared``: several programs share a sequence's keys, and
    leave partial results. ``early``: it is launched before the kernel that it waits for has ended.
    """

    causal: bool
    window: bool
    softcap: bool
    precise: bool
    descriptor: bool
    shared: bool
    early: bool


@triton.jit
def share_tiles(bounds, split, splits, BLOCK_K: tl.constexpr):
    """Return the bounds of one of so many shares, as equal as whole blocks of keys can be, and its first key.

    Blocks of which every row sees every key lie within ``full_low`` and ``full_high``; those of the share that do not
    lie before or behind.
    """
    low = bounds.low // BLOCK_K * BLOCK_K
    full_low = tl.cdiv(bounds.full_low, BLOCK_K) * BLOCK_K
    full_high = tl.maximum(bounds.full_high, 0) // BLOCK_K * BLOCK_K
    tiles = tl.cdiv(tl.maximum(bounds.high - low, 0), BLOCK_K)
    each = tiles // splits
    longer = tiles % splits  # shares with a block more, the first ones
    begin = low + (split * each + tl.minimum(split, longer)) * BLOCK_K
    end = tl.minimum(begin + (each + (split < longer).to(tl.int32)) * BLOCK_K, bounds.high)
    full_low = tl.minimum(tl.maximum(full_low, begin), end)
    return Bounds(begin, full_low, tl.maximum(tl.minimum(full_high, end), full_low), end)


@triton.jit
def attend_keys(
    state, q_tile, queries, keys, values, start, stop, diagonal, window, score_scale, softcap,
    WIDTHS: tl.constexpr, FEATURES: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the keys ``start <= key < stop`` into the running softmax of rows, which belong to these queries."""
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
            ahead = columns[None, :] - queries[:, None] - diagonal
            scores = hide_keys(scores, present, ahead, window, FEATURES.causal, FEATURES.window)
        state, weights = fold_scores(state, scores, factor, MASKED)
        v_tile = load_rows(values, key, BLOCK_K, WIDTHS.v, WIDTHS.padded_v, MASKED, FEATURES.descriptor)
        state = fold_values(state, weights, v_tile)
    return state


@triton.jit
def store_results(
    out, log_sum_exp, out_strides, state, batch, queries, heads, is_row, all_heads, seq_q,
    WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
):  # fmt: skip
    """Finish rows, whose keys were all seen, and store them as these heads of these queries."""
    row_sum, row_log_sum_exp = end_rows(state.row_max, state.row_sum)
    columns = tl.arange(0, BLOCK_WIDTH)
    places = offset(batch, out_strides.batch) + offset(queries, out_strides.row) + offset(heads, out_strides.head)
    values = (state.accumulator / row_sum[:, None]).to(out.dtype.element_ty)
    is_stored = is_row[:, None] & (columns < WIDTH)[None, :]
    tl.store(out + places[:, None] + columns[None, :], values, mask=is_stored)
    if log_sum_exp is not None:
        tl.store(log_sum_exp + offset(batch * all_heads + heads, seq_q) + queries, row_log_sum_exp, mask=is_row)


_LENGTHS = ["heads", "group", "seq_q", "seq_kv", "window", "splits"]  # no binary of its own for a number


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=_LENGTHS)
def attend_shares(
    q, k, v, out, log_sum_exp, partials, strides,
    heads, group, seq_q, seq_kv, window, splits, score_scale, softcap,
    WIDTHS: tl.constexpr, FEATURES: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Attend over one share of the keys of one block of rows a program; tensors are ``[B, S, H, D]``.

    ``strides`` are those of ``q``, ``k``, ``v`` and ``out``; ``k`` and ``v`` are pointers or tensor descriptors, and
    ``log_sum_exp`` is fp32 ``[B, H, S]`` or None. Partial results are left for ``combine_shares``, a block's shares one
    after another, unless one program has all keys.
    """
    # Programmatic dependent launch: what the kernel before wrote, and what it reads, may be touched from here on.
    if FEATURES.early:
        tl.extra.cuda.gdc_wait()
    q_strides, k_strides, v_strides, out_strides = strides
    # Neighbouring programs read the same keys, then those of the heads beside, which lie beside them in memory.
    kv_heads = heads // group
    used_rows = seq_q * group
    blocks = tl.cdiv(used_rows, BLOCK_Q)
    program = tl.program_id(0)
    block = program % blocks
    kv_head = program // blocks % kv_heads
    split = program // (blocks * kv_heads) % splits
    batch = program // (blocks * kv_heads * splits)
    keys = Head(k, k_strides, batch, kv_head, seq_kv)
    values = Head(v, v_strides, batch, kv_head, seq_kv)
    rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    is_row = rows < used_rows
    queries = rows // group
    row_heads = kv_head * group + rows % group
    diagonal = seq_kv - seq_q  # the last query sees the last key

    places = offset(batch, q_strides.batch) + offset(queries, q_strides.row) + offset(row_heads, q_strides.head)
    q_tile = gather_rows(q, places, None, is_row, WIDTHS.k, WIDTHS.padded_k)
    first_query = block * BLOCK_Q // group
    last_query = (tl.minimum((block + 1) * BLOCK_Q, used_rows) - 1) // group
    bounds = share_tiles(
        bound_keys(first_query, last_query, diagonal, seq_kv, window, FEATURES.causal, FEATURES.window),
        split, splits, BLOCK_K,
    )  # fmt: skip
    state = begin_state(BLOCK_Q, WIDTHS.padded_v)
    if FEATURES.window:
        # Keys that enter the window of some rows only.
        state = attend_keys(
            state, q_tile, queries, keys, values, bounds.low, bounds.full_low, diagonal, window, score_scale, softcap,
            WIDTHS, FEATURES, BLOCK_K, True,
        )  # fmt: skip
    # Keys that every row sees: no mask.
    state = attend_keys(
        state, q_tile, queries, keys, values, bounds.full_low, bounds.full_high, diagonal, window, score_scale, softcap,
        WIDTHS, FEATURES, BLOCK_K, False,
    )  # fmt: skip
    # Keys on the diagonal, at the window's far edge, or in the last partial block.
    state = attend_keys(
        state, q_tile, queries, keys, values, bounds.full_high, bounds.high, diagonal, window, score_scale, softcap,
        WIDTHS, FEATURES, BLOCK_K, True,
    )  # fmt: skip
    if FEATURES.early:
        tl.extra.cuda.gdc_launch_dependents()

    if FEATURES.shared:
        number = ((batch * kv_heads + kv_head) * blocks + block) * splits + split
        seen = State(state.accumulator, state.row_max, tl.where(is_row, state.row_sum, 0.0))  # no padding is stored
        store_partial(partials, number, seen, WIDTHS.padded_v, BLOCK_Q, BLOCK_Q)
    else:
        store_results(
            out, log_sum_exp, out_strides, state, batch, queries, row_heads, is_row, heads, seq_q,
            WIDTHS.v, WIDTHS.padded_v,
        )  # fmt: skip


_SIZES = ["heads", "group", "seq_q", "splits"]


@triton.jit(do_not_specialize=_SIZES, do_not_specialize_on_alignment=_SIZES)
def combine_shares(
    partials, out, log_sum_exp, out_strides, heads, group, seq_q, splits,
    WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr, AT_ONCE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Merge the shares of one head of one query a program, always in the same order, and store its result."""
    program = tl.program_id(0)
    head = program % heads
    query = program // heads % seq_q
    batch = program // (heads * seq_q)
    row = query * group + head % group
    blocks = tl.cdiv(seq_q * group, BLOCK_Q)
    number = ((batch * (heads // group) + head // group) * blocks + row // BLOCK_Q) * splits
    if EARLY:
        tl.extra.cuda.gdc_wait()
    state = merge_partials(
        partials, number, number + 1, 1, splits, row % BLOCK_Q, 1, BLOCK_Q, BLOCK_WIDTH, AT_ONCE
    )  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    single = tl.arange(0, 1)
    store_results(
        out, log_sum_exp, out_strides, state, batch, query + single, head + single, single == 0, heads, seq_q,
        WIDTH, BLOCK_WIDTH,
    )  # fmt: skip
