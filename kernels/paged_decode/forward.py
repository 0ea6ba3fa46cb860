"""Decode attention over a paged cache in Triton: one loop over tiles of keys under two schedules.

Algorithms: the softmax is FlashAttention-2's (Dao, arXiv 2307.08691, algorithm 1) in base 2. The schedule ``split`` is
Flash-Decoding (Dao et al., https://pytorch.org/blog/flash-decoding, 2023); ``flat`` gives programs equal shares of the
list of all tiles, as Stream-K does for products (Osama et al., arXiv 2301.03598) and LeanAttention for decode (Sanovar
et al., arXiv 2405.10480).

The query heads of a KV head, and the few queries of a sequence, are rows of one tile: row ``i * GROUP + g`` is query i
of the group's head g.
"""

import triton
import triton.language as tl

from autotune.kernels.flash_attention.forward import LOG2_E, _offset, _tanh
from autotune.kernels.paged_decode.softmax import finish_softmax, fold_scores
from autotune.kernels.paged_decode.tiles import count_list, count_tiles, find_sequence, share_tiles


@triton.jit
def _load_pages(
    table_row, tile, low, high, BLOCK_K: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr
):  # fmt: skip
    """The page of each run of RUN keys of a tile; 0 where no key of the run lies in ``low <= key < high``."""
    starts = tile * BLOCK_K
    if RUN != BLOCK_K:
        starts += tl.arange(0, BLOCK_K // RUN) * RUN
    return tl.load(table_row + starts // PAGE_SIZE, mask=(starts < high) & (starts + RUN > low), other=0)


@triton.jit
def _locate_keys(
    pages, tile, stride_page, stride_slot, BLOCK_K: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr
):  # fmt: skip
    """Where a tile's keys lie in a cache: 64-bit offsets ``[BLOCK_K]`` of their rows."""
    slots = (tile * BLOCK_K + tl.arange(0, BLOCK_K)) % PAGE_SIZE
    if RUN != 1 and RUN != BLOCK_K:
        pages = tl.broadcast_to(pages[:, None], [BLOCK_K // RUN, RUN]).reshape(BLOCK_K)
    return _offset(pages, stride_page) + _offset(slots, stride_slot)


@triton.jit
def _load_rows(rows_ptr, offsets, present, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr):
    """Rows at these offsets as a tile ``[rows, BLOCK_WIDTH]``; absent rows and padding columns are 0, and not read."""
    columns = tl.arange(0, BLOCK_WIDTH)
    mask = present[:, None]
    if WIDTH != BLOCK_WIDTH:
        mask = mask & (columns < WIDTH)[None, :]
    return tl.load(rows_ptr + offsets[:, None] + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _score(
    q_tile, k_tile, keys, positions, slopes, score_scale, softcap, window,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Scores in base 2, -inf where a query may not see the key: in its future or outside its window."""
    scores = tl.dot(q_tile, k_tile.T, input_precision="ieee") * score_scale
    if SOFTCAP:
        scores = softcap * _tanh(scores, PRECISE)
    ahead = keys[None, :] - positions[:, None]
    if slopes is not None:
        scores += slopes[:, None] * ahead
    visible = ahead <= 0
    if WINDOW:
        visible = visible & (ahead > -window)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def _attend(
    q, k, v, page_table, slopes, q_strides, k_strides, v_strides, stride_table,
    sequence, kv_head, block, length, start, stop, window, score_scale, softcap,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """The softmax state of one block of rows over the tiles ``start <= tile < stop`` of a sequence."""
    rows = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    is_row = rows < SEQ_Q * GROUP
    queries = rows // GROUP
    heads = kv_head * GROUP + rows % GROUP
    positions = length - SEQ_Q + queries
    low = 0
    if WINDOW:
        low = tl.maximum(length - SEQ_Q - window + 1, 0)

    q_offsets = _offset(sequence, q_strides[0]) + _offset(queries, q_strides[1]) + _offset(heads, q_strides[2])
    q_tile = _load_rows(q, q_offsets, is_row, HEAD_DIM, BLOCK_D)
    if slopes is not None:
        slopes = tl.load(slopes + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
    k += _offset(kv_head, k_strides[2])
    v += _offset(kv_head, v_strides[2])
    table_row = page_table + _offset(sequence, stride_table)

    accumulator = tl.zeros([BLOCK_ROWS, BLOCK_DV], tl.float32)
    row_max = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_ROWS], tl.float32)
    # A tile's pages are loaded while the tile before it is computed: a load of keys whose address waits for another
    # load of its own iteration gets one buffer under num_stages 3 and 4 (Triton 3.6.0, sm_90).
    pages = _load_pages(table_row, start, low, length, BLOCK_K, PAGE_SIZE, RUN)
    for tile in tl.range(start, stop):
        next_pages = _load_pages(table_row, tile + 1, low, length, BLOCK_K, PAGE_SIZE, RUN)
        keys = tile * BLOCK_K + tl.arange(0, BLOCK_K)
        present = (keys >= low) & (keys < length)
        k_offsets = _locate_keys(pages, tile, k_strides[0], k_strides[1], BLOCK_K, PAGE_SIZE, RUN)
        k_tile = _load_rows(k, k_offsets, present, HEAD_DIM, BLOCK_D)
        scores = _score(
            q_tile, k_tile, keys, positions, slopes, score_scale, softcap, window, WINDOW, SOFTCAP, PRECISE
        )  # fmt: skip
        weights, rescale, row_max, row_sum = fold_scores(scores, row_max, row_sum)
        v_offsets = _locate_keys(pages, tile, v_strides[0], v_strides[1], BLOCK_K, PAGE_SIZE, RUN)
        v_tile = _load_rows(v, v_offsets, present, HEAD_DIM_V, BLOCK_DV)
        accumulator = accumulator * rescale[:, None]
        accumulator = tl.dot(weights.to(v_tile.dtype), v_tile, accumulator, input_precision="ieee")
        pages = next_pages
    return accumulator, row_max, row_sum


@triton.jit
def _store_output(
    out, lse, sinks, accumulator, row_max, row_sum, sequence, kv_head, block, kv_heads,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM_V: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):  # fmt: skip
    """Finish a block of rows whose keys were all seen by this program."""
    rows = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    is_row = rows < SEQ_Q * GROUP
    heads = kv_head * GROUP + rows % GROUP
    if sinks is not None:
        sinks = tl.load(sinks + heads, mask=is_row, other=0.0).to(tl.float32)
    factor, row_lse = finish_softmax(row_max, row_sum, sinks)
    indices = _offset(sequence * SEQ_Q + rows // GROUP, kv_heads * GROUP) + heads
    columns = tl.arange(0, BLOCK_DV)
    pointers = out + _offset(indices[:, None], HEAD_DIM_V) + columns[None, :]
    values = (accumulator * factor[:, None]).to(out.dtype.element_ty)
    tl.store(pointers, values, mask=is_row[:, None] & (columns < HEAD_DIM_V)[None, :])
    if lse is not None:
        tl.store(lse + indices, row_lse, mask=is_row)


@triton.jit
def _store_partial(
    partials, statistics, index, accumulator, row_max, row_sum, BLOCK_DV: tl.constexpr, BLOCK_ROWS: tl.constexpr
):  # fmt: skip
    """Leave a block's softmax state to the combining kernel; rows that saw no key leave no accumulator."""
    rows = tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_DV)
    statistics += _offset(index, 2 * BLOCK_ROWS)
    tl.store(statistics + rows, row_max)
    tl.store(statistics + BLOCK_ROWS + rows, row_sum)
    pointers = partials + _offset(index, BLOCK_ROWS * BLOCK_DV) + rows[:, None] * BLOCK_DV + columns[None, :]
    tl.store(pointers, accumulator, mask=(row_sum > 0.0)[:, None])


_LENGTHS = ["stride_table", "batch", "kv_heads", "window"]  # no binary of its own for a number


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=["page_table", "seq_lens", *_LENGTHS])
def paged_decode_split(
    q, k, v, page_table, seq_lens, sinks, slopes, out, lse, partials, statistics,
    q_strides, k_strides, v_strides, stride_table, batch, kv_heads, window, score_scale, softcap,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Each program takes one of SPLITS equal shares of the tiles of one sequence and KV head."""
    # Neighbouring programs read neighbouring heads of the same pages.
    blocks: tl.constexpr = (SEQ_Q * GROUP + BLOCK_ROWS - 1) // BLOCK_ROWS
    lane = tl.program_id(0)
    split = tl.program_id(1)
    block = lane % blocks
    kv_head = lane // blocks % kv_heads
    sequence = lane // (blocks * kv_heads)
    length = tl.load(seq_lens + sequence)
    first, tiles = count_tiles(length, window, SEQ_Q, BLOCK_K, WINDOW)
    start = first + tiles // SPLITS * split + tl.minimum(tiles % SPLITS, split)
    stop = start + tiles // SPLITS + (split < tiles % SPLITS).to(tl.int32)
    accumulator, row_max, row_sum = _attend(
        q, k, v, page_table, slopes, q_strides, k_strides, v_strides, stride_table,
        sequence, kv_head, block, length, start, stop, window, score_scale, softcap,
        SEQ_Q, GROUP, HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV, BLOCK_ROWS, BLOCK_K,
        PAGE_SIZE, RUN, WINDOW, SOFTCAP, PRECISE,
    )  # fmt: skip
    if SPLITS == 1:
        _store_output(
            out, lse, sinks, accumulator, row_max, row_sum, sequence, kv_head, block, kv_heads,
            SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, BLOCK_ROWS,
        )  # fmt: skip
    else:
        index = lane * SPLITS + split
        _store_partial(partials, statistics, index, accumulator, row_max, row_sum, BLOCK_DV, BLOCK_ROWS)


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=["page_table", "seq_lens", *_LENGTHS])
def paged_decode_flat(
    q, k, v, page_table, seq_lens, sinks, slopes, out, lse, partials, statistics,
    q_strides, k_strides, v_strides, stride_table, batch, kv_heads, window, score_scale, softcap,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """Each program takes an equal share of the list of all tiles, for one KV head, and walks from sequence to sequence.

    A sequence that it sees whole is written out; of one that it enters or leaves midway it stores a partial result,
    ``2 * program`` of the one that began in an earlier share, ``2 * program + 1`` of the one that begins in its own.
    """
    blocks: tl.constexpr = (SEQ_Q * GROUP + BLOCK_ROWS - 1) // BLOCK_ROWS
    program = tl.program_id(0)
    lanes = blocks * kv_heads
    block = program % blocks
    kv_head = program // blocks % kv_heads
    total, _ = count_list(seq_lens, batch, 0, window, SEQ_Q, BLOCK_K, WINDOW)
    share = share_tiles(total, tl.num_programs(0) // lanes)
    begin = program // lanes * share
    end = tl.minimum(begin + share, total)
    if begin >= end:
        return
    sequence, before = find_sequence(seq_lens, batch, begin, window, SEQ_Q, BLOCK_K, WINDOW)
    tile = begin
    while tile < end:
        length = tl.load(seq_lens + sequence)
        first, tiles = count_tiles(length, window, SEQ_Q, BLOCK_K, WINDOW)
        after = tl.minimum(before + tiles, end)
        if tile < after:
            accumulator, row_max, row_sum = _attend(
                q, k, v, page_table, slopes, q_strides, k_strides, v_strides, stride_table,
                sequence, kv_head, block, length, first + tile - before, first + after - before,
                window, score_scale, softcap,
                SEQ_Q, GROUP, HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV, BLOCK_ROWS, BLOCK_K,
                PAGE_SIZE, RUN, WINDOW, SOFTCAP, PRECISE,
            )  # fmt: skip
            if after - tile == tiles:
                _store_output(
                    out, lse, sinks, accumulator, row_max, row_sum, sequence, kv_head, block, kv_heads,
                    SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, BLOCK_ROWS,
                )  # fmt: skip
            else:
                index = 2 * program + (before >= begin).to(tl.int32)
                _store_partial(partials, statistics, index, accumulator, row_max, row_sum, BLOCK_DV, BLOCK_ROWS)
        tile = after
        before += tiles
        sequence += 1
