# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""One tile of keys and values folded into the softmax of a block of rows.

Algorithm: FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1) in base 2.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.paged_decode.triton.packing import load_packed, unpack_bytes, unpack_pairs
from autotune.kernels.tiles.masks import hide_keys
from autotune.kernels.tiles.pages import locate_keys
from autotune.kernels.tiles.precision import product_precision
from autotune.kernels.tiles.rows import gather_rows
from autotune.kernels.tiles.softmax import State, cap_scores, weigh_scores

SMALLEST_SCALE = tl.constexpr(2.0**-60)


class TileState(NamedTuple):
    """The softmax of rows over the keys seen so far.

    Two halves of the accumulator, of which the second is used where values are unpacked to two tiles; the maximum; and
    the sums of weights, still apart by their place in the tile.
    """

    accumulator: Any
    other: Any
    row_max: Any
    sums: Any


@triton.constexpr_function
def weight_type(query_type: tl.dtype, key_type: tl.dtype) -> tl.dtype:
    """Return the type of weights and of converted keys: fp16 holds every value of the one-byte types."""
    return query_type if key_type == query_type else tl.float16


@triton.jit
def split_scales(scales):
    """Return the exponents of scales to base 2, two to minus those, and what remains of the scales, in [1, 2).

    Scales are raised to 2**-60 first: smaller ones are those of values that are all 0. NaN, the scale of values that
    hold one, stays.
    """
    scales = tl.maximum(scales, SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)
    fields = scales.to(tl.int32, bitcast=True) >> 23
    inverses = ((254 - fields) << 23).to(tl.float32, bitcast=True)
    return (fields - 127).to(tl.float32), inverses, scales * inverses


@triton.jit
def begin_tiles(TILE: tl.constexpr, WIDTHS: tl.constexpr, PACKED: tl.constexpr):
    """Return the state of rows that have seen no key."""
    ROWS: tl.constexpr = TILE.rows
    KEYS: tl.constexpr = TILE.tokens * TILE.heads
    COLUMNS: tl.constexpr = WIDTHS.padded_v // 2 if PACKED else WIDTHS.padded_v
    accumulator = tl.zeros([ROWS, COLUMNS], tl.float32)
    row_max = tl.full([ROWS], float("-inf"), tl.float32)
    return TileState(accumulator, accumulator, row_max, tl.zeros([ROWS, KEYS], tl.float32))


@triton.jit
def multiply_keys(
    queries, keys, pages, tile, present,
    TILE: tl.constexpr, WIDTHS: tl.constexpr, PAGING: tl.constexpr, PACKED: tl.constexpr, WEIGHT_TYPE: tl.constexpr,
):  # fmt: skip
    """Load a tile of keys and return its products with the queries, in the scale of both.

    PACKED: keys are loaded as words of two bytes and used as two tiles of fp16, see ``packing``; but int8 keys are
    multiplied as they are.
    """
    STRIDES: tl.constexpr = PAGING.key_strides
    exact: tl.constexpr = PACKED and tl.int8 == keys.dtype.element_ty
    if PACKED and not exact:
        fixed, moving = locate_keys(pages, tile, STRIDES, TILE.tokens, PAGING, TILE.heads, 2)
        words = load_packed(keys, fixed, moving, present, WIDTHS.k, WIDTHS.padded_k).T
        first, second = unpack_pairs(words, keys.dtype.element_ty)
        scores = tl.dot(queries.second, second, tl.dot(queries.first, first))
    else:
        fixed, moving = locate_keys(pages, tile, STRIDES, TILE.tokens, PAGING, TILE.heads)
        k_tile = gather_rows(keys, fixed, moving, present, WIDTHS.k, WIDTHS.padded_k)
        if exact:
            k_tile = k_tile.T
            high = tl.dot(queries.first, k_tile) * 256
            scores = tl.dot(queries.second, k_tile, high, out_dtype=tl.int32).to(tl.float32)
        else:
            scores = tl.dot(
                queries.first, k_tile.to(WEIGHT_TYPE).T, input_precision=product_precision(WEIGHT_TYPE)
            )  # fmt: skip
    return scores * queries.factors


@triton.jit
def load_scales(scales, pages, tile, present, STRIDES: tl.constexpr, TILE: tl.constexpr, PAGING: tl.constexpr):
    """Load the scales of a tile's keys, 0 of absent ones."""
    fixed, moving = locate_keys(pages, tile, STRIDES, TILE.tokens, PAGING, TILE.heads)
    return tl.load(scales + fixed + moving, mask=present, other=0.0)


@triton.jit
def add_values(
    state, rescale, weights, values, pages, tile, present,
    TILE: tl.constexpr, WIDTHS: tl.constexpr, PAGING: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Load a tile of values and return both halves of the accumulator with its weighted sum, as packed or not."""
    STRIDES: tl.constexpr = PAGING.value_strides
    if PACKED:
        fixed, moving = locate_keys(pages, tile, STRIDES, TILE.tokens, PAGING, TILE.heads, 2)
        words = load_packed(values, fixed, moving, present, WIDTHS.v, WIDTHS.padded_v)
        first, second = unpack_bytes(words, values.dtype.element_ty)
        accumulator = tl.dot(weights, first, state.accumulator * rescale)
        other = tl.dot(weights, second, state.other * rescale)
    else:
        fixed, moving = locate_keys(pages, tile, STRIDES, TILE.tokens, PAGING, TILE.heads)
        v_tile = gather_rows(values, fixed, moving, present, WIDTHS.v, WIDTHS.padded_v).to(weights.dtype)
        precision: tl.constexpr = product_precision(weights.dtype)
        accumulator = tl.dot(weights, v_tile, state.accumulator * rescale, input_precision=precision)
        other = state.other
    return accumulator, other


@triton.jit
def fold_tile(
    state, queries, cache, slopes, rows, length, tile, pages, window, softcap,
    TILE: tl.constexpr, WIDTHS: tl.constexpr, PAGING: tl.constexpr, FEATURES: tl.constexpr, WEIGHT_TYPE: tl.constexpr,
):  # fmt: skip
    """Return the state with the keys of a tile, those of its KV heads side by side as they lie in memory.

    A row sees the keys of its own head. A tile has the rows of matrix instructions whether they are used or not: where
    a head has few, several heads cost no more than one, and memory is read in longer pieces.
    With scales of tokens, the exponent of a value's scale is added to its score, so that weights need no more range
    than fp16 has; what is summed is freed from it again.
    """
    columns = tl.arange(0, TILE.tokens * TILE.heads)
    keys = tile * TILE.tokens + columns // TILE.heads
    low = 0
    if FEATURES.window:
        low = tl.maximum(length - TILE.queries - window + 1, 0)
    present = (keys >= low) & (keys < length)
    is_same_head = None
    if TILE.heads != 1:
        is_same_head = rows.kv_heads[:, None] == (columns % TILE.heads)[None, :]

    scores = multiply_keys(
        queries, cache.k, pages, tile, present, TILE, WIDTHS, PAGING, FEATURES.packed, WEIGHT_TYPE
    )  # fmt: skip
    if FEATURES.token_scales:
        KEY_STRIDES: tl.constexpr = PAGING.key_scale_strides
        VALUE_STRIDES: tl.constexpr = PAGING.value_scale_strides
        scores *= load_scales(cache.k_scales, pages, tile, present, KEY_STRIDES, TILE, PAGING)[None, :]
        value_scales = load_scales(cache.v_scales, pages, tile, present, VALUE_STRIDES, TILE, PAGING)
        exponents, inverses, remainders = split_scales(value_scales)
    positions = length - TILE.queries + rows.queries
    if FEATURES.softcap:
        scores = cap_scores(scores, softcap, FEATURES.precise)
    if FEATURES.token_scales:
        scores += exponents[None, :]
    ahead = keys[None, :] - positions[:, None]
    if slopes is not None:
        scores += slopes[:, None] * ahead
    scores = hide_keys(scores, is_same_head, ahead, window, True, FEATURES.window)

    weights, rescale, row_max = weigh_scores(scores, state.row_max, 1.0, True)
    rescale = rescale[:, None]
    if FEATURES.token_scales:
        sums = state.sums * rescale + weights * inverses[None, :]
        weights *= remainders[None, :]
    else:
        sums = state.sums * rescale + weights
    accumulator, other = add_values(
        state, rescale, weights.to(WEIGHT_TYPE), cache.v, pages, tile, present, TILE, WIDTHS, PAGING,
        FEATURES.packed,
    )  # fmt: skip
    return TileState(accumulator, other, row_max, sums)


@triton.jit
def end_tiles(
    state, value_scales, rows, TILE: tl.constexpr, WIDTHS: tl.constexpr, PAGING: tl.constexpr, FEATURES: tl.constexpr
):  # fmt: skip
    """Return the softmax of rows with the accumulator whole and in the values' own scale, and the sums of rows."""
    ROWS: tl.constexpr = TILE.rows
    COLUMNS: tl.constexpr = WIDTHS.padded_v
    accumulator = state.accumulator
    if FEATURES.packed:
        accumulator = tl.join(accumulator, state.other).reshape(ROWS, COLUMNS)
    if value_scales is not None and not FEATURES.token_scales:
        scales = value_scales + rows.kv_heads * PAGING.value_scale_strides[2]
        accumulator *= tl.load(scales, mask=rows.is_row, other=1.0)[:, None]
    return State(accumulator, state.row_max, tl.sum(state.sums, 1))
