# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Decode attention over a paged cache of latents in Gluon for Hopper: one row a token is key and value of all heads.

Multi-head latent attention with its projections absorbed (DeepSeek-V2, arXiv 2405.04434, section 2.1). An accumulator
of 64 rows and 512 columns is that of two groups of warps: each has half of the columns of the values, and computes the
scores of every second tile of 64 keys, whose weights it gives to the other. So one's exponentials run under the
other's products (FlashMLA describes such a schedule, https://github.com/deepseek-ai/FlashMLA, "A Deep-Dive Into The New
Flash MLA Kernel", 2025). Here tiles are folded strictly in order: the second group multiplies the values of the first
one's tile while it weighs its own, so that the first tile's memory is free for copies half a turn before it is needed.
"""

from typing import Any, NamedTuple

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.gluon import mbarrier, product_layout, warpgroup_mma, warpgroup_mma_wait
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_gather import gather, load_tile_rows
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_queries import begin_queries, load_queries
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_results import store_partial, store_rows
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_ring import (
    begin_ring,
    clear_rows,
    fill,
    hand_back,
    slot_of,
    wait_until_full,
)
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_share import (
    KEYS,
    ROWS,
    list_pieces,
    list_rows,
    locate_share,
)
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_weights import (
    HalfState,
    begin_mailbox,
    begin_rows,
    hear,
    hide_keys,
    last_keys,
    raise_maxima,
    tell,
    weigh,
)
from autotune.kernels.tiles.pages import PageList

REGISTERS = gl.constexpr(240)  # of a thread that computes: as of the dense kernel's two consumers
GATHERED_REGISTERS = gl.constexpr(232)  # of the same where those that load have addresses of their own

_NUMBERS = ["table_stride", "capacity", "cache_pages"]  # no binary of its own for a number
_POINTERS = ["page_table", "seq_lens", "sinks"]


class DecodeCall(NamedTuple):
    """Pointers to what a program reads beside the cache, and writes, and the numbers of the call."""

    q: Any
    page_table: Any
    seq_lens: Any
    sinks: Any
    outputs: Any
    partials: Any
    q_strides: Any
    table_stride: Any
    capacity: Any
    cache_pages: Any
    score_scale: Any


@gluon.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=[*_POINTERS, *_NUMBERS])
def latent_decode_hopper(
    latents, beside, q, page_table, seq_lens, sinks, outputs, partials, q_strides,
    table_stride, capacity, cache_pages, score_scale,
    TILE: gl.constexpr, LATENTS: gl.constexpr, SPLITS: gl.constexpr,
):  # fmt: skip
    """Compute a block of 64 rows of one sequence over every SPLITS-th pair of its tiles; another kernel merges shares.

    ``latents`` and ``beside`` are descriptors of the cache ``[pages, blocks of columns, page_size, columns]``, or of
    pages of one key both its address.
    """
    DTYPE: gl.constexpr = latents.dtype.element_ty if LATENTS.page_size == 1 else latents.dtype
    ring, queries = begin_ring(DTYPE, LATENTS), begin_queries(DTYPE, LATENTS)
    boxes = (begin_mailbox(), begin_mailbox())  # of what each group tells the other
    call = DecodeCall(
        q, page_table, seq_lens, sinks, outputs, partials, q_strides, table_stride, capacity, cache_pages, score_scale
    )
    gl.warp_specialize(
        [
            (produce, (ring, latents, beside, call, TILE, LATENTS, SPLITS)),
            (consume_first, (ring, queries, boxes, call, TILE, LATENTS, SPLITS)),
            (consume_second, (ring, queries, boxes, call, TILE, LATENTS, SPLITS)),
        ],
        [4, 4],
        [REGISTERS, REGISTERS] if LATENTS.page_size > 1 else [GATHERED_REGISTERS, GATHERED_REGISTERS],
    )


@gluon.jit
def list_pages(call, share):
    """Return the pages of this program's sequence."""
    return PageList(call.page_table + gl.cast(share.sequence, gl.int64) * call.table_stride, call.cache_pages)


@gluon.jit
def produce(ring, latents, beside, call, TILE: gl.constexpr, LATENTS: gl.constexpr, SPLITS: gl.constexpr):
    """Copy the tiles of this program's share into the ring."""
    share = locate_share(call.seq_lens, call.capacity, TILE, SPLITS)
    page_list = list_pages(call, share)
    if LATENTS.page_size == 1:
        rows = load_tile_rows(page_list, 2 * share.split, share.length)
        for pair in range(share.pairs):
            for group in gl.static_range(2):
                slot, phase = slot_of(pair, group, LATENTS.slots)
                tile = 2 * (share.split + (pair + group) * SPLITS) + 1 - group
                next_rows = load_tile_rows(page_list, tile, share.length)  # of the tile after this one
                gather(ring, latents, rows, slot, phase, group, LATENTS)
                rows = next_rows
    else:
        for pair in range(share.pairs):
            for group in gl.static_range(2):
                slot, phase = slot_of(pair, group, LATENTS.slots)
                tile = 2 * (share.split + pair * SPLITS) + group
                fill(ring, latents, beside, page_list, tile, share.length, slot, phase, group, LATENTS)


@gluon.jit
def multiply_scores(ring, queries, slot, phase, GROUP: gl.constexpr, LATENTS: gl.constexpr):
    """Begin to multiply queries and the keys of this group's tile, a part once it is there; return what to wait for."""
    scores = gl.zeros([ROWS, KEYS], gl.float32, product_layout(KEYS))
    wait_until_full(ring, 2 * slot, phase, LATENTS)
    keys = ring.halves.index(2 * slot + GROUP).permute((1, 0))
    scores = warpgroup_mma(queries.halves.index(GROUP), keys, scores, use_acc=False, is_async=True)
    wait_until_full(ring, 2 * slot + 1, phase, LATENTS)
    keys = ring.halves.index(2 * slot + 1 - GROUP).permute((1, 0))
    scores = warpgroup_mma(queries.halves.index(1 - GROUP), keys, scores, is_async=True)
    keys = ring.beside.index(slot).permute((1, 0))
    return warpgroup_mma(queries.beside.index(0), keys, scores, is_async=True)


@gluon.jit
def rescaled(state, rescale):
    """Return the accumulator multiplied by a number a row."""
    VALUES: gl.constexpr = state.accumulator.type.layout
    return state.accumulator * gl.convert_layout(rescale, gl.SliceLayout(1, VALUES))[:, None]


@gluon.jit
def as_factor(weights, VALUES: gl.constexpr):
    """Return weights as the left factor of a product, which takes it from registers."""
    return gl.convert_layout(weights, gl.DotOperandLayout(operand_index=0, parent=VALUES, k_width=2))


@gluon.jit
def with_accumulator(state, accumulator):
    """Return the state with another accumulator."""
    return HalfState(accumulator, state.row_max, state.row_sum)


@gluon.jit
def consume_first(ring, queries, boxes, call, TILE: gl.constexpr, LATENTS: gl.constexpr, SPLITS: gl.constexpr):
    """Compute the first half of the columns, and the weights of the first tile of each pair."""
    share = locate_share(call.seq_lens, call.capacity, TILE, SPLITS)
    page_list = list_pages(call, share)
    VALUES: gl.constexpr = product_layout(LATENTS.half)
    last = last_keys(share, TILE)
    load_queries(queries, call.q, call.q_strides, share, 0, TILE, LATENTS)
    state = begin_rows(LATENTS.half)
    # What is the same in all turns, such as addresses of factors, is computed anew: there are no registers to keep it.
    for pair in tl.range(0, share.pairs, disable_licm=True):
        tile = 2 * (share.split + pair * SPLITS)
        slot, phase = slot_of(pair, 0, LATENTS.slots)
        listed = list_pieces(page_list, tile, share.length, LATENTS)
        scores = multiply_scores(ring, queries, slot, phase, 0, LATENTS)
        listed = list_rows(listed, page_list, tile, share.length, LATENTS)
        scores = hide_keys(warpgroup_mma_wait(0, deps=[scores]), tile, last, listed, page_list, share, TILE, LATENTS)
        weights, state, rescale = weigh(scores, state, call.score_scale)
        weights = weights.to(ring.halves.dtype)
        ring.weights.index(slot).store(weights)
        tell(boxes[0], state.row_max)
        left = share.length - tile * KEYS
        if left < KEYS:
            clear_rows(ring, slot, 0, left, LATENTS)
        accumulator = rescaled(state, rescale)
        values = ring.halves.index(2 * slot)
        accumulator = warpgroup_mma(as_factor(weights, VALUES), values, accumulator, is_async=True)
        row_max = hear(boxes[1], pair)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        hand_back(ring, slot, 0)
        state, rescale = raise_maxima(with_accumulator(state, accumulator), row_max)

        wait_until_full(ring, 2 * slot + 3, phase, LATENTS)  # of the other group's tile: it has this half
        if left < 2 * KEYS:
            clear_rows(ring, slot + 1, 0, left - KEYS, LATENTS)
        accumulator = rescaled(state, rescale)
        values = ring.halves.index(2 * slot + 2)
        accumulator = warpgroup_mma(ring.weights.index(slot + 1), values, accumulator, is_async=True)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        hand_back(ring, slot + 1, 1)
        state = with_accumulator(state, accumulator)
    tell(boxes[0], state.row_sum)
    row_sum = state.row_sum + hear(boxes[1], share.pairs)
    finish(call, HalfState(state.accumulator, state.row_max, row_sum), share, 0, TILE, LATENTS, SPLITS)


@gluon.jit
def consume_second(ring, queries, boxes, call, TILE: gl.constexpr, LATENTS: gl.constexpr, SPLITS: gl.constexpr):
    """Compute the second half of the columns, and the weights of the second tile of each pair."""
    share = locate_share(call.seq_lens, call.capacity, TILE, SPLITS)
    page_list = list_pages(call, share)
    VALUES: gl.constexpr = product_layout(LATENTS.half)
    last = last_keys(share, TILE)
    load_queries(queries, call.q, call.q_strides, share, 1, TILE, LATENTS)
    state = begin_rows(LATENTS.half)
    for pair in tl.range(0, share.pairs, disable_licm=True):  # as above
        tile = 2 * (share.split + pair * SPLITS) + 1
        slot, phase = slot_of(pair, 1, LATENTS.slots)
        listed = list_pieces(page_list, tile, share.length, LATENTS)
        left = share.length - tile * KEYS
        # Of the other group's tile: it has this half. What the next wait lets products see, this part has with it.
        mbarrier.wait(ring.full.index(2 * slot - 1), phase)
        if left < 0:  # not under the product of scores: a branch would wait for it; keys past the end have none
            clear_rows(ring, slot - 1, 1, left + KEYS, LATENTS)
        scores = multiply_scores(ring, queries, slot, phase, 1, LATENTS)
        listed = list_rows(listed, page_list, tile, share.length, LATENTS)
        row_max = hear(boxes[0], pair)
        state, rescale = raise_maxima(state, row_max)
        accumulator = rescaled(state, rescale)
        values = ring.halves.index(2 * slot - 1)
        accumulator = warpgroup_mma(ring.weights.index(slot - 1), values, accumulator, is_async=True)

        scores = hide_keys(warpgroup_mma_wait(1, deps=[scores]), tile, last, listed, page_list, share, TILE, LATENTS)
        weights, state, rescale = weigh(scores, state, call.score_scale)
        weights = weights.to(ring.halves.dtype)
        ring.weights.index(slot).store(weights)
        tell(boxes[1], state.row_max)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        hand_back(ring, slot - 1, 1)
        if left < KEYS:
            clear_rows(ring, slot, 1, left, LATENTS)
        accumulator = rescaled(with_accumulator(state, accumulator), rescale)
        values = ring.halves.index(2 * slot + 1)
        accumulator = warpgroup_mma(as_factor(weights, VALUES), values, accumulator, is_async=True)
        accumulator = warpgroup_mma_wait(0, deps=[accumulator])
        hand_back(ring, slot, 0)
        state = with_accumulator(state, accumulator)
    row_sum = state.row_sum + hear(boxes[0], share.pairs)
    tell(boxes[1], state.row_sum)
    finish(call, HalfState(state.accumulator, state.row_max, row_sum), share, 1, TILE, LATENTS, SPLITS)


@gluon.jit
def finish(
    call, state, share, GROUP: gl.constexpr, TILE: gl.constexpr, LATENTS: gl.constexpr, SPLITS: gl.constexpr
):  # fmt: skip
    """Store what this group has of a block's rows."""
    if SPLITS == 1:
        store_rows(call.outputs, call.sinks, state, share, GROUP, TILE, LATENTS)
    else:
        store_partial(call.partials, state, share, GROUP, SPLITS, LATENTS)
