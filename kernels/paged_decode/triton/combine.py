# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The second kernel of paged decode: merges partial results, a row a program."""

import triton
import triton.language as tl

from autotune.kernels.paged_decode.triton.forward import let_next_begin, store_rows, wait_for_previous
from autotune.kernels.paged_decode.triton.tile_list import Batch, list_partials
from autotune.kernels.tiles.partials import merge_partials

_LENGTHS = ["capacity", "batch_size", "kv_heads", "programs", "window"]


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=["seq_lens", *_LENGTHS])
def combine_partials(
    partials, seq_lens, sinks, outputs, capacity, batch_size, kv_heads, programs, window,
    TILE: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, SPLITS: tl.constexpr, AT_ONCE: tl.constexpr,
    WINDOW: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Finish one row a program, a query's head: ``out [B, S_q, H, D_v]`` and ``log_sum_exp [B, S_q, H]``.

    SPLITS is 0 for the schedule ``flat``.
    """
    index = tl.program_id(0)
    blocks: tl.constexpr = (TILE.used_rows + TILE.rows - 1) // TILE.rows
    tiled_heads = kv_heads // TILE.heads
    row = index % TILE.used_rows
    kv_head = index // TILE.used_rows % tiled_heads * TILE.heads
    sequence = index // (TILE.used_rows * tiled_heads)
    lanes = tiled_heads * blocks
    lane = kv_head // TILE.heads * blocks + row // TILE.rows
    number = (sequence * lanes + lane) * SPLITS
    following = number + 1
    step = 1
    count = SPLITS
    if SPLITS == 0:
        batch = Batch(seq_lens, batch_size, capacity, window)
        number, following, step, count = list_partials(batch, sequence, lane, lanes, programs, TILE, WINDOW)
    if EARLY:  # by every program: the next kernel takes the end of this one for that of the first
        wait_for_previous()
    if SPLITS == 0 and count == 1:
        return
    state = merge_partials(
        partials, number, following, step, count, row % TILE.rows, 1, TILE.rows, BLOCK_WIDTH, AT_ONCE
    )
    # Not before: programs of the next kernel that began at once cost up to 2 us (NVIDIA H200, 2026-11-21, batch 1).
    if EARLY:
        let_next_begin()
    store_rows(outputs, sinks, state, sequence, kv_head, row, kv_heads, 1, TILE, WIDTH, BLOCK_WIDTH)
