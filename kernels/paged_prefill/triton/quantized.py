# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Caches of one byte an element: queries that fit them, the scales of tokens, and softmax over scaled scores.

Keys and values become fp16, which holds every value of the one-byte types. What a cache's values are multiplied by
never meets them: it is part of the factors of scores, and of weights or of the output.
"""

import triton
import triton.language as tl

from autotune.kernels.paged_decode.triton.fold import split_scales
from autotune.kernels.paged_decode.triton.queries import fit_half
from autotune.kernels.tiles.pages import locate_keys
from autotune.kernels.tiles.softmax import State, shift_of

# Of a row's scores: what is hidden stays -inf when it is multiplied.
SMALLEST_FACTOR = tl.constexpr(2.0**-120)


@triton.jit
def fit_queries(queries, score_scale, key_scales, TOKEN_SCALES: tl.constexpr):
    """Return queries in fp16, and a factor of scores for each row, ``[ROWS, 1]`` and above 0.

    ``key_scales`` point to the head's, or with TOKEN_SCALES to those of its tokens, which the factors leave out.
    """
    fitted, _, factors = fit_half(queries, queries, score_scale)
    if not TOKEN_SCALES:
        key_scale = tl.load(key_scales)
        fitted = tl.where(key_scale < 0.0, -fitted, fitted)
        factors = tl.maximum(factors * tl.abs(key_scale), SMALLEST_FACTOR, propagate_nan=tl.PropagateNan.ALL)
    return fitted, factors


@triton.jit
def widen(tile, TYPE: tl.constexpr):
    """Convert keys or values to the type that they are multiplied in.

    int8 becomes fp16 as the mantissa of 1024 + 128 + x (Kim et al., arXiv 2211.10017, section 3.2).
    """
    if tl.int8 == tile.dtype:
        bits = (tile.to(tl.uint8, bitcast=True) ^ 0x80).to(tl.uint16) | 0x6400
        wide = bits.to(tl.float16, bitcast=True) - 1152.0
    else:
        wide = tile.to(TYPE)
    return wide


@triton.jit
def load_token_scales(scales, pages, tile, present, STRIDES: tl.constexpr, BLOCK_K: tl.constexpr, PAGING: tl.constexpr):
    """Load the scales of a tile's tokens, 0 of absent ones.

    The maximum of each alone keeps the load where a thread has one: else every thread loads those of all its scores
    (32 copies of 4 bytes a tile instead of 2: Triton 3.6.0, sm_90).
    """
    fixed, moving = locate_keys(pages, tile, STRIDES, BLOCK_K, PAGING)
    found = tl.load(scales + (fixed + moving)[:, None], mask=present[:, None], other=0.0)
    return tl.max(found, 1)


@triton.jit
def fold_row_scores(state, scores, factors, MASKED: tl.constexpr):
    """Fold scores as ``fold_scores`` does, with a factor above 0 for each row, ``[ROWS, 1]``."""
    ROWS: tl.constexpr = scores.shape[0]
    row_max = tl.maximum(state.row_max, tl.max(scores, 1) * factors.reshape(ROWS))
    shift = shift_of(row_max) if MASKED else row_max
    weights = tl.exp2(scores * factors - shift[:, None])
    rescale = tl.exp2(state.row_max - shift)
    row_sum = state.row_sum * rescale + tl.sum(weights, 1)
    return State(state.accumulator * rescale[:, None], row_max, row_sum), weights


@triton.jit
def fold_token_scores(state, scores, value_scales, MASKED: tl.constexpr):
    """Fold scores to base 2 of tokens whose values have these scales; the weights returned hold the scales.

    The exponent of a value's scale is added to its score, so that weights need no more range than fp16 has; what is
    summed is freed from it again. See ``fold_tile`` of paged decode.
    """
    exponents, inverses, remainders = split_scales(value_scales)
    scores += exponents[None, :]
    row_max = tl.maximum(state.row_max, tl.max(scores, 1))
    shift = shift_of(row_max) if MASKED else row_max
    weights = tl.exp2(scores - shift[:, None])
    rescale = tl.exp2(state.row_max - shift)
    row_sum = state.row_sum * rescale + tl.sum(weights * inverses[None, :], 1)
    return State(state.accumulator * rescale[:, None], row_max, row_sum), weights * remainders[None, :]


@triton.jit
def scale_outputs(state, value_scale):
    """Return the state with its accumulator in the values' own scale, one for the head."""
    return State(state.accumulator * tl.load(value_scale), state.row_max, state.row_sum)
