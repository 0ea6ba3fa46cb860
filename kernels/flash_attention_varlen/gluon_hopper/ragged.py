# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Copies of a sequence's rows that end where it ends: what lies behind is read as 0, and never written.

Tensor maps have the bounds of a tensor, and sequences of all lengths lie in one. So a map gets two dimensions of the
rows' stride more: their coordinates say where the sequence ends in memory, while that of the row counts towards one
bound that all sequences share. Addresses are sums modulo 2**64 (``triton.tools.ragged_tma`` of Triton 3.6 does this;
CUDA driver API, cuTensorMapEncodeTiled, has the limits of sizes and strides).
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.flash_attention.gluon_hopper.rings import Ring
from autotune.kernels.gluon import copy_in, mbarrier, view_as

LAST = gl.constexpr(2**30)  # the bound of rows; no sequence is longer
MOST = gl.constexpr(2**31 - 2**16)  # of a dimension's size
WRAP = gl.constexpr(2**34)  # elements: LAST of them are 2**64, of which nothing is left in an address


class SequenceRows(NamedTuple):
    """The packed rows of a sequence."""

    begin: Any
    count: Any


@gluon.jit
def place_of(rows, row, head, column):
    """Return the coordinates of a row, counted in its sequence, in a map ``[MOST, MOST, LAST, H, D]``."""
    return [LAST, rows.begin + rows.count, LAST - rows.count + row, head, column]


@gluon.jit
def fill_rows(ring, descriptor, rows, row, head, turn, PARTS: gl.constexpr, SLOTS: gl.constexpr):
    """Copy a sequence's rows from ``row`` on into a slot of a ring, as ``rings.fill`` does; 0 is read past its end."""
    slot = turn % SLOTS
    mbarrier.wait(ring.empty.index(slot), (turn // SLOTS & 1) ^ 1)
    mbarrier.expect(ring.full.index(slot), PARTS * descriptor.block_type.nbytes)
    for part in gl.static_range(PARTS):
        place = place_of(rows, row, head, part * descriptor.block_shape[4])
        copy_in(descriptor, place, ring.full.index(slot), ring.tiles.index(slot * PARTS + part))


@gluon.jit
def as_dense(ring, descriptor):
    """Return a ring of tiles ``[1, 1, rows, 1, width]`` as one of ``[1, rows, 1, width]``, which ``rings`` takes."""
    SHAPE: gl.constexpr = [ring.tiles.shape[0]] + descriptor.block_shape[1:]  # noqa: RUF005 (Triton's language)
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for(descriptor.block_shape[1:], descriptor.dtype)
    return Ring(view_as(ring.tiles, descriptor.dtype, SHAPE, LAYOUT), ring.full, ring.empty)
