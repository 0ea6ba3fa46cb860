# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Padded batches as packed sequences: which rows of each count, where they lie, and zeros in the output's others.

The numbers are int32: ``HEADER`` of them with the sizes of the batch, of which the main kernel so has no binary of its
own, and then ``[LISTS, batch + 1]``: offsets of the queries and of the keys that count, as if they were packed,
and for each sequence the first such row in memory of the queries, the output, the keys and the values, and how many
queries it would have if its last one saw its last key under a causal mask.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.flash_attention_varlen.triton.sequence_order import (
    SEQUENCES_AT_ONCE,
    Sequences,
    find_counting,
    locate_sequences,
)

HEADER = gl.constexpr(4)
LISTS = gl.constexpr(7)
KEY_OFFSETS = gl.constexpr(1)
QUERY_PLACES = gl.constexpr(2)
OUT_PLACES = gl.constexpr(3)
KEY_PLACES = gl.constexpr(4)
VALUE_PLACES = gl.constexpr(5)
ALIGNED = gl.constexpr(6)

WORDS_AT_ONCE = gl.constexpr(1024)  # of 8 bytes; eight stores of two warps
CLEARING_WARPS = gl.constexpr(2)  # one alone cannot issue stores as fast as the memory takes them
WARP_THREADS = gl.constexpr(32)

_NUMBERS = ["q_rows", "k_rows", "q_apart", "k_apart", "v_apart", "batch", "row_pairs"]
_INTEGERS = ["numbers", "q_lens", "kv_lens", "kv_starts"]


class PaddedOutput(NamedTuple):
    """Pointers to the output of a padded batch ``[B, S, H, D_v]`` in words of 8 bytes, and to its numbers."""

    words: Any
    numbers: Any


class PaddedSizes(NamedTuple):
    """Sizes of a padded batch: its sequences, the queries of each, and the pairs of words of a row of the output."""

    batch: Any
    queries: Any
    row_pairs: Any


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=[*_INTEGERS, *_NUMBERS])
def number_rows(
    numbers, q_lens, kv_lens, kv_starts, q_rows, k_rows, q_apart, k_apart, v_apart, batch, row_pairs,
    CAUSAL: tl.constexpr,
):  # fmt: skip
    """Write the numbers of all sequences, of ``q_rows`` queries and ``k_rows`` keys each, which are so many rows apart.

    Rows before the first that sees a key under a causal mask are left out, as are all of a sequence without keys.
    """
    queries_of = Sequences(None, None, q_lens, q_rows, batch)
    keys_of = Sequences(None, kv_starts, kv_lens, k_rows, batch)
    tl.store(numbers, batch)
    tl.store(numbers + 1, q_rows)
    tl.store(numbers + 2, row_pairs)
    lists = numbers + HEADER
    ahead = k_rows - q_rows
    size = batch + 1
    passed = 0
    keys_passed = 0
    for start in range(0, batch, SEQUENCES_AT_ONCE):
        sequences = start + tl.arange(0, SEQUENCES_AT_ONCE)
        present = sequences < batch
        _, rows = locate_sequences(queries_of, sequences)
        _, end = find_counting(queries_of, sequences, rows)
        _, rows = locate_sequences(keys_of, sequences)
        first_key, length = find_counting(keys_of, sequences, rows)
        first = tl.where(length > 0, 0, end)
        if CAUSAL:
            first = tl.minimum(tl.maximum(first, first_key - ahead), end)
        count = end - first
        place = lists + sequences
        tl.store(place + 1, passed + tl.cumsum(count, 0), mask=present)
        tl.store(place + KEY_OFFSETS * size + 1, keys_passed + tl.cumsum(length, 0), mask=present)
        tl.store(place + QUERY_PLACES * size, sequences * q_apart + first, mask=present)
        tl.store(place + OUT_PLACES * size, sequences * q_rows + first, mask=present)
        tl.store(place + KEY_PLACES * size, sequences * k_apart + first_key, mask=present)
        tl.store(place + VALUE_PLACES * size, sequences * v_apart + first_key, mask=present)
        tl.store(place + ALIGNED * size, length - first - ahead + first_key, mask=present)
        passed += tl.sum(count)
        keys_passed += tl.sum(length)
    tl.store(lists, 0)
    tl.store(lists + KEY_OFFSETS * size, 0)


@gluon.jit
def clear_padding(padded, log_sum_exp, sinks, heads):
    """Write what rows without a key have, into all rows of the output that do not count; two warps of each program.

    Its stores take their turns beside products, which need little of the memory's bandwidth.
    """
    sizes = PaddedSizes(gl.load(padded.numbers), gl.load(padded.numbers + 1), gl.load(padded.numbers + 2))
    lists = padded.numbers + HEADER
    for sequence in range(sizes.batch):
        number = lists + sequence
        first = sequence * sizes.queries
        counting = gl.load(number + OUT_PLACES * (sizes.batch + 1))
        end = counting + gl.load(number + 1) - gl.load(number)
        _clear_rows(padded, sizes, log_sum_exp, sinks, heads, first, counting - first)
        _clear_rows(padded, sizes, log_sum_exp, sinks, heads, end, first + sizes.queries - end)


@gluon.jit
def _clear_rows(padded, sizes, log_sum_exp, sinks, heads, row, count):
    """Clear this program's part of rows that lie side by side."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([2], [WARP_THREADS], [CLEARING_WARPS], [0])
    lanes = gl.arange(0, WORDS_AT_ONCE, LAYOUT)
    own = gl.cast(gl.program_id(0), gl.int64) * WORDS_AT_ONCE
    step = gl.cast(gl.num_programs(0), gl.int64) * WORDS_AT_ONCE
    zeros = gl.full([WORDS_AT_ONCE], 0, gl.int64, LAYOUT)
    words = gl.cast(count, gl.int64) * sizes.row_pairs * 2  # so that pairs are known to be stored at once
    begin = padded.words + gl.cast(row, gl.int64) * sizes.row_pairs * 2
    for start in range(own, words, step):
        gl.store(begin + start + lanes, zeros, mask=start + lanes < words, cache_modifier=".cs")
    if log_sum_exp is not None:
        numbers = gl.cast(count, gl.int64) * heads
        begin = log_sum_exp + gl.cast(row, gl.int64) * heads
        for start in range(own, numbers, step):
            places = start + lanes
            if sinks is None:
                values = gl.full([WORDS_AT_ONCE], float("-inf"), gl.float32, LAYOUT)
            else:
                values = gl.cast(gl.load(sinks + places % heads), gl.float32)
            gl.store(begin + places, values, mask=places < numbers)
