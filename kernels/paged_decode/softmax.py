# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The running softmax of rows in base 2, in Triton: folding scores in, and the end of it."""

import triton
import triton.language as tl

from autotune.kernels.flash_attention.forward import LN_2, LOG2_E


@triton.jit
def fold_scores(scores, row_max):
    """Weights of scores ``[rows, keys]``, the factor of what was accumulated before, and the new maximum."""
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    # A row that has seen no key yet keeps the maximum -inf; subtracting it would make NaN.
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    return tl.exp2(scores - shift[:, None]), tl.exp2(row_max - shift)[:, None], new_max


@triton.jit
def finish_softmax(row_max, row_sum, sinks):
    """What the accumulator is multiplied by, and the natural logarithm of the denominator.

    A sink, in natural units, is a logit without a value: it adds to the denominator alone. A row that saw no key, and
    has no sink, gets the factor 1, which leaves its accumulator 0, and the logarithm -inf.
    """
    rescale = 1.0
    if sinks is not None:
        sinks = sinks * LOG2_E
        new_max = tl.maximum(row_max, sinks)
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        rescale = tl.exp2(row_max - shift)
        row_sum = row_sum * rescale + tl.exp2(sinks - shift)
        row_max = new_max
    row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    return rescale / row_sum, (row_max + tl.log2(row_sum)) * LN_2
