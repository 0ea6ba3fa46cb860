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
    """Slots for tiles ``[1, rows, 1, width]`` of a tensor, and barriers of each: it is filled, it may be filled."""

    tiles: Any
    full: Any
    empty: Any


@gluon.jit
def begin_ring(descriptor, SLOTS: gl.constexpr, READERS: gl.constexpr):
    """Return a ring of empty slots, each handed back by so many readers."""
    shape: gl.constexpr = [SLOTS] + descriptor.block_shape  # noqa: RUF005 (Triton's language)
    tiles = gl.allocate_shared_memory(descriptor.dtype, shape, descriptor.layout)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(SLOTS):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=READERS)
    return Ring(tiles, full, empty)


@gluon.jit
def fill(ring, descriptor, batch, row, head, turn, SLOTS: gl.constexpr):
    """Begin to copy the rows from ``row`` on into the slot of a turn, once its readers have handed it back."""
    slot = turn % SLOTS
    mbarrier.wait(ring.empty.index(slot), (turn // SLOTS & 1) ^ 1)
    mbarrier.expect(ring.full.index(slot), descriptor.block_type.nbytes)
    copy_in(descriptor, [batch, row, head, 0], ring.full.index(slot), ring.tiles.index(slot))


@gluon.jit
def take(ring, turn, SLOTS: gl.constexpr):
    """Return the tile ``[rows, width]`` of a turn, once it is there."""
    slot = turn % SLOTS
    mbarrier.wait(ring.full.index(slot), turn // SLOTS & 1)
    tile = ring.tiles.index(slot)
    return tile.reshape([tile.shape[1], tile.shape[3]])


@gluon.jit
def hand_back(ring, turn, SLOTS: gl.constexpr):
    """Let the slot of a turn be filled again; nothing of the caller reads it any more."""
    mbarrier.arrive(ring.empty.index(turn % SLOTS), count=1)
