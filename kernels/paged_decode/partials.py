# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Partial results of paged decode in Triton: leaving them, counting them, merging them always in the same order.

A partial result is the softmax state of one block of rows over some tiles of a sequence. In fp32 its accumulator is
kept as it is; in 16 bits it is divided by its sum first, and so is no larger than the values it averages.
"""

import triton
import triton.language as tl

from autotune.kernels.flash_attention.forward import _offset
from autotune.kernels.paged_decode.softmax import finish_softmax
from autotune.kernels.paged_decode.tiles import count_list, list_tiles, share_tiles


@triton.jit
def store_output(
    out, lse, sinks, accumulator, row_max, row_sum, sequence, kv_head, first_row, kv_heads,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM_V: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """Finish ROWS rows of HEADS KV heads, whose keys were all seen: ``out [B, SEQ_Q, H, HEAD_DIM_V]`` and ``lse``."""
    rows = first_row + tl.arange(0, ROWS)
    is_row = rows < HEADS * SEQ_Q * GROUP
    heads = (kv_head + rows // (SEQ_Q * GROUP)) * GROUP + rows % GROUP
    if sinks is not None:
        sinks = tl.load(sinks + heads, mask=is_row, other=0.0).to(tl.float32)
    factor, row_lse = finish_softmax(row_max, row_sum, sinks)
    indices = _offset(sequence * SEQ_Q + rows // GROUP % SEQ_Q, kv_heads * GROUP) + heads
    columns = tl.arange(0, BLOCK_DV)
    pointers = out + _offset(indices[:, None], HEAD_DIM_V) + columns[None, :]
    values = (accumulator * factor[:, None]).to(out.dtype.element_ty)
    tl.store(pointers, values, mask=is_row[:, None] & (columns < HEAD_DIM_V)[None, :])
    if lse is not None:
        tl.store(lse + indices, row_lse, mask=is_row)


@triton.jit
def store_partial(
    partials, statistics, index, accumulator, row_max, row_sum,
    BLOCK_DV: tl.constexpr, BLOCK_ROWS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Leave a block's softmax state; padding rows, past ROWS, and rows that saw no key leave no accumulator.

    The sum of those is 0; one that NaN went into is not, and may be below it.
    """
    rows = tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_DV)
    statistics += _offset(index, 2 * BLOCK_ROWS)
    tl.store(statistics + rows, row_max)
    tl.store(statistics + BLOCK_ROWS + rows, row_sum)
    if partials.dtype.element_ty != tl.float32:
        accumulator /= tl.where(row_sum != 0.0, row_sum, 1.0)[:, None]
    pointers = partials + _offset(index, BLOCK_ROWS * BLOCK_DV) + rows[:, None] * BLOCK_DV + columns[None, :]
    tl.store(pointers, accumulator.to(partials.dtype.element_ty), mask=((row_sum != 0.0) & (rows < ROWS))[:, None])


@triton.jit
def arrive(counter, count):
    """Whether this program is the last of ``count`` that come here; what they stored before is then visible to it.

    The counter must be 0 before the first comes and is 0 again after the last.
    """
    tl.debug_barrier()  # what all threads stored comes before the one atomic operation
    is_last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") == count - 1
    if is_last:
        tl.store(counter, 0)
    return is_last


@triton.jit
def list_partials(
    seq_lens, batch, sequence, lane, lanes, programs, capacity, window,
    SEQ_Q: tl.constexpr, BLOCK_K: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Number of the first partial result of a sequence, of the second, the step to each further one, and how many.

    The schedule ``flat``: the first lies with what its program began, the others with what theirs continued. A sequence
    that one program saw whole has 1, which does not exist.
    """
    total, before = count_list(seq_lens, batch, sequence, capacity, window, SEQ_Q, BLOCK_K, WINDOW)
    length = tl.minimum(tl.load(seq_lens + sequence), capacity)
    _, tiles = list_tiles(length, window, SEQ_Q, BLOCK_K, WINDOW)
    share = share_tiles(total, programs)
    first = before // share
    count = (before + tiles - 1) // share - first + 1
    return 2 * (first * lanes + lane) + 1, 2 * ((first + 1) * lanes + lane), 2 * lanes, count


@triton.jit
def merge_partials(
    partials, statistics, number, following, step, count, first_row,
    ROWS: tl.constexpr, BLOCK_ROWS: tl.constexpr, BLOCK_DV: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """The softmax state of ROWS rows of a block over all of its ``count`` partial results, always in the same order.

    The loads of AT_ONCE, a power of two, wait together; where they are fewer, the rest is instructions in vain.
    """
    rows = first_row + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_DV)
    accumulator = tl.zeros([ROWS, BLOCK_DV], tl.float32)
    row_max = tl.full([ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    for start in range(0, count, AT_ONCE):
        order = start + tl.arange(0, AT_ONCE)
        numbers = tl.where(order == 0, number, following + (order - 1) * step)
        present = (order < count)[:, None]
        row_pointers = statistics + _offset(numbers, 2 * BLOCK_ROWS)[:, None] + rows[None, :]
        maxima = tl.load(row_pointers, mask=present, other=float("-inf"))
        sums = tl.load(row_pointers + BLOCK_ROWS, mask=present, other=0.0)
        offsets = _offset(numbers, BLOCK_ROWS * BLOCK_DV)[:, None] + rows[None, :] * BLOCK_DV
        parts = tl.load(
            partials + offsets[:, :, None] + columns[None, None, :], mask=present[:, :, None], other=0.0
        ).to(tl.float32)  # fmt: skip
        new_max = tl.maximum(row_max, tl.max(maxima, 0))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(maxima - shift[None, :])
        rescale = tl.exp2(row_max - shift)
        row_sum = row_sum * rescale + tl.sum(sums * weights, 0)
        if partials.dtype.element_ty != tl.float32:
            weights *= sums
        # The loads do not wait for the sums; what a row without a key did not store is not read into the result.
        parts = tl.where((sums != 0.0)[:, :, None], parts, 0.0)
        accumulator = accumulator * rescale[:, None] + tl.sum(parts * weights[:, :, None], 0)
        row_max = new_max
    return accumulator, row_max, row_sum
