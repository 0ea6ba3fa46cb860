# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The second kernel of paged decode in Triton: merges partial results, a row a program."""

import triton
import triton.language as tl

from autotune.kernels.paged_decode.early import let_next_come, wait_for_previous
from autotune.kernels.paged_decode.partials import list_partials, merge_partials, store_output

_LENGTHS = ["capacity", "batch", "kv_heads", "programs", "window"]


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=["seq_lens", *_LENGTHS])
def combine_partials(
    partials, statistics, seq_lens, sinks, out, lse, capacity, batch, kv_heads, programs, window,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM_V: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, TOKENS: tl.constexpr, WINDOW: tl.constexpr, HEADS: tl.constexpr, SPLITS: tl.constexpr,
    AT_ONCE: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program finishes one row, a query's head: ``out`` is ``[B, SEQ_Q, H, HEAD_DIM_V]``, ``lse`` fp32
    ``[B, SEQ_Q, H]``.

    SPLITS is 0 for the schedule ``flat``.
    """
    index = tl.program_id(0)
    rows: tl.constexpr = HEADS * SEQ_Q * GROUP
    blocks: tl.constexpr = (rows + BLOCK_ROWS - 1) // BLOCK_ROWS
    tiled_heads = kv_heads // HEADS
    row = index % rows
    kv_head = index // rows % tiled_heads * HEADS
    sequence = index // (rows * tiled_heads)
    lanes = tiled_heads * blocks
    lane = kv_head // HEADS * blocks + row // BLOCK_ROWS
    number = (sequence * lanes + lane) * SPLITS
    following = number + 1
    step = 1
    count = SPLITS
    if SPLITS == 0:
        number, following, step, count = list_partials(
            seq_lens, batch, sequence, lane, lanes, programs, capacity, window, SEQ_Q, TOKENS, WINDOW
        )  # fmt: skip
    if EARLY:  # by every program: the next kernel takes the end of this one for that of the first
        wait_for_previous()
    if SPLITS == 0 and count == 1:
        return
    accumulator, row_max, row_sum = merge_partials(
        partials, statistics, number, following, step, count, row % BLOCK_ROWS, 1, BLOCK_ROWS, BLOCK_DV, AT_ONCE
    )  # fmt: skip
    # Not before: programs of the next kernel that came at once cost up to 2 us (NVIDIA H200, 2026-11-21, batch 1).
    if EARLY:
        let_next_come()
    store_output(
        out, lse, sinks, accumulator, row_max, row_sum, sequence, kv_head, row, kv_heads,
        SEQ_Q, GROUP, HEAD_DIM_V, BLOCK_DV, 1, HEADS,
    )  # fmt: skip
