# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The flat list of tiles of a ragged batch, in Triton: how long it is, and whose a tile is.

A sequence's tiles are those that hold a key its queries may see; the list is the sequences' tiles one after another,
and one of each sequence that has none, so that somebody writes its result. No sequence has more keys than ``capacity``,
its row of the page table, whatever its length says.
Every program that needs it sums the lengths itself, on the GPU: the host knows no length, and the grid depends on none.
"""

import triton
import triton.language as tl

# Sequences that are summed at once. One size for all batches, so that all run one binary.
BATCH_BLOCK = tl.constexpr(256)


@triton.jit
def count_tiles(lengths, window, SEQ_Q: tl.constexpr, BLOCK_K: tl.constexpr, WINDOW: tl.constexpr):
    """First tile and number of tiles of sequences of these lengths; tiles that lie outside every window are none."""
    first = tl.zeros_like(lengths)
    if WINDOW:
        first = tl.maximum(lengths - SEQ_Q - window + 1, 0) // BLOCK_K
    return first, tl.maximum(tl.cdiv(lengths, BLOCK_K) - first, 0)


@triton.jit
def list_tiles(lengths, window, SEQ_Q: tl.constexpr, BLOCK_K: tl.constexpr, WINDOW: tl.constexpr):
    """As ``count_tiles``, but in the list: one tile of a sequence that has none."""
    first, tiles = count_tiles(lengths, window, SEQ_Q, BLOCK_K, WINDOW)
    return first, tl.maximum(tiles, 1)


@triton.jit
def _load_counts(
    seq_lens, start, batch, capacity, window, SEQ_Q: tl.constexpr, BLOCK_K: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """The indices of a block of sequences and their numbers of tiles, 0 past the batch."""
    indices = start + tl.arange(0, BATCH_BLOCK)
    lengths = tl.minimum(tl.load(seq_lens + indices, mask=indices < batch, other=0), capacity)
    _, counts = list_tiles(lengths, window, SEQ_Q, BLOCK_K, WINDOW)
    return indices, tl.where(indices < batch, counts, 0)


@triton.jit
def count_list(
    seq_lens, batch, sequence, capacity, window, SEQ_Q: tl.constexpr, BLOCK_K: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """The number of tiles in the list, and of those before that sequence's own."""
    total = 0
    before = 0
    for start in range(0, batch, BATCH_BLOCK):
        indices, counts = _load_counts(seq_lens, start, batch, capacity, window, SEQ_Q, BLOCK_K, WINDOW)
        total += tl.sum(counts)
        before += tl.sum(tl.where(indices < sequence, counts, 0))
    return total, before


@triton.jit
def find_sequence(
    seq_lens, batch, tile, capacity, window, SEQ_Q: tl.constexpr, BLOCK_K: tl.constexpr, WINDOW: tl.constexpr
):  # fmt: skip
    """The sequence that holds this tile of the list, and the number of tiles before that sequence's own."""
    sequence = 0
    before = 0
    total = 0
    for start in range(0, batch, BATCH_BLOCK):
        _, counts = _load_counts(seq_lens, start, batch, capacity, window, SEQ_Q, BLOCK_K, WINDOW)
        ends = total + tl.cumsum(counts)
        passed = ends <= tile  # false past the batch, where ends is the length of the list
        sequence += tl.sum(passed.to(tl.int32))
        before = tl.maximum(before, tl.max(tl.where(passed, ends, 0)))
        total += tl.sum(counts)
    return sequence, before


@triton.jit
def share_tiles(total, programs):
    """Tiles of each program's share of the list; the last shares may be short or empty."""
    return tl.maximum(tl.cdiv(total, programs), 1)
