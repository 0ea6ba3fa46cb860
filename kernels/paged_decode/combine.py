# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Merges the partial results of paged decode in Triton, in the order of the keys: the same sum in every run."""

import triton
import triton.language as tl

from autotune.kernels.flash_attention.forward import _offset
from autotune.kernels.paged_decode.softmax import finish_softmax
from autotune.kernels.paged_decode.tiles import count_list, count_tiles, share_tiles

COMBINED_AT_ONCE = tl.constexpr(32)  # partial results, whose loads wait together


@triton.jit
def _list_partials(
    seq_lens, batch, sequence, lane, lanes, programs, window,
    SEQ_Q: tl.constexpr, BLOCK_K: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Number of the first partial result of a sequence, of the second, the step to each further one, and how many.

    The schedule ``flat``: the first lies with what its program began, the others with what theirs continued. A sequence
    that one program saw whole has 1, which does not exist.
    """
    total, before = count_list(seq_lens, batch, sequence, window, SEQ_Q, BLOCK_K, WINDOW)
    share = share_tiles(total, programs)
    _, tiles = count_tiles(tl.load(seq_lens + sequence), window, SEQ_Q, BLOCK_K, WINDOW)
    first = before // share
    count = tl.where(tiles == 0, 0, (before + tiles - 1) // share - first + 1)
    return 2 * (first * lanes + lane) + 1, 2 * ((first + 1) * lanes + lane), 2 * lanes, count


_LENGTHS = ["batch", "kv_heads", "programs", "window"]


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=["seq_lens", *_LENGTHS])
def combine_partials(
    partials, statistics, seq_lens, sinks, out, lse, batch, kv_heads, programs, window,
    SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM_V: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr, WINDOW: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One program finishes one row, a query's head: ``out`` is ``[B, SEQ_Q, H, HEAD_DIM_V]``, ``lse`` fp32
    ``[B, SEQ_Q, H]``.

    SPLITS is 0 for the schedule ``flat``, under which it also writes the sequences that have no tile.
    """
    index = tl.program_id(0)
    head = index % (kv_heads * GROUP)
    query = index // (kv_heads * GROUP) % SEQ_Q
    sequence = index // (kv_heads * GROUP * SEQ_Q)
    blocks: tl.constexpr = (SEQ_Q * GROUP + BLOCK_ROWS - 1) // BLOCK_ROWS
    row = query * GROUP + head % GROUP
    lane = head // GROUP * blocks + row // BLOCK_ROWS
    if SPLITS == 0:
        number, following, step, count = _list_partials(
            seq_lens, batch, sequence, lane, blocks * kv_heads, programs, window, SEQ_Q, BLOCK_K, WINDOW
        )  # fmt: skip
        if count == 1:
            return
    else:
        number = (sequence * blocks * kv_heads + lane) * SPLITS
        following = number + 1
        step = 1
        count = SPLITS

    columns = tl.arange(0, BLOCK_DV)
    accumulator = tl.zeros([BLOCK_DV], tl.float32)
    total_max = float("-inf")
    total_sum = 0.0
    for start in range(0, count, COMBINED_AT_ONCE):
        order = start + tl.arange(0, COMBINED_AT_ONCE)
        numbers = tl.where(order == 0, number, following + (order - 1) * step)
        row_pointers = statistics + _offset(numbers, 2 * BLOCK_ROWS) + row % BLOCK_ROWS
        maxima = tl.load(row_pointers, mask=order < count, other=float("-inf"))
        sums = tl.load(row_pointers + BLOCK_ROWS, mask=order < count, other=0.0)
        new_max = tl.maximum(total_max, tl.max(maxima, 0))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(maxima - shift)
        rescale = tl.exp2(total_max - shift)
        offsets = _offset(numbers, BLOCK_ROWS * BLOCK_DV) + row % BLOCK_ROWS * BLOCK_DV
        parts = tl.load(partials + offsets[:, None] + columns[None, :], mask=(sums > 0.0)[:, None], other=0.0)
        accumulator = accumulator * rescale + tl.sum(parts * weights[:, None], 0)
        total_sum = total_sum * rescale + tl.sum(sums * weights, 0)
        total_max = new_max

    if sinks is not None:
        sinks = tl.load(sinks + head).to(tl.float32)
    factor, row_lse = finish_softmax(total_max, total_sum, sinks)
    pointers = out + _offset(index, HEAD_DIM_V) + columns
    tl.store(pointers, (accumulator * factor).to(out.dtype.element_ty), mask=columns < HEAD_DIM_V)
    if lse is not None:
        tl.store(lse + index, row_lse)
