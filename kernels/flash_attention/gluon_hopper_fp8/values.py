# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Values of one byte as the products of warp groups read them: transposed, since those take keys side by side alone.

The keys of a block change places besides. A thread holds, of the scores of 16 keys, those of the keys 2 t, 2 t + 1,
2 t + 8 and 2 t + 9, t its place among four; as the left factor of the second product it must hold four neighbours
(PTX ISA 8.5, 9.7.15.5.1, wgmma fragments of .f32 accumulators and of .e4m3 factors). The neighbours 4 t to 4 t + 3 are
therefore those keys, and weights stay in the registers that their scores came in.
"""

import triton
import triton.language as tl

SIXTEEN = tl.constexpr(16)  # keys that change places among themselves


@triton.jit
def key_at(place):
    """Return which key of a block stands at a place of its transposed values."""
    inside = place % SIXTEEN
    return place - inside + (inside // 2 % 2) * 8 + inside // 4 * 2 + inside % 2


@triton.jit
def transpose_values(
    v, transposed, stride_batch, stride_key, stride_head, kv_heads, seq_kv, blocks, WIDTH: tl.constexpr,
    PADDED: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write values ``[B, S, H, D]`` as ``[B, H, blocks, D, BLOCK_K]``, bytes as they are; 0 for keys past the last.

    A program writes one block of keys of one head.
    """
    number = tl.program_id(0)
    block = number % blocks
    head = number // blocks % kv_heads
    batch = number // (blocks * kv_heads)
    places = tl.arange(0, BLOCK_K)
    columns = tl.arange(0, PADDED)
    keys = block * BLOCK_K + key_at(places)
    first = tl.cast(batch, tl.int64) * stride_batch + tl.cast(head, tl.int64) * stride_head
    offsets = first + tl.cast(keys, tl.int64)[:, None] * stride_key + columns[None, :]
    is_column = columns < WIDTH
    tile = tl.load(v + offsets, mask=(keys < seq_kv)[:, None] & is_column[None, :], other=0)
    target = tl.cast(number, tl.int64) * (WIDTH * BLOCK_K) + columns[:, None] * BLOCK_K + places[None, :]
    tl.store(transposed + target, tl.trans(tile), mask=is_column[:, None])
