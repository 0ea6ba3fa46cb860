# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The order in which the tiles of sequences are computed, found by each program from offsets and lengths alone."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.rows import offset

# Sequences that a program looks at together. One size for all batches, so that all run one binary.
SEQUENCES_AT_ONCE = tl.constexpr(256)


class Tile(NamedTuple):
    """A tile is a block of rows of one sequence and one KV head, row ``i * group + g`` being query i of its head g, and
    goes over the keys block by block."""

    group: int
    rows: int
    keys: int


class Sequences(NamedTuple):
    """Places of the queries of each of ``batch`` sequences, or its keys: ``rows`` packed ones, of sequence i those from
    ``offsets[i]`` to ``offsets[i + 1]``; of a padded batch, whose ``offsets`` are None, ``rows`` of its own.

    Of a sequence's rows those from ``starts[i]`` to ``lens[i]`` count; None stands for its first and for its end.
    """

    offsets: Any
    starts: Any
    lens: Any
    rows: Any
    batch: Any


@triton.jit
def locate_sequences(of, sequences):
    """Return the first row of each of these sequences, and how many it has, whatever the offsets say: no row past the
    last, and none of a sequence that the batch has not."""
    present = sequences < of.batch
    if of.offsets is None:
        begin = sequences * 0
        count = tl.where(present, of.rows, 0)
    else:
        begin = tl.load(of.offsets + sequences, mask=present, other=0)
        end = tl.load(of.offsets + sequences + 1, mask=present, other=0)
        begin = tl.minimum(tl.maximum(begin, 0), of.rows)
        count = tl.maximum(tl.minimum(end, of.rows) - begin, 0)
    return begin, count


@triton.jit
def find_counting(of, sequences, count):
    """Return how many of the ``count`` rows of these sequences do not count at first, and how many then do, whatever
    ``starts`` and ``lens`` say."""
    present = sequences < of.batch
    skipped = count * 0
    end = count
    if of.lens is not None:
        end = tl.minimum(tl.maximum(tl.load(of.lens + sequences, mask=present, other=0), 0), count)
    if of.starts is not None:
        skipped = tl.minimum(tl.maximum(tl.load(of.starts + sequences, mask=present, other=0), 0), end)
    return skipped, end - skipped


@triton.jit
def _first_slot(begin, sequence, TILE: tl.constexpr):
    """Return the slot of a sequence's first tile, given the number of queries before it.

    A sequence of n rows has ``cdiv(n, TILE.rows)`` tiles, and this gives it that many slots, or one more, from the
    packed queries' offsets alone: no program sums the tiles of the sequences before its own.
    """
    return (offset(begin, TILE.group) // TILE.rows).to(tl.int32) + sequence


@triton.jit
def find_packed(queries_of, slot, TILE: tl.constexpr):
    """Return the sequence that this slot belongs to as they lie in memory, and how many of its tiles come before.

    There may be no such tile.
    """
    if queries_of.offsets is None:
        tiles = tl.cdiv(queries_of.rows * TILE.group, TILE.rows)
        sequence = slot // tiles
        behind = slot % tiles
    else:
        passed = 0
        for start in range(0, queries_of.batch, SEQUENCES_AT_ONCE):
            sequences = start + tl.arange(0, SEQUENCES_AT_ONCE)
            begins, _ = locate_sequences(queries_of, sequences)
            is_passed = (_first_slot(begins, sequences, TILE) <= slot) & (sequences < queries_of.batch)
            passed += tl.sum(is_passed.to(tl.int32))
        sequence = tl.maximum(passed - 1, 0)  # of a slot before all, where offsets begin behind 0
        begin, _ = locate_sequences(queries_of, sequence)
        behind = slot - _first_slot(begin, sequence, TILE)
    return sequence, behind


@triton.jit
def _measure_sequences(queries_of, keys_of, sequences, TILE: tl.constexpr):
    """Return the tiles of these sequences, and the blocks of keys that each may go over."""
    _, queries = locate_sequences(queries_of, sequences)
    _, keys = locate_sequences(keys_of, sequences)
    _, keys = find_counting(keys_of, sequences, keys)
    return tl.cdiv(queries * TILE.group, TILE.rows), tl.cdiv(keys, TILE.keys)


@triton.jit
def _count_tiles(queries_of, keys_of, least, TILE: tl.constexpr):
    """Count the tiles of sequences that have at least so many blocks of keys."""
    count = 0
    for start in range(0, queries_of.batch, SEQUENCES_AT_ONCE):
        sequences = start + tl.arange(0, SEQUENCES_AT_ONCE)
        tiles, blocks = _measure_sequences(queries_of, keys_of, sequences, TILE)
        count += tl.sum(tl.where(blocks >= least, tiles, 0))
    return count


@triton.jit
def find_longest(queries_of, keys_of, slot, TILE: tl.constexpr):
    """Return the sequence that this slot belongs to when those of the most blocks of keys come first, and how many of
    its tiles come before; -1 of a slot without a tile.

    The number of its blocks is found by bisection, each step of which counts the tiles of longer sequences: a dozen
    passes over offsets that lie in the cache, and nothing has to be sorted or launched before.
    """
    low = 0
    high = tl.cdiv(keys_of.rows, TILE.keys) + 1  # more blocks than any sequence has
    before = 0  # tiles of sequences that have at least ``high`` blocks
    while high - low > 1:
        middle = (low + high) // 2
        count = _count_tiles(queries_of, keys_of, middle, TILE)
        is_shorter = count <= slot
        low = tl.where(is_shorter, low, middle)
        high = tl.where(is_shorter, middle, high)
        before = tl.where(is_shorter, count, before)
    rest = slot - before  # among the tiles of sequences of exactly ``low`` blocks
    passed = 0
    sequence = 0
    behind = -1
    for start in range(0, queries_of.batch, SEQUENCES_AT_ONCE):
        sequences = start + tl.arange(0, SEQUENCES_AT_ONCE)
        tiles, blocks = _measure_sequences(queries_of, keys_of, sequences, TILE)
        tiles = tl.where(blocks == low, tiles, 0)
        ends = passed + tl.cumsum(tiles, 0)
        is_found = (ends > rest) & (ends - tiles <= rest)
        sequence += tl.sum(tl.where(is_found, sequences, 0))
        behind += tl.sum(tl.where(is_found, rest - ends + tiles + 1, 0))
        passed += tl.sum(tiles)
    return sequence, behind
