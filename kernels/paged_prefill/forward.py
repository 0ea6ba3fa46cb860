"""Attention of packed queries over a paged cache in Triton: chunked prefill, and decode rows among the chunks.

Algorithm: FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1) with the softmax in base 2; keys that every row of a
tile sees, and those that need a mask, are folded in by loops of their own.

A tile is a block of rows of one sequence and one KV head; row ``i * GROUP + g`` is query i of the group's head g.
"""

import triton
import triton.language as tl

from autotune.kernels.flash_attention.forward import LOG2_E, _offset, _tanh
from autotune.kernels.paged_decode.keys import load_rows, locate_keys
from autotune.kernels.paged_decode.pages import load_pages
from autotune.kernels.paged_decode.softmax import finish_softmax
from autotune.kernels.precision import product_precision

# Sequences that a program looks at together. One size for all batches, so that all run one binary.
SEQUENCES_AT_ONCE = tl.constexpr(256)


@triton.jit
def _first_slot(begin, sequence, GROUP: tl.constexpr, BLOCK_Q: tl.constexpr):
    """The slot of a sequence's first tile, given the number of queries before it.

    A sequence of n rows has ``cdiv(n, BLOCK_Q)`` tiles, and this gives it that many slots, or one more, from the packed
    queries' offsets alone: no program sums the tiles of the sequences before its own.
    """
    return tl.cast(begin, tl.int64) * GROUP // BLOCK_Q + sequence


@triton.jit
def _find_sequence(cu_seqlens_q, batch, slot, GROUP: tl.constexpr, BLOCK_Q: tl.constexpr):
    """The sequence that this slot belongs to: the last one whose first slot is not behind it."""
    passed = 0
    for start in range(0, batch, SEQUENCES_AT_ONCE):
        sequences = start + tl.arange(0, SEQUENCES_AT_ONCE)
        begins = tl.load(cu_seqlens_q + sequences, mask=sequences < batch, other=0)
        is_passed = (_first_slot(begins, sequences, GROUP, BLOCK_Q) <= slot) & (sequences < batch)
        passed += tl.sum(is_passed.to(tl.int32))
    return tl.maximum(passed - 1, 0)  # of a slot before all, where offsets begin behind 0


@triton.jit
def _tile_bounds(first, last, window, BLOCK_K: tl.constexpr, WINDOW: tl.constexpr):
    """What rows at the positions ``first`` to ``last`` see: some row the keys ``low <= key < high``, which lie in the
    tiles ``[start, stop)``; every row all keys of the tiles ``[full_start, full_stop)`` among them."""
    low = 0
    full_low = 0
    if WINDOW:
        low = tl.maximum(first - window + 1, 0)
        full_low = tl.maximum(last - window + 1, 0)
    high = tl.maximum(last + 1, 0)
    start = low // BLOCK_K
    stop = tl.cdiv(high, BLOCK_K)
    full_start = tl.minimum(tl.cdiv(full_low, BLOCK_K), stop)
    full_stop = tl.maximum(tl.maximum(first + 1, 0) // BLOCK_K, full_start)
    return low, high, start, full_start, full_stop, stop


@triton.jit
def _load_full_pages(table_row, tile, BLOCK_K: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr):
    """The page of each run of RUN keys of a tile that every row sees whole."""
    starts = tile * BLOCK_K
    if RUN != BLOCK_K:
        starts += tl.arange(0, BLOCK_K // RUN) * RUN
    return tl.load(table_row + starts // PAGE_SIZE)


@triton.jit
def _score_keys(
    q_tile, k_tile, keys, positions, slopes, score_scale, softcap, window,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Scores, -inf if MASKED where a query may not see the key, and the factor that takes them to base 2."""
    scores = tl.dot(q_tile, k_tile.T, input_precision=product_precision(k_tile.dtype))
    if SOFTCAP:
        scores = softcap * _tanh(scores * score_scale, PRECISE)
        factor = 1.0
    elif slopes is not None:
        scores = scores * score_scale
        factor = 1.0
    else:
        factor = score_scale  # one multiplication with the subtraction of the maximum
    if MASKED or slopes is not None:
        ahead = keys[None, :] - positions[:, None]
        if slopes is not None:
            scores += slopes[:, None] * ahead
        if MASKED:
            visible = ahead <= 0
            if WINDOW:
                visible = visible & (ahead > -window)
            scores = tl.where(visible, scores, float("-inf"))
    return scores, factor


@triton.jit
def _fold_tiles(
    accumulator, row_max, row_sum, pages, q_tile, positions, slopes, k, v, table_row,
    start, stop, low, high, window, score_scale, softcap,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_K: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, K_STRIDES: tl.constexpr, V_STRIDES: tl.constexpr,
    MASKED: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Fold the keys of the tiles ``start <= tile < stop`` into the running softmax; ``pages`` are the first tile's."""
    for tile in tl.range(start, stop):
        # A tile's pages are loaded while the tile before it is computed, see paged_decode.
        if MASKED:
            next_pages = load_pages(table_row, tile + 1, low, high, BLOCK_K, PAGE_SIZE, RUN)
        else:
            next_pages = _load_full_pages(table_row, tl.minimum(tile + 1, stop - 1), BLOCK_K, PAGE_SIZE, RUN)
        keys = tile * BLOCK_K + tl.arange(0, BLOCK_K)
        present = (keys >= low) & (keys < high) if MASKED else tl.full([BLOCK_K], True, tl.int1)
        k_fixed, k_moving = locate_keys(pages, tile, BLOCK_K, PAGE_SIZE, RUN, K_STRIDES)
        k_tile = load_rows(k, k_fixed, k_moving, present, HEAD_DIM, BLOCK_D)
        scores, factor = _score_keys(
            q_tile, k_tile, keys, positions, slopes, score_scale, softcap, window, MASKED, WINDOW, SOFTCAP, PRECISE
        )  # fmt: skip
        new_max = tl.maximum(row_max, tl.max(scores, 1) * factor)
        # A row that has seen no key yet keeps the maximum -inf; subtracting it would make NaN.
        shift = tl.where(new_max == float("-inf"), 0.0, new_max) if MASKED else new_max
        weights = tl.exp2(scores * factor - shift[:, None])
        rescale = tl.exp2(row_max - shift)
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        row_max = new_max
        accumulator = accumulator * rescale[:, None]
        v_fixed, v_moving = locate_keys(pages, tile, BLOCK_K, PAGE_SIZE, RUN, V_STRIDES)
        v_tile = load_rows(v, v_fixed, v_moving, present, HEAD_DIM_V, BLOCK_DV)
        accumulator = tl.dot(
            weights.to(v_tile.dtype), v_tile, accumulator, input_precision=product_precision(v_tile.dtype)
        )
        pages = next_pages
    return accumulator, row_max, row_sum


@triton.jit
def _compute_tile(
    q, k, v, table_row, sinks, slopes, out, lse, q_strides,
    first_row, begin, count, length, kv_head, kv_heads, window, score_scale, softcap,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, K_STRIDES: tl.constexpr, V_STRIDES: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Attention of ROWS rows from ``first_row`` of the ``count`` queries that begin at ``begin`` in the packed ones."""
    rows = first_row + tl.arange(0, ROWS)
    is_row = rows < count * GROUP
    queries = rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    offset = length - count  # position of the sequence's first query; negative where queries outnumber keys
    positions = offset + queries
    last_row = tl.minimum(first_row + ROWS, count * GROUP) - 1
    low, high, start, full_start, full_stop, stop = _tile_bounds(
        offset + first_row // GROUP, offset + last_row // GROUP, window, BLOCK_K, WINDOW
    )  # fmt: skip

    # The first pages of every loop wait together, beside the queries.
    low_pages = load_pages(table_row, start, low, high, BLOCK_K, PAGE_SIZE, RUN)
    full_pages = load_pages(table_row, full_start, low, high, BLOCK_K, PAGE_SIZE, RUN) if WINDOW else low_pages
    last_pages = load_pages(table_row, full_stop, low, high, BLOCK_K, PAGE_SIZE, RUN)
    q_offsets = _offset(begin + queries, q_strides[0]) + _offset(heads, q_strides[1])
    q_tile = load_rows(q, q_offsets, None, is_row, HEAD_DIM, BLOCK_D)
    if slopes is not None:
        slopes = tl.load(slopes + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
    k += _offset(kv_head, K_STRIDES[2])
    v += _offset(kv_head, V_STRIDES[2])

    accumulator = tl.zeros([ROWS, BLOCK_DV], tl.float32)
    row_max = tl.full([ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    if WINDOW:
        # Keys that enter the window of some rows only.
        accumulator, row_max, row_sum = _fold_tiles(
            accumulator, row_max, row_sum, low_pages, q_tile, positions, slopes, k, v, table_row,
            start, full_start, low, high, window, score_scale, softcap, HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV,
            BLOCK_K, PAGE_SIZE, RUN, K_STRIDES, V_STRIDES, True, WINDOW, SOFTCAP, PRECISE,
        )  # fmt: skip
    # Keys that every row sees: no mask.
    accumulator, row_max, row_sum = _fold_tiles(
        accumulator, row_max, row_sum, full_pages, q_tile, positions, slopes, k, v, table_row,
        full_start, full_stop, low, high, window, score_scale, softcap, HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV,
        BLOCK_K, PAGE_SIZE, RUN, K_STRIDES, V_STRIDES, False, WINDOW, SOFTCAP, PRECISE,
    )  # fmt: skip
    # Keys on the diagonal, at the window's far edge, or in the last partial tile.
    accumulator, row_max, row_sum = _fold_tiles(
        accumulator, row_max, row_sum, last_pages, q_tile, positions, slopes, k, v, table_row,
        full_stop, stop, low, high, window, score_scale, softcap, HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV,
        BLOCK_K, PAGE_SIZE, RUN, K_STRIDES, V_STRIDES, True, WINDOW, SOFTCAP, PRECISE,
    )  # fmt: skip

    if sinks is not None:
        sinks = tl.load(sinks + heads, mask=is_row, other=0.0).to(tl.float32)
    factor, row_lse = finish_softmax(row_max, row_sum, sinks)
    indices = _offset(begin + queries, kv_heads * GROUP) + heads
    columns = tl.arange(0, BLOCK_DV)
    pointers = out + _offset(indices[:, None], HEAD_DIM_V) + columns[None, :]
    values = (accumulator * factor[:, None]).to(out.dtype.element_ty)
    tl.store(pointers, values, mask=is_row[:, None] & (columns < HEAD_DIM_V)[None, :])
    if lse is not None:
        tl.store(lse + indices, row_lse, mask=is_row)


_NUMBERS = ["stride_table", "capacity", "tokens", "batch", "kv_heads", "window"]  # no binary of its own for a number
_INTEGERS = ["page_table", "seq_lens", "cu_seqlens_q"]


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=[*_INTEGERS, *_NUMBERS])
def paged_prefill_forward(
    q, k, v, page_table, seq_lens, cu_seqlens_q, sinks, slopes, out, lse,
    q_strides, stride_table, capacity, tokens, batch, kv_heads, window, score_scale, softcap,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_Q: tl.constexpr, SMALL_Q: tl.constexpr,
    BLOCK_K: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, K_STRIDES: tl.constexpr, V_STRIDES: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr, HEADS_TOGETHER: tl.constexpr,
):  # fmt: skip
    """Each program computes one tile: ``q [T, H, D]``, ``out [T, H, HEAD_DIM_V]``, ``lse`` fp32 ``[T, H]``.

    Tiles of at most SMALL_Q rows, those of decode steps, are computed as such; 0: all as tiles of BLOCK_Q rows.
    Whatever lengths and offsets say, a sequence has no more keys than ``capacity``, its table's, and queries within T.
    """
    program = tl.program_id(0)
    if HEADS_TOGETHER:  # neighbouring programs read the heads of one page
        slot = program // kv_heads
        kv_head = program % kv_heads
    else:  # neighbouring programs share the keys of one head
        slots = tl.num_programs(0) // kv_heads
        slot = program % slots
        kv_head = program // slots
    sequence = _find_sequence(cu_seqlens_q, batch, slot, GROUP, BLOCK_Q)
    begin = tl.maximum(tl.load(cu_seqlens_q + sequence), 0)
    count = tl.minimum(tl.load(cu_seqlens_q + sequence + 1), tokens) - begin
    # A sequence's last queries see the most keys: its longest tile starts first.
    behind = (slot - _first_slot(begin, sequence, GROUP, BLOCK_Q)).to(tl.int32)
    first_row = (tl.cdiv(count * GROUP, BLOCK_Q) - 1 - behind) * BLOCK_Q
    if (first_row < 0) | (behind < 0) | (count <= 0):  # a slot without a tile
        return
    length = tl.minimum(tl.maximum(tl.load(seq_lens + sequence), 0), capacity)
    table_row = page_table + _offset(sequence, stride_table)
    if SMALL_Q != 0 and count * GROUP - first_row <= SMALL_Q:
        _compute_tile(
            q, k, v, table_row, sinks, slopes, out, lse, q_strides,
            first_row, begin, count, length, kv_head, kv_heads, window, score_scale, softcap,
            GROUP, HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV, SMALL_Q, BLOCK_K,
            PAGE_SIZE, RUN, K_STRIDES, V_STRIDES, WINDOW, SOFTCAP, PRECISE,
        )  # fmt: skip
        return
    _compute_tile(
        q, k, v, table_row, sinks, slopes, out, lse, q_strides,
        first_row, begin, count, length, kv_head, kv_heads, window, score_scale, softcap,
        GROUP, HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV, BLOCK_Q, BLOCK_K,
        PAGE_SIZE, RUN, K_STRIDES, V_STRIDES, WINDOW, SOFTCAP, PRECISE,
    )  # fmt: skip
