"""Decode attention over a paged cache in Triton: one loop over tiles of keys under two schedules.

Algorithms: the softmax is FlashAttention-2's (Dao, arXiv 2307.08691, algorithm 1) in base 2. The schedule ``split`` is
Flash-Decoding (Dao et al., https://pytorch.org/blog/flash-decoding, 2023); ``flat`` gives programs equal shares of the
list of all tiles, as Stream-K does for products (Osama et al., arXiv 2301.03598) and LeanAttention for decode (Sanovar
et al., arXiv 2405.10480).

The query heads of one KV head or of several, and the few queries of a sequence, are rows of one tile: row
``(h * SEQ_Q + i) * GROUP + g`` is query i of the head g in the group of KV head h.
"""

import triton
import triton.language as tl

from autotune.kernels.flash_attention.forward import LOG2_E, _offset, _tanh
from autotune.kernels.paged_decode.early import let_next_come, wait_for_previous
from autotune.kernels.paged_decode.packing import load_packed, unpack_bytes, unpack_pairs
from autotune.kernels.paged_decode.partials import arrive, merge_partials, span_programs, store_output, store_partial
from autotune.kernels.paged_decode.softmax import fold_scores
from autotune.kernels.paged_decode.tiles import count_list, count_tiles, find_sequence, share_tiles

LARGEST_QUERY = tl.constexpr(127.0 * 256.0 + 127.0)
SMALLEST_SCALE = tl.constexpr(2.0**-60)


@triton.jit
def _load_pages(
    table_row, tile, low, high, TOKENS: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr
):  # fmt: skip
    """The page of each run of RUN keys of a tile; 0 where no key of the run lies in ``low <= key < high``."""
    starts = tile * TOKENS
    if RUN != TOKENS:
        starts += tl.arange(0, TOKENS // RUN) * RUN
    return tl.load(table_row + starts // PAGE_SIZE, mask=(starts < high) & (starts + RUN > low), other=0)


@triton.jit
def _locate_keys(
    pages, tile, stride_page, stride_slot, TOKENS: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr,
    stride_head=0, HEADS: tl.constexpr = 1,
):  # fmt: skip
    """Where a tile's keys lie in a cache: 64-bit offsets of its rows, HEADS heads of one token after another."""
    rows = tl.arange(0, TOKENS * HEADS)
    slots = rows // HEADS
    if RUN == TOKENS:
        slots += tile * TOKENS % PAGE_SIZE
    else:
        if RUN * HEADS != 1:  # multiplied afterwards: how far offsets are aligned is not known past a reshape
            pages = tl.broadcast_to(pages[:, None], [TOKENS // RUN, RUN * HEADS]).reshape(TOKENS * HEADS)
        if RUN != PAGE_SIZE:
            slots += tile * TOKENS
        slots %= PAGE_SIZE
    offsets = _offset(pages, stride_page) + _offset(slots, stride_slot)
    if HEADS != 1:
        offsets += _offset(rows % HEADS, stride_head)
    return offsets


@triton.jit
def _load_rows(
    rows_ptr, offsets, present, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, PARTS: tl.constexpr = 1
):  # fmt: skip
    """Rows at these offsets as a tile; absent rows and padding columns are 0, and not read.

    In two PARTS, the first holds the first two columns of every four, in the order of ``packing.unpack_pairs``.
    """
    columns = tl.arange(0, BLOCK_WIDTH // PARTS)
    if PARTS == 2:
        columns = columns // 2 * 4 + columns % 2
    mask = present[:, None]
    if WIDTH != BLOCK_WIDTH:
        mask = mask & (columns < WIDTH)[None, :]
    return tl.load(rows_ptr + offsets[:, None] + columns[None, :], mask=mask, other=0.0)


@triton.jit
def _load_scales(
    scales, strides, pages, tile, present,
    TOKENS: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """The scales of a tile's keys, 0 of absent ones."""
    offsets = _locate_keys(pages, tile, strides[0], strides[1], TOKENS, PAGE_SIZE, RUN, strides[2], HEADS)
    return tl.load(scales + offsets, mask=present, other=0.0)


@triton.jit
def _split_scales(scales):
    """The exponents of scales to base 2, two to minus those, and what remains of the scales, in [1, 2).

    Scales are raised to 2**-60 first: smaller ones are those of values that are all 0.
    """
    scales = tl.maximum(scales, SMALLEST_SCALE)
    fields = scales.to(tl.int32, bitcast=True) >> 23
    inverses = ((254 - fields) << 23).to(tl.float32, bitcast=True)
    return (fields - 127).to(tl.float32), inverses, scales * inverses


@triton.jit
def _fit_half(low, high, score_scale):
    """Queries in two parts as fp16, a row's largest element between 1 and 2, and the factors of the rows' scores.

    Powers of two, so nothing is rounded but elements below 2**-14 of the row's largest; fp16 holds every value of the
    one-byte types, and converts from them in few instructions.
    """
    low = low.to(tl.float32)
    high = high.to(tl.float32)
    peaks = tl.maximum(tl.max(tl.abs(low), 1), tl.max(tl.abs(high), 1))
    exponents = tl.floor(tl.log2(tl.maximum(peaks, 1e-30)))
    down = tl.exp2(-exponents)[:, None]
    return (low * down).to(tl.float16), (high * down).to(tl.float16), (score_scale * tl.exp2(exponents))[:, None]


@triton.jit
def _fit_bytes(queries, score_scale):
    """Queries as 256 times one int8 tile plus another, and the factors of the rows' scores.

    16 bits relative to a row's largest element, for products with int8 keys as they are: those need no conversion, and
    int32 holds the sums of 512 products.
    """
    queries = queries.to(tl.float32)
    peaks = tl.maximum(tl.max(tl.abs(queries), 1), 1e-30)
    scaled = queries * (LARGEST_QUERY / peaks)[:, None]
    rounded = tl.floor(scaled + 0.5)
    high = tl.floor(rounded / 256.0 + 0.5)
    low = rounded - 256.0 * high  # within -128 and 127
    factors = score_scale * (peaks / LARGEST_QUERY) + 0.0 * tl.sum(queries, 1)  # what is not finite must be seen
    return high.to(tl.int8), low.to(tl.int8), factors[:, None]


@triton.jit
def _hide_keys(
    scores, exponents, keys, positions, is_same_head, slopes, softcap, window,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Scores in base 2, -inf where a query may not see the key: another head's, in its future, outside its window.

    The exponents of the values' scales are added, where there are any.
    """
    if SOFTCAP:
        scores = softcap * _tanh(scores, PRECISE)
    if exponents is not None:
        scores += exponents[None, :]
    ahead = keys[None, :] - positions[:, None]
    if slopes is not None:
        scores += slopes[:, None] * ahead
    visible = ahead <= 0
    if is_same_head is not None:
        visible = visible & is_same_head
    if WINDOW:
        visible = visible & (ahead > -window)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def _attend(
    q, k, v, k_scale, v_scale, page_table, slopes, q_strides, k_strides, v_strides, ks_strides, vs_strides,
    stride_table, sequence, kv_head, block, length, start, stop, step, capacity, window, score_scale, softcap,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
    KEY_SCALES: tl.constexpr, PACKED: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """The softmax state of one block of rows over every ``step``-th tile ``start <= tile < stop`` of a sequence.

    The keys of a tile are those of HEADS heads from ``kv_head`` on, side by side as they lie in memory; a row sees the
    keys of its own head. A tile has the rows of matrix instructions whether they are used or not: where a head has few,
    several heads cost no more than one, and memory is read in longer pieces.
    PACKED: a tile of keys or values is loaded as words of two bytes and used as two of fp16, see ``packing``.
    KEY_SCALES: the exponent of a value's scale is added to its score, so that weights need no more range than fp16 has;
    what is summed is freed from it again.
    """
    rows = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    is_row = rows < HEADS * SEQ_Q * GROUP
    row_heads = rows // (SEQ_Q * GROUP)
    queries = rows // GROUP % SEQ_Q
    heads = (kv_head + row_heads) * GROUP + rows % GROUP
    positions = length - SEQ_Q + queries
    low = 0
    if WINDOW:
        low = tl.maximum(length - SEQ_Q - window + 1, 0)

    exact: tl.constexpr = PACKED and tl.int8 == k.dtype.element_ty  # keys are multiplied as they are
    parts: tl.constexpr = 2 if PACKED and not exact else 1
    q_offsets = _offset(sequence, q_strides[0]) + _offset(queries, q_strides[1]) + _offset(heads, q_strides[2])
    q_tile = _load_rows(q, q_offsets, is_row, HEAD_DIM, BLOCK_D, parts)
    q_other = _load_rows(q + 2 * (parts - 1), q_offsets, is_row, HEAD_DIM - 2 * (parts - 1), BLOCK_D, parts)
    factors = score_scale
    weight_type: tl.constexpr = q.dtype.element_ty if k.dtype.element_ty == q.dtype.element_ty else tl.float16
    if exact:
        q_tile, q_other, factors = _fit_bytes(q_tile, score_scale)
    elif k.dtype.element_ty != q.dtype.element_ty:
        q_tile, q_other, factors = _fit_half(q_tile, q_other, score_scale)
    if k_scale is not None:
        k_scale += _offset(kv_head, ks_strides[2])
        v_scale += _offset(kv_head, vs_strides[2])
        if not KEY_SCALES:
            factors *= tl.load(k_scale + row_heads * ks_strides[2], mask=is_row, other=1.0)[:, None]
    if slopes is not None:
        slopes = tl.load(slopes + heads, mask=is_row, other=0.0).to(tl.float32) * LOG2_E
    k += _offset(kv_head, k_strides[2])
    v += _offset(kv_head, v_strides[2])
    table_row = page_table + _offset(sequence, stride_table)

    accumulator = tl.zeros([BLOCK_ROWS, BLOCK_DV // 2 if PACKED else BLOCK_DV], tl.float32)
    other = accumulator
    row_max = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    sums = tl.zeros([BLOCK_ROWS, BLOCK_K], tl.float32)  # of a row, still apart by their place in the tile
    # A tile's pages are loaded while the tile before it is computed: a load of keys whose address waits for another
    # load of its own iteration gets one buffer under num_stages 3 and 4 (Triton 3.6.0, sm_90). They are loaded whatever
    # the length, which is on its way too; what is not a page is not used.
    tokens: tl.constexpr = BLOCK_K // HEADS
    columns = tl.arange(0, BLOCK_K)
    is_same_head = None
    if HEADS != 1:
        is_same_head = row_heads[:, None] == (columns % HEADS)[None, :]
    pages = _load_pages(table_row, start, 0, capacity, tokens, PAGE_SIZE, RUN)
    for tile in tl.range(start, stop, step):
        next_pages = _load_pages(table_row, tile + step, 0, capacity, tokens, PAGE_SIZE, RUN)
        keys = tile * tokens + columns // HEADS
        present = (keys >= low) & (keys < length)
        k_offsets = _locate_keys(
            pages, tile, k_strides[0], k_strides[1], tokens, PAGE_SIZE, RUN, k_strides[2], HEADS
        )  # fmt: skip
        v_offsets = _locate_keys(
            pages, tile, v_strides[0], v_strides[1], tokens, PAGE_SIZE, RUN, v_strides[2], HEADS
        )  # fmt: skip
        if exact:
            k_tile = _load_rows(k, k_offsets, present, HEAD_DIM, BLOCK_D).T
            scores = tl.dot(q_other, k_tile, tl.dot(q_tile, k_tile) * 256, out_dtype=tl.int32).to(tl.float32)
        elif PACKED:
            k_words = load_packed(k, k_offsets, present, HEAD_DIM, BLOCK_D).T
            k_tile, k_other = unpack_pairs(k_words, k.dtype.element_ty)
            scores = tl.dot(q_other, k_other, tl.dot(q_tile, k_tile))
        else:
            k_tile = _load_rows(k, k_offsets, present, HEAD_DIM, BLOCK_D).to(weight_type)
            scores = tl.dot(q_tile, k_tile.T, input_precision="ieee")
        scores *= factors
        exponents = None
        if KEY_SCALES:
            scores *= _load_scales(k_scale, ks_strides, pages, tile, present, tokens, PAGE_SIZE, RUN, HEADS)[None, :]
            value_scales = _load_scales(v_scale, vs_strides, pages, tile, present, tokens, PAGE_SIZE, RUN, HEADS)
            exponents, inverses, remainders = _split_scales(value_scales)
        scores = _hide_keys(
            scores, exponents, keys, positions, is_same_head, slopes, softcap, window, WINDOW, SOFTCAP, PRECISE
        )  # fmt: skip
        weights, rescale, row_max = fold_scores(scores, row_max)
        if KEY_SCALES:
            sums = sums * rescale + weights * inverses[None, :]
            weights *= remainders[None, :]
        else:
            sums = sums * rescale + weights
        weights = weights.to(weight_type)
        if PACKED:
            v_words = load_packed(v, v_offsets, present, HEAD_DIM_V, BLOCK_DV)
            v_tile, v_other = unpack_bytes(v_words, v.dtype.element_ty)
            accumulator = tl.dot(weights, v_tile, accumulator * rescale)
            other = tl.dot(weights, v_other, other * rescale)
        else:
            v_tile = _load_rows(v, v_offsets, present, HEAD_DIM_V, BLOCK_DV).to(weight_type)
            accumulator = tl.dot(weights, v_tile, accumulator * rescale, input_precision="ieee")
        pages = next_pages
    if PACKED:
        accumulator = tl.join(accumulator, other).reshape(BLOCK_ROWS, BLOCK_DV)
    if v_scale is not None and not KEY_SCALES:
        accumulator *= tl.load(v_scale + row_heads * vs_strides[2], mask=is_row, other=1.0)[:, None]
    return accumulator, row_max, tl.sum(sums, 1)


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
    accumulator, row_max, row_sum = _attend(
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
                partials, statistics, number, number + 1, 1, SPLITS, 0, ROWS, BLOCK_ROWS, BLOCK_DV
            )  # fmt: skip
            store_output(
                out, lse, sinks, merged, merged_max, merged_sum, sequence, kv_head, block * BLOCK_ROWS, kv_heads,
                SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, ROWS, HEADS,
            )  # fmt: skip


@triton.jit
def _write_empty(
    out, lse, sinks, seq_lens, batch, first, step, kv_head, block, kv_heads, window,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM_V: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, TOKENS: tl.constexpr, WINDOW: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Write this program's part of the sequences that have no tile, which no share holds."""
    for sequence in range(first, batch, step):
        _, tiles = count_tiles(tl.load(seq_lens + sequence), window, SEQ_Q, TOKENS, WINDOW)
        if tiles == 0:
            store_output(
                out, lse, sinks, tl.zeros([BLOCK_ROWS, BLOCK_DV], tl.float32),
                tl.full([BLOCK_ROWS], float("-inf"), tl.float32), tl.zeros([BLOCK_ROWS], tl.float32),
                sequence, kv_head, block * BLOCK_ROWS, kv_heads, SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, BLOCK_ROWS, HEADS,
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
    program = tl.program_id(0)
    lanes = blocks * (kv_heads // HEADS)
    lane = program % lanes
    block = lane % blocks
    kv_head = lane // blocks * HEADS
    total, _ = count_list(seq_lens, batch, 0, window, SEQ_Q, BLOCK_K // HEADS, WINDOW)
    share = share_tiles(total, tl.num_programs(0) // lanes)
    begin = program // lanes * share
    end = tl.minimum(begin + share, total)
    sequence, before = find_sequence(seq_lens, batch, begin, window, SEQ_Q, BLOCK_K // HEADS, WINDOW)
    tile = begin
    while tile < end:
        length = tl.load(seq_lens + sequence)
        first, tiles = count_tiles(length, window, SEQ_Q, BLOCK_K // HEADS, WINDOW)
        after = tl.minimum(before + tiles, end)
        if tile < after:
            accumulator, row_max, row_sum = _attend(
                q, k, v, k_scale, v_scale, page_table, slopes, q_strides, k_strides, v_strides, ks_strides, vs_strides,
                stride_table, sequence, kv_head, block, length, first + tile - before, first + after - before, 1,
                capacity, window, score_scale, softcap,
                SEQ_Q, GROUP, HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV, BLOCK_ROWS, BLOCK_K,
                PAGE_SIZE, RUN, WINDOW, SOFTCAP, PRECISE, KEY_SCALES, PACKED, HEADS,
            )  # fmt: skip
            if after - tile == tiles:
                store_output(
                    out, lse, sinks, accumulator, row_max, row_sum, sequence, kv_head, block * BLOCK_ROWS, kv_heads,
                    SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, BLOCK_ROWS, HEADS,
                )  # fmt: skip
            else:
                index = 2 * program + (before >= begin).to(tl.int32)
                store_partial(partials, statistics, index, accumulator, row_max, row_sum, BLOCK_DV, BLOCK_ROWS, ROWS)
                if counters is not None:
                    owner, count = span_programs(before, tiles, share)
                    if arrive(counters + sequence * lanes + lane, count):
                        number = 2 * (owner * lanes + lane) + 1
                        following = 2 * ((owner + 1) * lanes + lane)
                        merged, merged_max, merged_sum = merge_partials(
                            partials, statistics, number, following, 2 * lanes, count, 0, ROWS, BLOCK_ROWS, BLOCK_DV
                        )  # fmt: skip
                        store_output(
                            out, lse, sinks, merged, merged_max, merged_sum, sequence, kv_head, block * BLOCK_ROWS,
                            kv_heads, SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, ROWS, HEADS,
                        )  # fmt: skip
        tile = after
        before += tiles
        sequence += 1
    if EARLY:
        let_next_come()
    if counters is not None:
        _write_empty(
            out, lse, sinks, seq_lens, batch, program // lanes, tl.num_programs(0) // lanes, kv_head, block, kv_heads,
            window, SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, BLOCK_ROWS, BLOCK_K // HEADS, WINDOW, HEADS,
        )  # fmt: skip
