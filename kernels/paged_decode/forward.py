"""Decode attention over a paged cache in Triton: one loop over tiles of keys under two schedules.

The schedule ``split`` is Flash-Decoding (Dao et al., https://pytorch.org/blog/flash-decoding, 2023); ``flat`` gives
programs equal shares of the list of all tiles, as Stream-K does for products (Osama et al., arXiv 2301.03598) and
LeanAttention for decode (Sanovar et al., arXiv 2405.10480).

The query heads of one KV head or of several, and the few queries of a sequence, are rows of one tile: row
``(h * SEQ_Q + i) * GROUP + g`` is query i of the head g in the group of KV head h.
"""

import triton
import triton.language as tl

from autotune.kernels.flash_attention.forward import LOG2_E, _offset
from autotune.kernels.paged_decode.early import let_next_come, wait_for_previous
from autotune.kernels.paged_decode.fold import begin_state, end_state, fold_tile
from autotune.kernels.paged_decode.pages import load_pages
from autotune.kernels.paged_decode.partials import arrive, merge_partials, store_output, store_partial
from autotune.kernels.paged_decode.queries import load_queries, locate_rows
from autotune.kernels.paged_decode.tiles import count_list, count_tiles, find_sequence, list_tiles, share_tiles

_LENGTHS = ["stride_table", "capacity", "batch", "kv_heads", "window"]  # no binary of its own for a number


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=["page_table", "seq_lens", *_LENGTHS])
def paged_decode_split(
    q, k, v, k_scale, v_scale, page_table, seq_lens, sinks, slopes, out, lse, partials, statistics, counters,
    q_strides, stride_table, capacity, batch, kv_heads, window, score_scale, softcap,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
    KEY_SCALES: tl.constexpr, PACKED: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr, EARLY: tl.constexpr,
    K_STRIDES: tl.constexpr, V_STRIDES: tl.constexpr, KS_STRIDES: tl.constexpr, VS_STRIDES: tl.constexpr,
):  # fmt: skip
    """Each program takes every SPLITS-th tile of one sequence and KV head: it need not know the length to begin.

    Without counters a second kernel merges the shares, else the last program to finish one does.
    """
    if EARLY:
        wait_for_previous()
    # Neighbouring programs read neighbouring heads of the same pages.
    blocks: tl.constexpr = (HEADS * SEQ_Q * GROUP + BLOCK_ROWS - 1) // BLOCK_ROWS
    lane = tl.program_id(0)
    split = tl.program_id(1)
    block = lane % blocks
    kv_head = lane // blocks % (kv_heads // HEADS) * HEADS
    sequence = lane // (blocks * (kv_heads // HEADS))
    length = tl.minimum(tl.load(seq_lens + sequence), capacity)
    first, tiles = count_tiles(length, window, SEQ_Q, BLOCK_K // HEADS, WINDOW)
    rows, row_heads, queries, heads = locate_rows(kv_head, block, SEQ_Q, GROUP, BLOCK_ROWS)
    is_row = rows < HEADS * SEQ_Q * GROUP
    k += _offset(kv_head, K_STRIDES[2])
    v += _offset(kv_head, V_STRIDES[2])
    if k_scale is not None:
        k_scale += _offset(kv_head, KS_STRIDES[2])
        v_scale += _offset(kv_head, VS_STRIDES[2])
    if slopes is not None:
        slopes = tl.load(slopes + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
    weight_type: tl.constexpr = q.dtype.element_ty if k.dtype.element_ty == q.dtype.element_ty else tl.float16
    q_tile, q_other, factors = load_queries(
        q, q_strides, k_scale, sequence, kv_head, block, score_scale, k.dtype.element_ty,
        SEQ_Q, GROUP, HEAD_DIM, BLOCK_D, BLOCK_ROWS, KEY_SCALES, PACKED, HEADS, KS_STRIDES[2],
    )  # fmt: skip
    accumulator, other, row_max, sums = begin_state(BLOCK_ROWS, BLOCK_K, BLOCK_DV, PACKED)
    # A tile's pages are loaded while the tile before it is computed: a load of keys whose address waits for another
    # load of its own iteration gets one buffer under num_stages 3 and 4 (Triton 3.6.0, sm_90). They are loaded whatever
    # the length, which is on its way too; what is not a page is not used.
    tokens: tl.constexpr = BLOCK_K // HEADS
    table_row = page_table + _offset(sequence, stride_table)
    pages = load_pages(table_row, first + split, 0, capacity, tokens, PAGE_SIZE, RUN)
    for tile in tl.range(first + split, first + tiles, SPLITS):
        next_pages = load_pages(table_row, tile + SPLITS, 0, capacity, tokens, PAGE_SIZE, RUN)
        accumulator, other, row_max, sums = fold_tile(
            q_tile, q_other, factors, k, v, k_scale, v_scale, slopes,
            row_heads, queries, length, tile, pages, window, softcap, accumulator, other, row_max, sums,
            SEQ_Q, HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV, BLOCK_K, PAGE_SIZE, RUN, WINDOW, SOFTCAP, PRECISE,
            KEY_SCALES, PACKED, HEADS, weight_type, K_STRIDES, V_STRIDES, KS_STRIDES, VS_STRIDES,
        )  # fmt: skip
        pages = next_pages
    accumulator, row_sum = end_state(
        accumulator, other, sums, v_scale, row_heads, is_row, BLOCK_ROWS, BLOCK_DV, KEY_SCALES, PACKED, VS_STRIDES[2]
    )  # fmt: skip
    if EARLY:
        let_next_come()
    if SPLITS == 1:
        store_output(
            out, lse, sinks, accumulator, row_max, row_sum, sequence, kv_head, block * BLOCK_ROWS, kv_heads,
            SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, BLOCK_ROWS, HEADS,
        )  # fmt: skip
    else:
        number = lane * SPLITS
        store_partial(partials, statistics, number + split, accumulator, row_max, row_sum, BLOCK_DV, BLOCK_ROWS, ROWS)
        if counters is not None and arrive(counters + lane, SPLITS):
            merged, merged_max, merged_sum = merge_partials(
                partials, statistics, number, number + 1, 1, SPLITS, 0, ROWS, BLOCK_ROWS, BLOCK_DV, AT_ONCE
            )  # fmt: skip
            store_output(
                out, lse, sinks, merged, merged_max, merged_sum, sequence, kv_head, block * BLOCK_ROWS, kv_heads,
                SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, ROWS, HEADS,
            )  # fmt: skip


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=["page_table", "seq_lens", *_LENGTHS])
def paged_decode_flat(
    q, k, v, k_scale, v_scale, page_table, seq_lens, sinks, slopes, out, lse, partials, statistics, counters,
    q_strides, stride_table, capacity, batch, kv_heads, window, score_scale, softcap,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
    KEY_SCALES: tl.constexpr, PACKED: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    AT_ONCE: tl.constexpr, EARLY: tl.constexpr,
    K_STRIDES: tl.constexpr, V_STRIDES: tl.constexpr, KS_STRIDES: tl.constexpr, VS_STRIDES: tl.constexpr,
):  # fmt: skip
    """Each program takes an equal share of the list of all tiles, for one KV head, and walks from sequence to sequence.

    One loop over the share, so that the first tiles of a sequence are loaded while the last of the one before are
    computed. A sequence that it sees whole is written out; of one that it enters or leaves midway it stores a partial
    result, ``2 * program`` of the one that began in an earlier share, ``2 * program + 1`` of the one that begins in its
    own; a second kernel merges those.
    """
    if EARLY:
        wait_for_previous()
    blocks: tl.constexpr = (HEADS * SEQ_Q * GROUP + BLOCK_ROWS - 1) // BLOCK_ROWS
    tokens: tl.constexpr = BLOCK_K // HEADS
    program = tl.program_id(0)
    lanes = blocks * (kv_heads // HEADS)
    lane = program % lanes
    block = lane % blocks
    kv_head = lane // blocks * HEADS
    total, _ = count_list(seq_lens, batch, 0, capacity, window, SEQ_Q, tokens, WINDOW)
    share = share_tiles(total, tl.num_programs(0) // lanes)
    begin = program // lanes * share
    end = tl.minimum(begin + share, total)
    sequence, before = find_sequence(seq_lens, batch, begin, capacity, window, SEQ_Q, tokens, WINDOW)
    # The tile that is next, where this program leaves its sequence, and whether it saw that sequence begin.
    length = tl.minimum(tl.load(seq_lens + sequence, mask=sequence < batch, other=0), capacity)
    first, tiles = list_tiles(length, window, SEQ_Q, tokens, WINDOW)
    tile = first + begin - before
    stop = first + tl.minimum(tiles, end - before)
    began = (begin == before).to(tl.int32)
    rows, row_heads, queries, heads = locate_rows(kv_head, block, SEQ_Q, GROUP, BLOCK_ROWS)
    is_row = rows < HEADS * SEQ_Q * GROUP
    k += _offset(kv_head, K_STRIDES[2])
    v += _offset(kv_head, V_STRIDES[2])
    if k_scale is not None:
        k_scale += _offset(kv_head, KS_STRIDES[2])
        v_scale += _offset(kv_head, VS_STRIDES[2])
    if slopes is not None:
        slopes = tl.load(slopes + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
    weight_type: tl.constexpr = q.dtype.element_ty if k.dtype.element_ty == q.dtype.element_ty else tl.float16
    last = batch - 1
    sequence = tl.minimum(sequence, last)  # of an empty share, behind the list
    q_tile, q_other, factors = load_queries(
        q, q_strides, k_scale, sequence, kv_head, block, score_scale, k.dtype.element_ty,
        SEQ_Q, GROUP, HEAD_DIM, BLOCK_D, BLOCK_ROWS, KEY_SCALES, PACKED, HEADS, KS_STRIDES[2],
    )  # fmt: skip
    accumulator, other, row_max, sums = begin_state(BLOCK_ROWS, BLOCK_K, BLOCK_DV, PACKED)
    # Pages are loaded a tile ahead, see the schedule split, and lengths a sequence ahead.
    next_length = tl.minimum(tl.load(seq_lens + tl.minimum(sequence + 1, last)), capacity)
    table_row = page_table + _offset(sequence, stride_table)
    pages = load_pages(table_row, tile, 0, capacity, tokens, PAGE_SIZE, RUN)
    for index in tl.range(begin, end):
        leaves = tile + 1 == stop
        following = tl.minimum(sequence + leaves.to(tl.int32), last)
        next_first, next_tiles = list_tiles(next_length, window, SEQ_Q, tokens, WINDOW)
        next_tile = tl.where(leaves, next_first, tile + 1)
        next_stop = tl.where(leaves, next_first + tl.minimum(next_tiles, end - index - 1), stop)
        following_length = tl.where(leaves, next_length, length)
        table_row = page_table + _offset(following, stride_table)
        next_pages = load_pages(table_row, next_tile, 0, capacity, tokens, PAGE_SIZE, RUN)
        next_length = tl.minimum(tl.load(seq_lens + tl.minimum(following + 1, last)), capacity)
        accumulator, other, row_max, sums = fold_tile(
            q_tile, q_other, factors, k, v, k_scale, v_scale, slopes,
            row_heads, queries, length, tile, pages, window, softcap, accumulator, other, row_max, sums,
            SEQ_Q, HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV, BLOCK_K, PAGE_SIZE, RUN, WINDOW, SOFTCAP, PRECISE,
            KEY_SCALES, PACKED, HEADS, weight_type, K_STRIDES, V_STRIDES, KS_STRIDES, VS_STRIDES,
        )  # fmt: skip
        if leaves:
            whole, row_sum = end_state(
                accumulator, other, sums, v_scale, row_heads, is_row,
                BLOCK_ROWS, BLOCK_DV, KEY_SCALES, PACKED, VS_STRIDES[2],
            )  # fmt: skip
            first, tiles = list_tiles(length, window, SEQ_Q, tokens, WINDOW)
            if (began == 1) & (stop == first + tiles):
                store_output(
                    out, lse, sinks, whole, row_max, row_sum, sequence, kv_head, block * BLOCK_ROWS, kv_heads,
                    SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, BLOCK_ROWS, HEADS,
                )  # fmt: skip
            else:
                number = 2 * program + began
                store_partial(partials, statistics, number, whole, row_max, row_sum, BLOCK_DV, BLOCK_ROWS, ROWS)
            accumulator, other, row_max, sums = begin_state(BLOCK_ROWS, BLOCK_K, BLOCK_DV, PACKED)
            began = tl.full([], 1, tl.int32)
            q_tile, q_other, factors = load_queries(
                q, q_strides, k_scale, following, kv_head, block, score_scale, k.dtype.element_ty,
                SEQ_Q, GROUP, HEAD_DIM, BLOCK_D, BLOCK_ROWS, KEY_SCALES, PACKED, HEADS, KS_STRIDES[2],
            )  # fmt: skip
        sequence = following
        length = following_length
        tile = next_tile
        stop = next_stop
        pages = next_pages
    if EARLY:
        let_next_come()
