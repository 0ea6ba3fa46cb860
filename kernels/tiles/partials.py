# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Partial results of attention: leaving them, counting them, merging them always in the same order.

A partial result is the softmax of one block of rows over some tiles of a sequence. In fp32 its accumulator is kept as
it is; in 16 bits it is divided by its sum first, and so is no larger than the values it averages.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.rows import offset
from autotune.kernels.tiles.softmax import State, begin_state, shift_of


class Partials(NamedTuple):
    """Room for partial results: ``accumulators [count, BLOCK_ROWS, BLOCK_WIDTH]``, ``statistics`` fp32 ``[count, 2,
    BLOCK_ROWS]`` of maxima and sums, and counters of those that arrived, or None where another kernel merges."""

    accumulators: Any
    statistics: Any
    counters: Any = None


@triton.jit
def store_partial(
    partials, index, state, BLOCK_WIDTH: tl.constexpr, BLOCK_ROWS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """Store a block's softmax; padding rows, past ROWS, and rows that saw no key store no accumulator.

    The sum of those is 0; one that NaN went into is not, and may be below it.
    """
    row_sum = state.row_sum
    rows = tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_WIDTH)
    statistics = partials.statistics + offset(index, 2 * BLOCK_ROWS)
    tl.store(statistics + rows, state.row_max)
    tl.store(statistics + BLOCK_ROWS + rows, row_sum)
    accumulator = state.accumulator
    if partials.accumulators.dtype.element_ty != tl.float32:
        accumulator /= tl.where(row_sum != 0.0, row_sum, 1.0)[:, None]
    pointers = (
        partials.accumulators + offset(index, BLOCK_ROWS * BLOCK_WIDTH) + rows[:, None] * BLOCK_WIDTH + columns[None, :]
    )
    is_seen = ((row_sum != 0.0) & (rows < ROWS))[:, None]
    tl.store(pointers, accumulator.to(partials.accumulators.dtype.element_ty), mask=is_seen)


@triton.jit
def arrive(counter, count):
    """Return if this program is the last of ``count`` to arrive; what they stored before is then visible to it.

    The counter must be 0 before the first arrives and is 0 again after the last.
    """
    tl.debug_barrier()  # what all threads stored comes before the one atomic operation
    is_last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == count - 1
    if is_last:
        tl.store(counter, 0)
    return is_last


@triton.jit
def merge_partials(
    partials, number, following, step, count, first_row,
    ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_WIDTH: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Return the softmax of ROWS rows of a block over all of its ``count`` partial results, in a fixed order.

    They are ``number``, ``following``, ``following + step`` and so on. The loads of AT_ONCE, a power of two, wait
    together; where there are fewer, the rest is instructions in vain.
    """
    rows = first_row + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_WIDTH)
    state = begin_state(ROWS, BLOCK_WIDTH)
    for start in range(0, count, AT_ONCE):
        order = start + tl.arange(0, AT_ONCE)
        numbers = tl.where(order == 0, number, following + (order - 1) * step)
        present = (order < count)[:, None]
        row_pointers = partials.statistics + offset(numbers, 2 * BLOCK_ROWS)[:, None] + rows[None, :]
        maxima = tl.load(row_pointers, mask=present, other=float("-inf"))
        sums = tl.load(row_pointers + BLOCK_ROWS, mask=present, other=0.0)
        offsets = offset(numbers, BLOCK_ROWS * BLOCK_WIDTH)[:, None] + rows[None, :] * BLOCK_WIDTH
        parts = tl.load(
            partials.accumulators + offsets[:, :, None] + columns[None, None, :], mask=present[:, :, None], other=0.0
        ).to(tl.float32)  # fmt: skip
        row_max = tl.maximum(state.row_max, tl.max(maxima, 0))
        shift = shift_of(row_max)
        weights = tl.exp2(maxima - shift[None, :])
        rescale = tl.exp2(state.row_max - shift)
        row_sum = state.row_sum * rescale + tl.sum(sums * weights, 0)
        if partials.accumulators.dtype.element_ty != tl.float32:
            weights *= sums
        # The loads do not wait for the sums; what a row without a key did not store is not read into the result.
        parts = tl.where((sums != 0.0)[:, :, None], parts, 0.0)
        accumulator = state.accumulator * rescale[:, None] + tl.sum(parts * weights[:, :, None], 0)
        state = State(accumulator, row_max, row_sum)
    return state
