# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Rings of tiles in shared memory, between one warp that fills them by TMA and the groups that read them.

The n-th fill of a ring, counted over all tiles that a program computes, is its turn n: its slot is ``n % SLOTS``, and
the phase of both barriers of the slot is the parity of ``n // SLOTS``.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.gluon import copy_in, mbarrier


class Ring(NamedTuple):
    """Slots for tiles of a tensor, and barriers of each: it is filled, it may be filled.

    The columns of a tile are in so many parts ``[1, rows, 1, width]``, one behind the other.
    """

    tiles: Any
    full: Any
    empty: Any


@gluon.jit
def begin_ring(descriptor, PARTS: gl.constexpr, SLOTS: gl.constexpr, READERS: gl.constexpr):
    """Return a ring of empty slots, each handed back by so many readers."""
    shape: gl.constexpr = [SLOTS * PARTS] + descriptor.block_shape  # noqa: RUF005 (Triton's language)
    tiles = gl.allocate_shared_memory(descriptor.dtype, shape, descriptor.layout)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=READERS)
    return Ring(tiles, full, empty)


@gluon.jit
def fill(ring, descriptor, batch, row, head, turn, PARTS: gl.constexpr, SLOTS: gl.constexpr):
    """Begin to copy the rows from ``row`` on into the slot of a turn, once its readers have handed it back."""
    slot = turn % SLOTS
    mbarrier.wait(ring.empty.index(slot), (turn // SLOTS & 1) ^ 1)
    mbarrier.expect(ring.full.index(slot), PARTS * descriptor.block_type.nbytes)
    for part in gl.static_range(PARTS):
        place = [batch, row, head, part * descriptor.block_shape[3]]
        copy_in(descriptor, place, ring.full.index(slot), ring.tiles.index(slot * PARTS + part))


@gluon.jit
def wait_for(ring, turn, SLOTS: gl.constexpr):
    """Return the slot of a turn, once its tile is there."""
    slot = turn % SLOTS
    mbarrier.wait(ring.full.index(slot), turn // SLOTS & 1)
    return slot


@gluon.jit
def take(ring, turn, PARTS: gl.constexpr, SLOTS: gl.constexpr):
    """Return the parts ``[rows, width]`` of the tile of a turn, once it is there."""
    slot = wait_for(ring, turn, SLOTS)
    parts = ()
    for part in gl.static_range(PARTS):
        tile = ring.tiles.index(slot * PARTS + part)
        parts += (tile.reshape([tile.shape[1], tile.shape[3]]),)  # type: ignore[assignment]
    return parts


@gluon.jit
def hand_back(ring, turn, SLOTS: gl.constexpr):
    """Let the slot of a turn be filled again; nothing of the caller reads it any more."""
    mbarrier.arrive(ring.empty.index(turn % SLOTS), count=1)
