# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The work of a program: which tiles of queries it computes, in what order, and which blocks of keys each sees."""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.tiles import masks
from autotune.kernels.tiles.masks import Bounds

bound_keys = gluon.jit(masks.bound_keys.fn)


class Features(NamedTuple):
    """The features of a problem that a binary is compiled for."""

    causal: bool
    window: bool
    softcap: bool
    key_parts: int  # of the columns of queries and keys, each a product of its own


class WarpSchedule(NamedTuple):
    """The parameters of a config.

    Consumers have 64 rows of queries each. With ``ping_pong`` they take turns: the next may issue its scores once this
    one has issued its own. With ``values_early`` the values of the last block are multiplied while the scores still
    are. The queries of ``query_slots`` tiles are held at once. With ``out_in_queries`` a tile's results leave through
    the memory of its queries, which are no narrower.
    """

    consumers: int
    block_k: int
    slots: int
    query_slots: int
    registers: int
    ping_pong: bool
    values_early: bool
    out_in_queries: bool


class Numbers(NamedTuple):
    """The numbers of a problem: no binary of its own for any of them.

    Tiles come by sections of so many heads: the same rows of each of its heads, then the next rows. ``flips`` is 1
    where even heads begin with their last rows, plus 2 where odd ones do.
    """

    heads: Any
    group: Any
    seq_q: Any
    seq_kv: Any
    window: Any
    score_scale: Any
    softcap: Any
    tiles: Any
    section: Any
    flips: Any


class Tile(NamedTuple):
    """A tile of queries: its sequence, its head and its first row."""

    batch: Any
    head: Any
    row: Any


@gluon.jit
def locate_tile(number, numbers, BLOCK_Q: gl.constexpr):
    """Return the tile of a number below ``numbers.tiles``."""
    blocks = gl.cdiv(numbers.seq_q, BLOCK_Q)
    first = number // (numbers.section * blocks) * numbers.section
    heads = gl.minimum(numbers.section, numbers.tiles // blocks - first)
    inside = number - first * blocks
    head = first + inside % heads
    block = inside // heads
    is_flipped = (numbers.flips >> (head % 2)) & 1
    block += is_flipped * (blocks - 1 - 2 * block)
    return Tile(head // numbers.heads, head % numbers.heads, block * BLOCK_Q)


@gluon.jit
def block_bounds(row, numbers, BLOCK_Q: gl.constexpr, BLOCK_K: gl.constexpr, FEATURES: gl.constexpr):
    """Return the bounds of the keys that a tile sees, in blocks, rounded outward and inward (``masks.Bounds``).

    There is one block at least, which rows that see nothing mask. ``low <= full_low <= full_high <= high``.
    """
    CAUSAL: gl.constexpr = FEATURES.causal
    WINDOW: gl.constexpr = FEATURES.window
    last_row = gl.minimum(row + BLOCK_Q, numbers.seq_q) - 1
    diagonal = numbers.seq_kv - numbers.seq_q
    keys = bound_keys(row, last_row, diagonal, numbers.seq_kv, numbers.window, CAUSAL, WINDOW)
    low = gl.minimum(keys.low // BLOCK_K, gl.maximum(gl.cdiv(keys.high, BLOCK_K) - 1, 0))
    high = gl.maximum(gl.cdiv(keys.high, BLOCK_K), low + 1)
    full_low = gl.minimum(gl.maximum(gl.cdiv(keys.full_low, BLOCK_K), low), high)
    full_high = gl.minimum(gl.maximum(gl.maximum(keys.full_high, 0) // BLOCK_K, full_low), high)
    return Bounds(low, full_low, full_high, high)


@gluon.jit
def block_bounds_of(
    row, tile, numbers, ROWS: gl.constexpr, BLOCK_K: gl.constexpr, CONSUMERS: gl.constexpr, FEATURES: gl.constexpr
):  # fmt: skip
    """Return the bounds of the keys that one consumer's rows see, within those of its tile; one block at least."""
    bounds = tile
    if CONSUMERS > 1 and (FEATURES.causal or FEATURES.window):
        own = block_bounds(row, numbers, ROWS, BLOCK_K, FEATURES)
        high = gl.maximum(gl.minimum(own.high, tile.high), tile.low + 1)
        low = gl.maximum(gl.minimum(own.low, high - 1), tile.low)
        full_high = gl.maximum(gl.minimum(own.full_high, high), low)
        bounds = Bounds(low, gl.maximum(gl.minimum(own.full_low, full_high), low), full_high, high)
    return bounds
