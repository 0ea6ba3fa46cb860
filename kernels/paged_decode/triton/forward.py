# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Decode attention over a paged cache: one loop over tiles of keys under two schedules.

The schedule ``split`` is Flash-Decoding (Dao et al., https://pytorch.org/blog/flash-decoding, 2023); ``flat`` gives
programs equal shares of the list of all tiles, as Stream-K does for products (Osama et al., arXiv 2301.03598) and
LeanAttention for decode (Sanovar et al., arXiv 2405.10480).
"""

import triton
import triton.language as tl

from autotune.kernels.paged_decode.triton.fold import begin_tiles, end_tiles, fold_tile, weight_type
from autotune.kernels.paged_decode.triton.queries import load_queries, locate_rows
from autotune.kernels.paged_decode.triton.tile_list import (
    Batch,
    count_list,
    count_tiles,
    find_sequence,
    list_tiles,
    load_length,
    share_tiles,
)
from autotune.kernels.tiles.outputs import load_slopes, store_outputs
from autotune.kernels.tiles.pages import Cache, clamp_pages, load_pages
from autotune.kernels.tiles.partials import arrive, merge_partials, store_partial
from autotune.kernels.tiles.rows import offset

# No binary of its own for a number.
_LENGTHS = ["table_stride", "capacity", "cache_pages", "batch_size", "kv_heads", "window"]
_UNALIGNED = ["page_table", "seq_lens", *_LENGTHS]


# Programmatic dependent launch (CUDA programming guide, "Programmatic Dependent Launch and Synchronization"; NVIDIA
# GPUs since sm_90): a kernel is brought onto the GPU while the one before it still runs. One that is launched so, by
# ``launch_pdl``, may touch nothing of another before it has waited. The next may come when every program of this one
# has let it, or has ended.


@triton.jit
def wait_for_previous():
    """Wait until the kernel before has ended and what it wrote can be read."""
    tl.extra.cuda.gdc_wait()


@triton.jit
def let_next_begin():
    """Let the next kernel begin: its programs take the place of those that end first."""
    tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def store_rows(
    outputs, sinks, state, sequence, kv_head, first_row, kv_heads,
    ROWS: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
):  # fmt: skip
    """Store ROWS finished rows of a tile, from ``first_row`` on."""
    rows = first_row + tl.arange(0, ROWS)
    is_row = rows < TILE.used_rows
    row_queries = rows // TILE.group
    tile_heads = row_queries // TILE.queries
    heads = (kv_head + tile_heads) * TILE.group + rows % TILE.group
    queries = sequence * TILE.queries + row_queries - tile_heads * TILE.queries  # see ``locate_rows``
    store_outputs(outputs, sinks, state, queries, heads, kv_heads, is_row, TILE.group, WIDTH, BLOCK_WIDTH)


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=_UNALIGNED)
def paged_decode_split(
    q, cache, page_table, seq_lens, per_head, outputs, partials, q_strides,
    table_stride, capacity, cache_pages, batch_size, kv_heads, window, factors,
    TILE: tl.constexpr, WIDTHS: tl.constexpr, PAGING: tl.constexpr, FEATURES: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Take every SPLITS-th tile of one sequence and KV head: a program need not know the length to begin.

    Without counters a second kernel merges the shares, else the last program to finish one does.
    """
    if FEATURES.early:
        wait_for_previous()
    # Neighbouring programs read neighbouring heads of the same pages.
    blocks: tl.constexpr = (TILE.used_rows + TILE.rows - 1) // TILE.rows
    SPLITS: tl.constexpr = SHARES.splits
    score_scale, softcap = factors.scale, factors.softcap
    lane = tl.program_id(0)
    split = tl.program_id(1)
    block = lane % blocks
    kv_head = lane // blocks % (kv_heads // TILE.heads) * TILE.heads
    sequence = lane // (blocks * (kv_heads // TILE.heads))
    batch = Batch(seq_lens, batch_size, capacity, window)
    length = load_length(batch, sequence)
    first, tiles = count_tiles(length, window, TILE, FEATURES.window)

    rows = locate_rows(kv_head, block, TILE)
    k = cache.k + offset(kv_head, PAGING.key_strides[2])
    v = cache.v + offset(kv_head, PAGING.value_strides[2])
    k_scales, v_scales, slopes = cache.k_scales, cache.v_scales, per_head.slopes  # None where there are none
    if k_scales is not None:
        k_scales += offset(kv_head, PAGING.key_scale_strides[2])
        v_scales += offset(kv_head, PAGING.value_scale_strides[2])
    if slopes is not None:
        slopes = load_slopes(slopes, rows.heads, rows.is_row)
    cache = Cache(k, v, k_scales, v_scales)
    WEIGHT_TYPE: tl.constexpr = weight_type(q.dtype.element_ty, cache.k.dtype.element_ty)
    queries = load_queries(
        q, q_strides, cache.k_scales, sequence, kv_head, block, score_scale, cache.k.dtype.element_ty,
        TILE, WIDTHS, PAGING, FEATURES,
    )  # fmt: skip
    state = begin_tiles(TILE, WIDTHS, FEATURES.packed)
    # A tile's pages are loaded while the tile before it is computed: a load of keys whose address waits for another
    # load of its own iteration gets one buffer under num_stages 3 and 4 (Triton 3.6.0, sm_90). They are loaded whatever
    # the length, which is on its way too; what is not a page is not used.
    table_row = page_table + offset(sequence, table_stride)
    pages = load_pages(table_row, first + split, 0, capacity, TILE.tokens, PAGING)
    for tile in tl.range(first + split, first + tiles, SPLITS):
        next_pages = load_pages(table_row, tile + SPLITS, 0, capacity, TILE.tokens, PAGING)
        state = fold_tile(
            state, queries, cache, slopes, rows, length, tile, clamp_pages(pages, cache_pages), window, softcap,
            TILE, WIDTHS, PAGING, FEATURES, WEIGHT_TYPE,
        )  # fmt: skip
        pages = next_pages
    whole = end_tiles(state, cache.v_scales, rows, TILE, WIDTHS, PAGING, FEATURES)
    if FEATURES.early:
        let_next_begin()

    first_row = block * TILE.rows
    if SPLITS == 1:
        store_rows(
            outputs, per_head.sinks, whole, sequence, kv_head, first_row, kv_heads,
            TILE.rows, TILE, WIDTHS.v, WIDTHS.padded_v,
        )  # fmt: skip
    else:
        number = lane * SPLITS
        store_partial(partials, number + split, whole, WIDTHS.padded_v, TILE.rows, SHARES.rows)
        if partials.counters is not None and arrive(partials.counters + lane, SPLITS):
            merged = merge_partials(
                partials, number, number + 1, 1, SPLITS, 0,
                SHARES.rows, TILE.rows, WIDTHS.padded_v, SHARES.at_once,
            )  # fmt: skip
            store_rows(
                outputs, per_head.sinks, merged, sequence, kv_head, first_row, kv_heads,
                SHARES.rows, TILE, WIDTHS.v, WIDTHS.padded_v,
            )  # fmt: skip


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=_UNALIGNED)
def paged_decode_flat(
    q, cache, page_table, seq_lens, per_head, outputs, partials, q_strides,
    table_stride, capacity, cache_pages, batch_size, kv_heads, window, factors,
    TILE: tl.constexpr, WIDTHS: tl.constexpr, PAGING: tl.constexpr, FEATURES: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Take an equal share of the list of all tiles, for one KV head, and walk from sequence to sequence.

    One loop over the share, so that the first tiles of a sequence are loaded while the last of the one before are
    computed. A sequence that a program sees whole is written out; of one that it enters or leaves midway it stores a
    partial result, ``2 * program`` of the one that began in an earlier share, ``2 * program + 1`` of the one that
    begins in its own; a second kernel merges those.
    """
    if FEATURES.early:
        wait_for_previous()
    blocks: tl.constexpr = (TILE.used_rows + TILE.rows - 1) // TILE.rows
    score_scale, softcap = factors.scale, factors.softcap
    program = tl.program_id(0)
    lanes = blocks * (kv_heads // TILE.heads)
    lane = program % lanes
    block = lane % blocks
    kv_head = lane // blocks * TILE.heads
    batch = Batch(seq_lens, batch_size, capacity, window)
    total, _ = count_list(batch, 0, TILE, FEATURES.window)
    share = share_tiles(total, tl.num_programs(0) // lanes)
    begin = program // lanes * share
    end = tl.minimum(begin + share, total)
    sequence, before = find_sequence(batch, begin, TILE, FEATURES.window)
    # The tile that is next, where this program leaves its sequence, and whether it saw that sequence begin.
    length = tl.minimum(tl.load(seq_lens + sequence, mask=sequence < batch_size, other=0), capacity)
    first, tiles = list_tiles(length, window, TILE, FEATURES.window)
    tile = first + begin - before
    stop = first + tl.minimum(tiles, end - before)
    began = (begin == before).to(tl.int32)

    rows = locate_rows(kv_head, block, TILE)
    k = cache.k + offset(kv_head, PAGING.key_strides[2])
    v = cache.v + offset(kv_head, PAGING.value_strides[2])
    k_scales, v_scales, slopes = cache.k_scales, cache.v_scales, per_head.slopes  # None where there are none
    if k_scales is not None:
        k_scales += offset(kv_head, PAGING.key_scale_strides[2])
        v_scales += offset(kv_head, PAGING.value_scale_strides[2])
    if slopes is not None:
        slopes = load_slopes(slopes, rows.heads, rows.is_row)
    cache = Cache(k, v, k_scales, v_scales)
    WEIGHT_TYPE: tl.constexpr = weight_type(q.dtype.element_ty, cache.k.dtype.element_ty)
    last = batch_size - 1
    sequence = tl.minimum(sequence, last)  # of an empty share, behind the list
    queries = load_queries(
        q, q_strides, cache.k_scales, sequence, kv_head, block, score_scale, cache.k.dtype.element_ty,
        TILE, WIDTHS, PAGING, FEATURES,
    )  # fmt: skip
    state = begin_tiles(TILE, WIDTHS, FEATURES.packed)
    # Pages are loaded a tile ahead, see the schedule split, and lengths a sequence ahead.
    next_length = load_length(batch, tl.minimum(sequence + 1, last))
    table_row = page_table + offset(sequence, table_stride)
    pages = load_pages(table_row, tile, 0, capacity, TILE.tokens, PAGING)
    for index in tl.range(begin, end):
        leaves = tile + 1 == stop
        following = tl.minimum(sequence + leaves.to(tl.int32), last)
        next_first, next_tiles = list_tiles(next_length, window, TILE, FEATURES.window)
        next_tile = tl.where(leaves, next_first, tile + 1)
        next_stop = tl.where(leaves, next_first + tl.minimum(next_tiles, end - index - 1), stop)
        following_length = tl.where(leaves, next_length, length)
        table_row = page_table + offset(following, table_stride)
        next_pages = load_pages(table_row, next_tile, 0, capacity, TILE.tokens, PAGING)
        next_length = load_length(batch, tl.minimum(following + 1, last))
        state = fold_tile(
            state, queries, cache, slopes, rows, length, tile, clamp_pages(pages, cache_pages), window, softcap,
            TILE, WIDTHS, PAGING, FEATURES, WEIGHT_TYPE,
        )  # fmt: skip
        if leaves:
            whole = end_tiles(state, cache.v_scales, rows, TILE, WIDTHS, PAGING, FEATURES)
            first, tiles = list_tiles(length, window, TILE, FEATURES.window)
            if (began == 1) & (stop == first + tiles):
                store_rows(
                    outputs, per_head.sinks, whole, sequence, kv_head, block * TILE.rows, kv_heads,
                    TILE.rows, TILE, WIDTHS.v, WIDTHS.padded_v,
                )  # fmt: skip
            else:
                store_partial(partials, 2 * program + began, whole, WIDTHS.padded_v, TILE.rows, SHARES.rows)
            state = begin_tiles(TILE, WIDTHS, FEATURES.packed)
            began = tl.full([], 1, tl.int32)
            queries = load_queries(
                q, q_strides, cache.k_scales, following, kv_head, block, score_scale, cache.k.dtype.element_ty,
                TILE, WIDTHS, PAGING, FEATURES,
            )  # fmt: skip
        sequence = following
        length = following_length
        tile = next_tile
        stop = next_stop
        pages = next_pages
    if FEATURES.early:
        let_next_begin()
