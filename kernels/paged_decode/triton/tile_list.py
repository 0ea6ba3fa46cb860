# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The flat list of tiles of a ragged batch: how long it is, and which sequence a tile belongs to.

A sequence's tiles are those that hold a key its queries may see; the list is the sequences' tiles one after another,
and one of each sequence that has none, so that some program writes its result. No sequence has more keys than
``capacity``, its row of the page table, whatever its length says.
Every program that needs it sums the lengths itself, on the GPU: the host knows no length, and the grid depends on none.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

# Sequences that are summed at once. One size for all batches, so that all run one binary.
BATCH_BLOCK = tl.constexpr(256)


class Batch(NamedTuple):
    """Lengths of sequences, how many there are, the most keys that one may have, and the window of their queries."""

    lengths: Any
    size: Any
    capacity: Any
    window: Any


@triton.jit
def count_tiles(lengths, window, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Return first tile and number of tiles of sequences of these lengths; tiles outside every window do not count."""
    first = tl.zeros_like(lengths)
    if WINDOW:
        first = tl.maximum(lengths - TILE.queries - window + 1, 0) // TILE.tokens
    return first, tl.maximum(tl.cdiv(lengths, TILE.tokens) - first, 0)


@triton.jit
def list_tiles(lengths, window, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Count as ``count_tiles``, but in the list: one tile of a sequence that has none."""
    first, tiles = count_tiles(lengths, window, TILE, WINDOW)
    return first, tl.maximum(tiles, 1)


@triton.jit
def load_length(batch, sequence):
    """Load the length of a sequence, at most the capacity of its row of the page table."""
    return tl.minimum(tl.load(batch.lengths + sequence), batch.capacity)


@triton.jit
def _load_counts(batch, start, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Load the numbers of tiles of a block of sequences, 0 past the batch; return their indices too."""
    indices = start + tl.arange(0, BATCH_BLOCK)
    lengths = tl.minimum(tl.load(batch.lengths + indices, mask=indices < batch.size, other=0), batch.capacity)
    _, counts = list_tiles(lengths, batch.window, TILE, WINDOW)
    return indices, tl.where(indices < batch.size, counts, 0)


@triton.jit
def count_list(batch, sequence, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Return the number of tiles in the list, and of those before that sequence's own."""
    total = 0
    before = 0
    for start in range(0, batch.size, BATCH_BLOCK):
        indices, counts = _load_counts(batch, start, TILE, WINDOW)
        total += tl.sum(counts)
        before += tl.sum(tl.where(indices < sequence, counts, 0))
    return total, before


@triton.jit
def find_sequence(batch, tile, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Return the sequence that holds this tile of the list, and the number of tiles before that sequence's own."""
    sequence = 0
    before = 0
    total = 0
    for start in range(0, batch.size, BATCH_BLOCK):
        _, counts = _load_counts(batch, start, TILE, WINDOW)
        ends = total + tl.cumsum(counts)
        passed = ends <= tile  # false past the batch, where ends is the length of the list
        sequence += tl.sum(passed.to(tl.int32))
        before = tl.maximum(before, tl.max(tl.where(passed, ends, 0)))
        total += tl.sum(counts)
    return sequence, before


@triton.jit
def share_tiles(total, programs):
    """Return the tiles of each program's share of the list; the last shares may be short or empty."""
    return tl.maximum(tl.cdiv(total, programs), 1)


@triton.jit
def list_partials(batch, sequence, lane, lanes, programs, TILE: tl.constexpr, WINDOW: tl.constexpr):
    """Return the number of the first partial result of a sequence, of the second, the step after it, and how many.

    The first lies with what its program began, the others with what theirs continued. A sequence that one program saw
    whole has 1, which does not exist.
    """
    total, before = count_list(batch, sequence, TILE, WINDOW)
    _, tiles = list_tiles(load_length(batch, sequence), batch.window, TILE, WINDOW)
    share = share_tiles(total, programs)
    first = before // share
    count = (before + tiles - 1) // share - first + 1
    return 2 * (first * lanes + lane) + 1, 2 * ((first + 1) * lanes + lane), 2 * lanes, count
