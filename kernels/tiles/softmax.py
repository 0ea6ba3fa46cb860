# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""From scores to weights: the softcap of Gemma 2 (arXiv 2408.00118), and the online softmax of rows, in base 2 (Milakov
and Gimelshein, arXiv 1805.02867)."""

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.precision import product_precision

LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2.0))


class State(NamedTuple):
    """The softmax of rows over the keys seen so far: weighted values, maximum score, sum of weights."""

    accumulator: Any
    row_max: Any
    row_sum: Any


@triton.jit
def cap_scores(scores, softcap, PRECISE: tl.constexpr):
    """Return ``softcap * tanh(scores)`` for scores that were divided by the softcap."""
    return softcap * tanh(scores, PRECISE)


@triton.jit
def tanh(x, PRECISE: tl.constexpr):
    """Compute tanh by exp2, which Triton has on every backend; PRECISE adds a series near 0, where 1 - exp cancels."""
    decay = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))  # exp(-2 |x|)
    magnitude = (1.0 - decay) / (1.0 + decay)
    result = tl.where(x < 0, -magnitude, magnitude)
    if PRECISE:
        square = x * x
        series = x * (
            1.0 + square * (-0.33333333 + square * (0.13333333 + square * (-0.053968254 + square * 0.021869488)))
        )
        result = tl.where(square < 0.09, series, result)
    return result


@triton.jit
def begin_state(ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return the state of rows that have seen no key."""
    accumulator = tl.zeros([ROWS, WIDTH], tl.float32)
    return State(accumulator, tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32))


@triton.jit
def shift_of(row_max):
    """Return what to subtract from scores: a row that has seen no key has the maximum -inf, which would make NaN."""
    return tl.where(row_max == float("-inf"), 0.0, row_max)


@triton.jit
def weigh_scores(scores, row_max, factor, MASKED: tl.constexpr):
    """Return the weights of scores ``[rows, keys]``, the factor of what was accumulated before, and the new maximum.

    ``factor`` takes scores to base 2; only MASKED ones may leave a row without a key.
    """
    new_max = tl.maximum(row_max, tl.max(scores, 1) * factor)
    shift = shift_of(new_max) if MASKED else new_max
    return tl.exp2(scores * factor - shift[:, None]), tl.exp2(row_max - shift), new_max


@triton.jit
def fold_scores(state, scores, factor, MASKED: tl.constexpr):
    """Return the state rescaled to the maximum with these scores, their weights in its sum, and the weights."""
    weights, rescale, row_max = weigh_scores(scores, state.row_max, factor, MASKED)
    row_sum = state.row_sum * rescale + tl.sum(weights, 1)
    return State(state.accumulator * rescale[:, None], row_max, row_sum), weights


@triton.jit
def fold_values(state, weights, values):
    """Return the state with the weighted values of a tile."""
    accumulator = tl.dot(
        weights.to(values.dtype), values, state.accumulator, input_precision=product_precision(values.dtype)
    )
    return State(accumulator, state.row_max, state.row_sum)


@triton.jit
def end_rows(row_max, row_sum):
    """Return the denominators of rows, 1 where no key was seen, and the natural logarithms of their sums, or -inf."""
    row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    return row_sum, (row_max + tl.log2(row_sum)) * LN_2


@triton.jit
def end_rows_with_sinks(row_max, row_sum, sinks):
    """Return what to multiply the accumulator by, and the natural logarithms of the denominators.

    A sink, in natural units, is a logit without a value: it adds to the denominator alone. A row that saw no key, and
    has no sink, gets the factor 1, which leaves its accumulator 0, and the logarithm -inf.
    """
    rescale = 1.0
    if sinks is not None:
        sinks = sinks * LOG2_E
        new_max = tl.maximum(row_max, sinks)
        shift = shift_of(new_max)
        rescale = tl.exp2(row_max - shift)
        row_sum = row_sum * rescale + tl.exp2(sinks - shift)
        row_max = new_max
    row_sum, log_sum_exp = end_rows(row_max, row_sum)
    return rescale / row_sum, log_sum_exp
