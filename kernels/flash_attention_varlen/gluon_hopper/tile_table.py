# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The table of tiles: a kernel in Triton finds each tile's sequence once, and every warp of the main kernel reads it.

The table is int32, by rows of ``COLUMNS``: the first begins with the number of tiles, and the others are theirs, in the
order in which they are computed.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.flash_attention_varlen.gluon_hopper.padded_rows import (
    ALIGNED,
    HEADER,
    KEY_OFFSETS,
    KEY_PLACES,
    OUT_PLACES,
    QUERY_PLACES,
    VALUE_PLACES,
)
from autotune.kernels.flash_attention_varlen.triton.sequence_order import (
    SEQUENCES_AT_ONCE,
    Sequences,
    find_counting,
    find_longest,
    locate_sequences,
)

COLUMNS = gl.constexpr(8)


class PackedTile(NamedTuple):
    """A tile of queries of one head: its first row, counted in its sequence, and the packed rows of the sequence.

    It has ``count`` queries from ``begin`` on, of which ``used`` count, and ``length`` keys from ``first_key`` on. Its
    output begins at ``out_begin`` and its values at ``first_value``, which are others in a padded batch alone; all its
    queries count, and ``used`` is how many they would be if the last one saw the last key under a causal mask.
    """

    head: Any
    row: Any
    begin: Any
    count: Any
    used: Any
    first_key: Any
    length: Any
    out_begin: Any
    first_value: Any


@triton.jit
def _find_in_order(queries_of, slot, TILE: tl.constexpr):
    """Return the sequence of the tile of a slot, as sequences are packed, how many of its tiles come before (-1 where
    the slot has none), and how many tiles there are in all."""
    passed = 0
    sequence = 0
    behind = -1
    for start in range(0, queries_of.batch, SEQUENCES_AT_ONCE):
        sequences = start + tl.arange(0, SEQUENCES_AT_ONCE)
        _, counts = locate_sequences(queries_of, sequences)
        tiles = tl.cdiv(counts, TILE.rows)
        ends = passed + tl.cumsum(tiles, 0)
        is_found = (ends > slot) & (ends - tiles <= slot)
        sequence += tl.sum(tl.where(is_found, sequences, 0))
        behind += tl.sum(tl.where(is_found, slot - ends + tiles + 1, 0))
        passed += tl.sum(tiles)
    return sequence, behind, passed


_NUMBERS = ["tokens", "key_tokens", "batch"]
_INTEGERS = ["table", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "numbers"]


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=[*_INTEGERS, *_NUMBERS])
def write_tiles(
    table, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, numbers, tokens, key_tokens, batch,
    TILE: tl.constexpr, LONGEST: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write the row of one slot a program; there are as many slots as any division of the queries has tiles, at least.

    With LONGEST the sequences of the most blocks of keys come first, else they come as they are packed. Of a sequence
    the last tile comes first: under a causal mask it sees the most keys. ``numbers`` are those of a padded batch
    (``padded_rows.number_rows``), whose offsets are there, or None.
    """
    slot = tl.program_id(0)
    if numbers is not None:
        numbers += HEADER
        cu_seqlens_q = numbers
        cu_seqlens_k = numbers + KEY_OFFSETS * (batch + 1)
    queries_of = Sequences(cu_seqlens_q, None, seqused_q, tokens, batch)
    keys_of = Sequences(cu_seqlens_k, None, seqused_k, key_tokens, batch)
    if LONGEST:
        sequence, behind = find_longest(queries_of, keys_of, slot, TILE)
        tiles = 0
        if slot == 0:  # others have no use for the number
            _, _, tiles = _find_in_order(queries_of, slot, TILE)
    else:
        sequence, behind, tiles = _find_in_order(queries_of, slot, TILE)
    if slot == 0:
        tl.store(table, tl.minimum(tiles, tl.num_programs(0)))  # whatever the offsets say
    begin, count = locate_sequences(queries_of, sequence)
    _, counting = find_counting(queries_of, sequence, count)
    used = counting
    first_key, length = locate_sequences(keys_of, sequence)
    _, length = find_counting(keys_of, sequence, length)
    row = (tl.cdiv(count, TILE.rows) - 1 - behind) * TILE.rows
    if behind >= 0:
        place = table + (slot + 1) * COLUMNS
        if numbers is not None:
            number = numbers + sequence
            size = batch + 1
            begin = tl.load(number + QUERY_PLACES * size)
            used = tl.load(number + ALIGNED * size)
            first_key = tl.load(number + KEY_PLACES * size)
            tl.store(place + 6, tl.load(number + OUT_PLACES * size))
            tl.store(place + 7, tl.load(number + VALUE_PLACES * size))
        tl.store(place, row)
        tl.store(place + 1, begin)
        tl.store(place + 2, count)
        tl.store(place + 3, used)
        tl.store(place + 4, first_key)
        tl.store(place + 5, tl.where(row < counting, length, 0))  # a tile of queries that do not count sees no key


@gluon.jit
def count_tiles(table, heads):
    """Return how many tiles there are of all heads."""
    return gl.load(table) * heads


@gluon.jit
def read_tile(table, number, tiles, heads, HEADS_TOGETHER: gl.constexpr, PADDED: gl.constexpr):
    """Return the tile of a number below ``tiles``: the heads of a row of the table follow one another, or its rows."""
    if HEADS_TOGETHER:
        slot = number // heads
        head = number % heads
    else:
        slots = gl.maximum(tiles // heads, 1)
        slot = number % slots
        head = number // slots
    place = table + (slot + 1) * COLUMNS
    row = gl.load(place)
    begin = gl.load(place + 1)
    count = gl.load(place + 2)
    used = gl.load(place + 3)
    first_key = gl.load(place + 4)
    length = gl.load(place + 5)
    out_begin = gl.load(place + 6) if PADDED else begin
    first_value = gl.load(place + 7) if PADDED else first_key
    return PackedTile(head, row, begin, count, used, first_key, length, out_begin, first_value)
