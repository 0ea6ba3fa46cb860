# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Offsets in 64 bits, and loads of the rows of a tile: consecutive rows of a head, or rows at given offsets."""

from typing import Any, NamedTuple

import triton
import triton.language as tl


class Widths(NamedTuple):
    """Widths of keys and of values, and of the tiles that hold them.

    No field is called ``values``: Triton 3.8 and later hand constants on as ``tl.tuple``, which has one of its own.
    """

    k: int
    v: int
    padded_k: int
    padded_v: int


class Strides(NamedTuple):
    """Strides of a tensor ``[B, S, H, D]`` in elements; the last one is 1."""

    batch: Any
    row: Any
    head: Any


class Head(NamedTuple):
    """One head of one sequence of a tensor ``[B, S, H, D]``, given by pointer or by descriptor."""

    tensor: Any
    strides: Any
    batch: Any
    head: Any
    length: Any


@triton.jit
def offset(index, stride):
    """Return ``index * stride`` in 64 bits: neither tensors nor strides are too large."""
    return tl.cast(index, tl.int64) * stride


@triton.jit
def locate_row(source, row):
    """Return the pointer to a row of a head that is given by pointer."""
    strides = source.strides
    origin = source.tensor + offset(source.batch, strides.batch)
    return origin + offset(row, strides.row) + offset(source.head, strides.head)


@triton.jit
def load_rows(
    source, start, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
    BOUNDED: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Load a ``[ROWS, BLOCK_WIDTH]`` tile; what lies beyond WIDTH, and beyond the length if BOUNDED, is 0."""
    if DESCRIPTOR:
        tile = source.tensor.load([source.batch, start, source.head, 0]).reshape(ROWS, BLOCK_WIDTH)
    else:
        rows = tl.arange(0, ROWS)
        columns = tl.arange(0, BLOCK_WIDTH)
        pointers = locate_row(source, start) + offset(rows[:, None], source.strides.row) + columns[None, :]
        if BOUNDED:
            mask = (start + rows < source.length)[:, None] & (columns < WIDTH)[None, :]
            tile = tl.load(pointers, mask=mask, other=0.0)
        elif WIDTH != BLOCK_WIDTH:
            tile = tl.load(pointers, mask=(columns < WIDTH)[None, :], other=0.0)
        else:
            tile = tl.load(pointers)
    return tile


@triton.jit
def gather_rows(
    pointer, fixed, moving, present, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, PARTS: tl.constexpr = 1
):  # fmt: skip
    """Load the rows at the sums of these offsets; absent rows and padding columns are 0, and not read.

    In two PARTS, the first holds the first two columns of every four, in the order of ``packing.unpack_pairs``.
    """
    columns = tl.arange(0, BLOCK_WIDTH // PARTS)
    if PARTS == 2:
        columns = columns // 2 * 4 + columns % 2
    mask = present[:, None]
    if WIDTH != BLOCK_WIDTH:
        mask = mask & (columns < WIDTH)[None, :]
    pointers = pointer + fixed[:, None] + columns[None, :]
    if moving is not None:
        pointers += moving[:, None]
    return tl.load(pointers, mask=mask, other=0.0)
