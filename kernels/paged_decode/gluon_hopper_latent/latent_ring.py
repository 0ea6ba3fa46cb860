# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Tiles of latents in shared memory, between the warps that copy them in and two groups that read them.

A tile has three pieces of columns: two halves of the latent, which as values are those of one group each, and what is
beside it. They come in two parts with barriers of their own: the half of the group that multiplies a tile's scores,
then the rest. Who takes a half as values hands it back: by then its scores are done. What is beside it is only read for
scores; the weights of the tile take its place (``LatentRing.weights``), so it goes back with the half of the other
group, which reads those last.

A half ``[64, columns]`` lies in memory by blocks of 64 columns, 128 bytes a row, the widest swizzle.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.gluon import GROUP_THREADS, copy_in, fence_async_shared, mbarrier, view_as
from autotune.kernels.paged_decode.gluon_hopper_latent.latent_share import KEYS, first_slot, load_page

COLUMNS = gl.constexpr(64)  # of a block
GROUPS = gl.constexpr(2)

wait_for_group = getattr(gl, "thread_barrier", None) or gl.barrier  # of all four warps: Triton 3.6 has another name


class LatentRing(NamedTuple):
    """Slots for tiles: ``halves [2 * slots, 64, half]``, ``beside [slots, 64, beside]``, ``weights [slots, 64, 64]``;
    barriers of both parts of each slot: it is filled, it may be filled."""

    halves: Any
    beside: Any
    weights: Any
    full: Any
    empty: Any


@gluon.constexpr_function
def tile_layout(rows, columns):
    """Return how a tile of 16 bits lies in shared memory."""
    return gl.NVMMASharedLayout.get_default_for([rows, columns], gl.float16)


@gluon.jit
def begin_ring(DTYPE: gl.constexpr, LATENTS: gl.constexpr):
    """Return a ring of empty slots."""
    SLOTS: gl.constexpr = LATENTS.slots
    halves = gl.allocate_shared_memory(DTYPE, [2 * SLOTS, KEYS, LATENTS.half], tile_layout(KEYS, LATENTS.half))
    beside = gl.allocate_shared_memory(DTYPE, [SLOTS, KEYS, LATENTS.beside], tile_layout(KEYS, LATENTS.beside))
    weights = beside
    if LATENTS.beside != KEYS:
        weights = gl.allocate_shared_memory(DTYPE, [SLOTS, KEYS, KEYS], tile_layout(KEYS, KEYS))
    full = gl.allocate_shared_memory(gl.int64, [2 * SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2 * SLOTS, 1], mbarrier.MBarrierLayout())
    ARRIVALS: gl.constexpr = GROUP_THREADS if LATENTS.page_size == 1 else 1  # each thread's copies, or those by TMA
    for part in gl.static_range(2 * SLOTS):
        mbarrier.init(full.index(part), count=ARRIVALS)
        mbarrier.init(empty.index(part), count=1)
    return LatentRing(halves, beside, weights, full, empty)


@gluon.jit
def slot_of(pair, GROUP: gl.constexpr, SLOTS: gl.constexpr):
    """Return the slot of a group's tile of a pair, and the phase of its barriers."""
    return pair % (SLOTS // GROUPS) * GROUPS + GROUP, pair // (SLOTS // GROUPS) & 1


@gluon.jit
def fill(ring, latents, beside, page_list, tile, length, slot, phase, GROUP: gl.constexpr, LATENTS: gl.constexpr):
    """Begin to copy a tile of this group's into a slot, each part once it is handed back; absent pieces become 0."""
    PIECES: gl.constexpr = KEYS // LATENTS.run
    pages = ()
    for piece in gl.static_range(PIECES):
        pages += (load_page(page_list, tile, piece, length, LATENTS),)  # type: ignore[assignment]
    ITEM: gl.constexpr = 2  # bytes
    HALF: gl.constexpr = KEYS * LATENTS.half * ITEM
    mbarrier.wait(ring.empty.index(2 * slot), phase ^ 1)
    full = ring.full.index(2 * slot)
    mbarrier.expect(full, HALF)
    _copy_half(ring, full, latents, pages, tile, length, slot, GROUP, LATENTS)
    mbarrier.wait(ring.empty.index(2 * slot + 1), phase ^ 1)
    full = ring.full.index(2 * slot + 1)
    mbarrier.expect(full, HALF + KEYS * LATENTS.beside * ITEM)
    _copy_half(ring, full, latents, pages, tile, length, slot, 1 - GROUP, LATENTS)
    RUNS: gl.constexpr = [LATENTS.slots * PIECES] + beside.block_shape  # noqa: RUF005 (Triton's language)
    runs = view_as(ring.beside, beside.dtype, RUNS, beside.layout)
    LAST: gl.constexpr = GROUPS * LATENTS.half // LATENTS.beside
    for piece in gl.static_range(PIECES):
        start = first_slot(tile, piece, LATENTS)
        copy_in(beside, [pages[piece], LAST, start, 0], full, runs.index(slot * PIECES + piece))


@gluon.jit
def _copy_half(ring, full, latents, pages, tile, length, slot, HALF: gl.constexpr, LATENTS: gl.constexpr):
    """Begin to copy one half of a tile: all its blocks of columns at once, or each piece of keys by blocks."""
    PIECES: gl.constexpr = KEYS // LATENTS.run
    BLOCKS: gl.constexpr = LATENTS.half // COLUMNS
    AT_ONCE: gl.constexpr = latents.block_shape[1]
    COPIES: gl.constexpr = BLOCKS // AT_ONCE
    RUNS: gl.constexpr = [2 * LATENTS.slots * COPIES * PIECES] + latents.block_shape  # noqa: RUF005
    runs = view_as(ring.halves, latents.dtype, RUNS, latents.layout)
    first = (2 * slot + HALF) * COPIES * PIECES
    for piece in gl.static_range(PIECES):
        start = first_slot(tile, piece, LATENTS)
        # A number that no compiler knows: unrolled, copies need more addresses than a warp of few registers has.
        for copy in range(COPIES + (length >> 30)):
            place = [pages[piece], HALF * BLOCKS + copy * AT_ONCE, start, 0]
            copy_in(latents, place, full, runs.index(first + copy * PIECES + piece))


@gluon.jit
def wait_until_full(ring, part, phase, LATENTS: gl.constexpr):
    """Wait until a part of a slot is there, numbered over all slots, as products read it."""
    mbarrier.wait(ring.full.index(part), phase)
    if LATENTS.page_size == 1:
        fence_async_shared()  # what threads have copied, TMA and products do not see without


@gluon.jit
def hand_back(ring, slot, PART: gl.constexpr):
    """Let a part of a slot be filled again; nothing of the caller reads it any more."""
    mbarrier.arrive(ring.empty.index(2 * slot + PART), count=1)


@gluon.constexpr_function
def block_layout():
    """Return how the four warps of a group hold a block ``[64, 64]`` that they copy, 16 bytes a thread."""
    return gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])


@gluon.jit
def clear_rows(ring, slot, HALF: gl.constexpr, count, LATENTS: gl.constexpr):
    """Set to 0 what a half has past so many rows: no weight of 0 makes a NaN there 0. Only that half's group may.

    Rows that are gathered are 0 already.
    """
    if LATENTS.page_size != 1:
        BLOCKS: gl.constexpr = LATENTS.half // COLUMNS
        LAYOUT: gl.constexpr = block_layout()
        SHAPE: gl.constexpr = [2 * LATENTS.slots * BLOCKS, KEYS, COLUMNS]
        blocks = view_as(ring.halves, ring.halves.dtype, SHAPE, tile_layout(KEYS, COLUMNS))
        rows = gl.arange(0, KEYS, gl.SliceLayout(1, LAYOUT))
        for number in gl.static_range(BLOCKS):
            block = blocks.index((2 * slot + HALF) * BLOCKS + number)
            found = block.load(LAYOUT)
            block.store(gl.where((rows < count)[:, None], found, gl.zeros_like(found)))
        fence_async_shared()
        wait_for_group()
