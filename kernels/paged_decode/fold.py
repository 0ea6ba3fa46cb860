# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""One tile of keys and values folded into the softmax state of a block of rows, in Triton.

Algorithm: FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1) in base 2.
"""

import triton
import triton.language as tl

from autotune.kernels.flash_attention.forward import _tanh
from autotune.kernels.paged_decode.keys import load_rows, load_scales, locate_keys
from autotune.kernels.paged_decode.packing import load_packed, unpack_bytes, unpack_pairs
from autotune.kernels.paged_decode.softmax import fold_scores
from autotune.kernels.precision import product_precision

SMALLEST_SCALE = tl.constexpr(2.0**-60)


@triton.jit
def split_scales(scales):
    """The exponents of scales to base 2, two to minus those, and what remains of the scales, in [1, 2).

    Scales are raised to 2**-60 first: smaller ones are those of values that are all 0. NaN, the scale of values that
    hold one, stays.
    """
    scales = tl.maximum(scales, SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)
    fields = scales.to(tl.int32, bitcast=True) >> 23
    inverses = ((254 - fields) << 23).to(tl.float32, bitcast=True)
    return (fields - 127).to(tl.float32), inverses, scales * inverses


@triton.jit
def hide_keys(
    scores, exponents, keys, positions, is_same_head, slopes, softcap, window,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """Scores in base 2, -inf where a query may not see the key: another head's, in its future, outside its window.

    The exponents of the values' scales are added, where there are any.
    """
    if SOFTCAP:
        scores = softcap * _tanh(scores, PRECISE)
    if exponents is not None:
        scores += exponents[None, :]
    ahead = keys[None, :] - positions[:, None]
    if slopes is not None:
        scores += slopes[:, None] * ahead
    visible = ahead <= 0
    if is_same_head is not None:
        visible = visible & is_same_head
    if WINDOW:
        visible = visible & (ahead > -window)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def begin_state(BLOCK_ROWS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_DV: tl.constexpr, PACKED: tl.constexpr):
    """The state of rows that have seen no key: two halves of the accumulator, of which the second is used where values
    are unpacked to two tiles; the maximum; and the sums, still apart by their place in the tile."""
    accumulator = tl.zeros([BLOCK_ROWS, BLOCK_DV // 2 if PACKED else BLOCK_DV], tl.float32)
    row_max = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    return accumulator, accumulator, row_max, tl.zeros([BLOCK_ROWS, BLOCK_K], tl.float32)


@triton.jit
def fold_tile(
    q_tile, q_other, factors, k, v, k_scale, v_scale, slopes,
    row_heads, queries, length, tile, pages, window, softcap, accumulator, other, row_max, sums,
    SEQ_Q: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, BLOCK_K: tl.constexpr, PAGE_SIZE: tl.constexpr, RUN: tl.constexpr, WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr, PRECISE: tl.constexpr, KEY_SCALES: tl.constexpr, PACKED: tl.constexpr, HEADS: tl.constexpr,
    WEIGHT_TYPE: tl.constexpr,
    K_STRIDES: tl.constexpr, V_STRIDES: tl.constexpr, KS_STRIDES: tl.constexpr, VS_STRIDES: tl.constexpr,
):  # fmt: skip
    """The state with the keys of a tile, which are those of HEADS heads, side by side as they lie in memory.

    A row sees the keys of its own head. A tile has the rows of matrix instructions whether they are used or not: where
    a head has few, several heads cost no more than one, and memory is read in longer pieces.
    PACKED: a tile of keys or values is loaded as words of two bytes and used as two of fp16, see ``packing``; but int8
    keys are multiplied as they are.
    KEY_SCALES: the exponent of a value's scale is added to its score, so that weights need no more range than fp16 has;
    what is summed is freed from it again.
    """
    tokens: tl.constexpr = BLOCK_K // HEADS
    exact: tl.constexpr = PACKED and tl.int8 == k.dtype.element_ty
    columns = tl.arange(0, BLOCK_K)
    keys = tile * tokens + columns // HEADS
    low = 0
    if WINDOW:
        low = tl.maximum(length - SEQ_Q - window + 1, 0)
    present = (keys >= low) & (keys < length)
    is_same_head = None
    if HEADS != 1:
        is_same_head = row_heads[:, None] == (columns % HEADS)[None, :]
    if PACKED and not exact:
        k_fixed, k_moving = locate_keys(pages, tile, tokens, PAGE_SIZE, RUN, K_STRIDES, HEADS, 2)
        k_words = load_packed(k, k_fixed, k_moving, present, HEAD_DIM, BLOCK_D).T
        k_tile, k_other = unpack_pairs(k_words, k.dtype.element_ty)
        scores = tl.dot(q_other, k_other, tl.dot(q_tile, k_tile))
    else:
        k_fixed, k_moving = locate_keys(pages, tile, tokens, PAGE_SIZE, RUN, K_STRIDES, HEADS)
        k_tile = load_rows(k, k_fixed, k_moving, present, HEAD_DIM, BLOCK_D)
        if exact:
            k_tile = k_tile.T
            scores = tl.dot(q_other, k_tile, tl.dot(q_tile, k_tile) * 256, out_dtype=tl.int32).to(tl.float32)
        else:
            scores = tl.dot(q_tile, k_tile.to(WEIGHT_TYPE).T, input_precision=product_precision(WEIGHT_TYPE))
    scores *= factors
    exponents = None
    if KEY_SCALES:
        scores *= load_scales(k_scale, pages, tile, present, tokens, PAGE_SIZE, RUN, KS_STRIDES, HEADS)[None, :]
        value_scales = load_scales(v_scale, pages, tile, present, tokens, PAGE_SIZE, RUN, VS_STRIDES, HEADS)
        exponents, inverses, remainders = split_scales(value_scales)
    positions = length - SEQ_Q + queries
    scores = hide_keys(
        scores, exponents, keys, positions, is_same_head, slopes, softcap, window, WINDOW, SOFTCAP, PRECISE
    )  # fmt: skip
    weights, rescale, row_max = fold_scores(scores, row_max)
    if KEY_SCALES:
        sums = sums * rescale + weights * inverses[None, :]
        weights *= remainders[None, :]
    else:
        sums = sums * rescale + weights
    weights = weights.to(WEIGHT_TYPE)
    if PACKED:
        v_fixed, v_moving = locate_keys(pages, tile, tokens, PAGE_SIZE, RUN, V_STRIDES, HEADS, 2)
        v_words = load_packed(v, v_fixed, v_moving, present, HEAD_DIM_V, BLOCK_DV)
        v_tile, v_other = unpack_bytes(v_words, v.dtype.element_ty)
        accumulator = tl.dot(weights, v_tile, accumulator * rescale)
        other = tl.dot(weights, v_other, other * rescale)
    else:
        v_fixed, v_moving = locate_keys(pages, tile, tokens, PAGE_SIZE, RUN, V_STRIDES, HEADS)
        v_tile = load_rows(v, v_fixed, v_moving, present, HEAD_DIM_V, BLOCK_DV).to(WEIGHT_TYPE)
        accumulator = tl.dot(weights, v_tile, accumulator * rescale, input_precision=product_precision(WEIGHT_TYPE))
    return accumulator, other, row_max, sums


@triton.jit
def end_state(
    accumulator, other, sums, v_scale, row_heads, is_row,
    BLOCK_ROWS: tl.constexpr, BLOCK_DV: tl.constexpr, KEY_SCALES: tl.constexpr, PACKED: tl.constexpr,
    STRIDE_SCALE: tl.constexpr,
):  # fmt: skip
    """The accumulator whole and in the values' own scale, and the sums of rows."""
    if PACKED:
        accumulator = tl.join(accumulator, other).reshape(BLOCK_ROWS, BLOCK_DV)
    if v_scale is not None and not KEY_SCALES:
        accumulator *= tl.load(v_scale + row_heads * STRIDE_SCALE, mask=is_row, other=1.0)[:, None]
    return accumulator, tl.sum(sums, 1)
