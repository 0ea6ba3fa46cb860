# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Paged decode's two schedules in Triton: how the tiles of keys are spread over programs.

``split`` is Flash-Decoding (Dao et al., https://pytorch.org/blog/flash-decoding, 2023); ``flat`` gives
programs equal shares of the list of all tiles, as Stream-K does for products (Osama et al., arXiv 2301.03598) and
LeanAttention for decode (Sanovar et al., arXiv 2405.10480).
"""

import triton
import triton.language as tl

from autotune.kernels.paged_decode.attend import attend_tiles
from autotune.kernels.paged_decode.early import let_next_come, wait_for_previous
from autotune.kernels.paged_decode.partials import arrive, merge_partials, span_programs, store_output, store_partial
from autotune.kernels.paged_decode.tiles import count_list, count_tiles, find_sequence, list_tiles, share_tiles

LOADED = tl.constexpr(4096)  # numbers of partial results at once, which one warp may have to hold
_LENGTHS = ["stride_table", "capacity", "batch", "kv_heads", "window"]  # no binary of its own for a number


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=["page_table", "seq_lens", *_LENGTHS])
def paged_decode_split(
    q, k, v, k_scale, v_scale, page_table, seq_lens, sinks, slopes, out, lse, partials, statistics, counters,
    q_strides, k_strides, v_strides, ks_strides, vs_strides, stride_table, capacity, batch, kv_heads, window,
    score_scale, softcap,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
    KEY_SCALES: tl.constexpr, PACKED: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    EARLY: tl.constexpr,
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
    length = tl.load(seq_lens + sequence)
    first, tiles = count_tiles(length, window, SEQ_Q, BLOCK_K // HEADS, WINDOW)
    accumulator, row_max, row_sum = attend_tiles(
        q, k, v, k_scale, v_scale, page_table, slopes, q_strides, k_strides, v_strides, ks_strides, vs_strides,
        stride_table, sequence, kv_head, block, length, first + split, first + tiles, SPLITS, capacity,
        window, score_scale, softcap, SEQ_Q, GROUP, HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV, BLOCK_ROWS, BLOCK_K,
        PAGE_SIZE, RUN, WINDOW, SOFTCAP, PRECISE, KEY_SCALES, PACKED, HEADS,
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
                partials, statistics, number, number + 1, 1, SPLITS, 0, ROWS, BLOCK_ROWS, BLOCK_DV, LOADED
            )  # fmt: skip
            store_output(
                out, lse, sinks, merged, merged_max, merged_sum, sequence, kv_head, block * BLOCK_ROWS, kv_heads,
                SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, ROWS, HEADS,
            )  # fmt: skip


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=["page_table", "seq_lens", *_LENGTHS])
def paged_decode_flat(
    q, k, v, k_scale, v_scale, page_table, seq_lens, sinks, slopes, out, lse, partials, statistics, counters,
    q_strides, k_strides, v_strides, ks_strides, vs_strides, stride_table, capacity, batch, kv_heads, window,
    score_scale, softcap,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
    KEY_SCALES: tl.constexpr, PACKED: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr, ROWS: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Each program takes an equal share of the list of all tiles, for one KV head, and walks from sequence to sequence.

    A sequence that it sees whole is written out; of one that it enters or leaves midway it stores a partial result,
    ``2 * program`` of the one that began in an earlier share, ``2 * program + 1`` of the one that begins in its own.
    Without counters a second kernel merges those, else the last program to store one of a sequence does.
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
    total, _ = count_list(seq_lens, batch, 0, window, SEQ_Q, tokens, WINDOW)
    share = share_tiles(total, tl.num_programs(0) // lanes)
    begin = program // lanes * share
    end = tl.minimum(begin + share, total)
    sequence, before = find_sequence(seq_lens, batch, begin, window, SEQ_Q, tokens, WINDOW)
    index = begin
    while index < end:
        length = tl.load(seq_lens + sequence)
        first, tiles = list_tiles(length, window, SEQ_Q, tokens, WINDOW)
        after = tl.minimum(before + tiles, end)
        # One loop over the whole share, without a pipeline's end at every sequence's, was no faster: what it must know
        # of the next sequence takes registers (NVIDIA H200, 2026-11-21, 64 sequences of up to 8192: 0.95 to 1.02).
        accumulator, row_max, row_sum = attend_tiles(
            q, k, v, k_scale, v_scale, page_table, slopes, q_strides, k_strides, v_strides, ks_strides, vs_strides,
            stride_table, sequence, kv_head, block, length, first + index - before, first + after - before, 1,
            capacity, window, score_scale, softcap, SEQ_Q, GROUP, HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV,
            BLOCK_ROWS, BLOCK_K, PAGE_SIZE, RUN, WINDOW, SOFTCAP, PRECISE, KEY_SCALES, PACKED, HEADS,
        )  # fmt: skip
        if after - index == tiles:
            store_output(
                out, lse, sinks, accumulator, row_max, row_sum, sequence, kv_head, block * BLOCK_ROWS, kv_heads,
                SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, BLOCK_ROWS, HEADS,
            )  # fmt: skip
        else:
            number = 2 * program + (before >= begin).to(tl.int32)
            store_partial(partials, statistics, number, accumulator, row_max, row_sum, BLOCK_DV, BLOCK_ROWS, ROWS)
            if counters is not None:
                owner, count = span_programs(before, tiles, share)
                if arrive(counters + sequence * lanes + lane, count):
                    merged, merged_max, merged_sum = merge_partials(
                        partials, statistics, 2 * (owner * lanes + lane) + 1, 2 * ((owner + 1) * lanes + lane),
                        2 * lanes, count, 0, ROWS, BLOCK_ROWS, BLOCK_DV, LOADED,
                    )  # fmt: skip
                    store_output(
                        out, lse, sinks, merged, merged_max, merged_sum, sequence, kv_head, block * BLOCK_ROWS,
                        kv_heads, SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, ROWS, HEADS,
                    )  # fmt: skip
        index = after
        before += tiles
        sequence += 1
    if EARLY:
        let_next_come()
