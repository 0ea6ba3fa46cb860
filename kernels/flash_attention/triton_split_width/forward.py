# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Flash attention forward in Triton over two pieces of a head's columns, each of a power of two.

Algorithm: FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1) with the softmax in base 2. A product of queries and
keys is the sum over pieces of their columns, one of weights and values a piece of the output's columns: heads of 72
take tiles of 64 and of 16 columns, where one tile would have 128.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.masks import Bounds, bound_keys, hide_keys
from autotune.kernels.tiles.precision import product_precision
from autotune.kernels.tiles.rows import Head, Strides, load_rows, locate_row, offset
from autotune.kernels.tiles.softmax import LOG2_E, begin_state, cap_scores, end_rows, weigh_scores


class Features(NamedTuple):
    """The computation of a binary, and its loads: by descriptors, or by pointers with strides in units of elements."""

    causal: bool
    window: bool
    softcap: bool
    precise: bool
    descriptor: bool
    stride_unit: int


class PieceWidths(NamedTuple):
    """Columns of the main pieces of keys and values, and of their tiles; the same of rests, 0 without one."""

    k: int
    v: int
    padded_k: int
    padded_v: int
    rest_k: int
    rest_v: int
    rest_padded_k: int
    rest_padded_v: int


class InputStrides(NamedTuple):
    """Strides of queries, keys and values, in units of 16 bytes, and of the output, in elements."""

    q: Any
    k: Any
    v: Any
    out: Any


class Pieces(NamedTuple):
    """One head by the pieces of its columns, or their tiles; without a rest nothing reads it."""

    main: Any
    rest: Any


class PiecesState(NamedTuple):
    """The softmax of rows over the keys seen so far; as ``softmax.State``, with an accumulator a piece of values."""

    main: Any
    rest: Any
    row_max: Any
    row_sum: Any


@triton.jit
def _block_bounds(bounds, BLOCK_K: tl.constexpr):
    """Round bounds to blocks of keys: outward where some row sees a key, inward where every row does."""
    full_low = tl.minimum(tl.cdiv(bounds.full_low, BLOCK_K) * BLOCK_K, bounds.high)
    full_high = tl.maximum(tl.maximum(bounds.full_high, 0) // BLOCK_K * BLOCK_K, full_low)
    return Bounds(bounds.low // BLOCK_K * BLOCK_K, full_low, full_high, bounds.high)


@triton.jit
def _in_elements(strides, UNIT: tl.constexpr):
    """Return strides that were given in units of so many elements, of which a load then knows that they are multiples.

    Of a stride Triton knows only if it is a multiple of 16, which those of heads of 72 are not: their rows were loaded
    by elements, without a pipeline.
    """
    return Strides(
        tl.cast(strides.batch, tl.int64) * UNIT,
        tl.cast(strides.row, tl.int64) * UNIT,
        tl.cast(strides.head, tl.int64) * UNIT,
    )


@triton.jit
def _score_keys(
    q_tiles, keys, key, WIDTHS: tl.constexpr, BLOCK_K: tl.constexpr, BOUNDED: tl.constexpr,
    DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Return the products of one tile of queries and one of keys, summed over the pieces."""
    k_tile = load_rows(keys.main, key, BLOCK_K, WIDTHS.k, WIDTHS.padded_k, BOUNDED, DESCRIPTOR)
    scores = tl.dot(q_tiles.main, k_tile.T, input_precision=product_precision(k_tile.dtype))
    if WIDTHS.rest_k:
        k_rest = load_rows(keys.rest, key, BLOCK_K, WIDTHS.rest_k, WIDTHS.rest_padded_k, BOUNDED, DESCRIPTOR)
        scores = tl.dot(q_tiles.rest, k_rest.T, scores, input_precision=product_precision(k_rest.dtype))
    return scores


@triton.jit
def _fold_piece(accumulator, rescale, weights, v_tile):
    """Return the accumulator of a piece of values, rescaled, with the weighted values of a tile."""
    return tl.dot(
        weights.to(v_tile.dtype), v_tile, accumulator * rescale[:, None],
        input_precision=product_precision(v_tile.dtype),
    )  # fmt: skip


@triton.jit
def _attend(
    state, q_tiles, rows, keys, values, start, stop, diagonal, window, score_scale, softcap,
    WIDTHS: tl.constexpr, FEATURES: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Fold the keys ``start <= key < stop`` into the running softmax of one tile of queries."""
    for key in tl.range(start, stop, BLOCK_K):
        scores = _score_keys(q_tiles, keys, key, WIDTHS, BLOCK_K, MASKED, FEATURES.descriptor)
        factor = score_scale
        if FEATURES.softcap:  # score_scale is scale / softcap here; the capped scores are taken to base 2 below
            scores = cap_scores(scores * score_scale, softcap, FEATURES.precise)
            factor = LOG2_E
        if MASKED:
            columns = key + tl.arange(0, BLOCK_K)
            present = (columns < keys.main.length)[None, :]
            ahead = columns[None, :] - rows[:, None] - diagonal
            scores = hide_keys(scores, present, ahead, window, FEATURES.causal, FEATURES.window)
        weights, rescale, row_max = weigh_scores(scores, state.row_max, factor, MASKED)
        row_sum = state.row_sum * rescale + tl.sum(weights, 1)
        v_tile = load_rows(values.main, key, BLOCK_K, WIDTHS.v, WIDTHS.padded_v, MASKED, FEATURES.descriptor)
        main = _fold_piece(state.main, rescale, weights, v_tile)
        rest = state.rest
        if WIDTHS.rest_v:
            v_rest = load_rows(
                values.rest, key, BLOCK_K, WIDTHS.rest_v, WIDTHS.rest_padded_v, MASKED, FEATURES.descriptor
            )
            rest = _fold_piece(state.rest, rescale, weights, v_rest)
        state = PiecesState(main, rest, row_max, row_sum)
    return state


@triton.jit
def _store_piece(
    outputs, first_row, tile, BEGIN: tl.constexpr, WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
):  # fmt: skip
    """Store a tile as WIDTH columns from BEGIN on of rows of a head."""
    rows = tl.arange(0, BLOCK_Q)
    columns = tl.arange(0, BLOCK_WIDTH)
    origin = locate_row(outputs, first_row) + BEGIN
    pointers = origin + offset(rows[:, None], outputs.strides.row) + columns[None, :]
    in_range = (first_row + rows < outputs.length)[:, None] & (columns < WIDTH)[None, :]
    tl.store(pointers, tile.to(outputs.tensor.dtype.element_ty), mask=in_range)


_LENGTHS = ["heads", "group", "seq_q", "seq_kv", "window"]  # no binary of its own for a number


@triton.jit(do_not_specialize=_LENGTHS, do_not_specialize_on_alignment=_LENGTHS)
def flash_attention_pieces_forward(
    q, k, v, q_rest, k_rest, v_rest, out, log_sum_exp, strides,
    heads, group, seq_q, seq_kv, window, score_scale, softcap,
    WIDTHS: tl.constexpr, FEATURES: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute ``out = softmax(q k^T) v`` over tensors ``[B, S, H, D]``, one tile of queries of one head a program.

    ``q``, ``k`` and ``v`` are pointers or tensor descriptors of the main pieces of columns, ``q_rest``, ``k_rest`` and
    ``v_rest`` of the rests, if any; ``log_sum_exp`` is fp32 ``[B, H, S]`` or None. Strides of inputs are in
    units of 16 bytes.
    """
    # The order of programs is that of ``triton.forward``, for its reasons.
    blocks = tl.cdiv(seq_q, BLOCK_Q)
    program = tl.program_id(0)
    block = blocks - 1 - program % blocks if FEATURES.causal else program % blocks
    batch_head = program // blocks
    batch = batch_head // heads
    head = batch_head % heads
    kv_head = head // group
    q_strides = _in_elements(strides.q, FEATURES.stride_unit)
    k_strides = _in_elements(strides.k, FEATURES.stride_unit)
    v_strides = _in_elements(strides.v, FEATURES.stride_unit)
    keys = Pieces(Head(k, k_strides, batch, kv_head, seq_kv), Head(k_rest, k_strides, batch, kv_head, seq_kv))
    values = Pieces(Head(v, v_strides, batch, kv_head, seq_kv), Head(v_rest, v_strides, batch, kv_head, seq_kv))
    first_row = block * BLOCK_Q
    rows = first_row + tl.arange(0, BLOCK_Q)
    diagonal = seq_kv - seq_q  # the last query sees the last key

    queries = Head(q, q_strides, batch, head, seq_q)
    q_tile = load_rows(queries, first_row, BLOCK_Q, WIDTHS.k, WIDTHS.padded_k, True, FEATURES.descriptor)
    q_tiles = Pieces(q_tile, None)
    if WIDTHS.rest_k:
        queries_rest = Head(q_rest, q_strides, batch, head, seq_q)
        q_rest_tile = load_rows(
            queries_rest, first_row, BLOCK_Q, WIDTHS.rest_k, WIDTHS.rest_padded_k, True, FEATURES.descriptor
        )
        q_tiles = Pieces(q_tile, q_rest_tile)
    last_row = tl.minimum(first_row + BLOCK_Q, seq_q) - 1
    bounds = _block_bounds(
        bound_keys(first_row, last_row, diagonal, seq_kv, window, FEATURES.causal, FEATURES.window), BLOCK_K
    )  # fmt: skip
    begun = begin_state(BLOCK_Q, WIDTHS.padded_v)
    # Without a rest no loop changes its accumulator, and no instruction is left of it.
    state = PiecesState(
        begun.accumulator, begin_state(BLOCK_Q, WIDTHS.rest_padded_v).accumulator, begun.row_max, begun.row_sum
    )  # fmt: skip
    if FEATURES.window:
        # Keys that enter the window of some rows only.
        state = _attend(
            state, q_tiles, rows, keys, values, bounds.low, bounds.full_low, diagonal, window, score_scale, softcap,
            WIDTHS, FEATURES, BLOCK_K, True,
        )  # fmt: skip
    # Keys that every row sees: no mask.
    state = _attend(
        state, q_tiles, rows, keys, values, bounds.full_low, bounds.full_high, diagonal, window, score_scale, softcap,
        WIDTHS, FEATURES, BLOCK_K, False,
    )  # fmt: skip
    # Keys on the diagonal, at the window's far edge, or in the last partial block.
    state = _attend(
        state, q_tiles, rows, keys, values, bounds.full_high, bounds.high, diagonal, window, score_scale, softcap,
        WIDTHS, FEATURES, BLOCK_K, True,
    )  # fmt: skip

    row_sum, row_log_sum_exp = end_rows(state.row_max, state.row_sum)
    outputs = Head(out, strides.out, batch, head, seq_q)
    _store_piece(outputs, first_row, state.main / row_sum[:, None], 0, WIDTHS.v, BLOCK_Q, WIDTHS.padded_v)
    if WIDTHS.rest_v:
        rest_tile = state.rest / row_sum[:, None]
        _store_piece(outputs, first_row, rest_tile, WIDTHS.v, WIDTHS.rest_v, BLOCK_Q, WIDTHS.rest_padded_v)
    if log_sum_exp is not None:
        tl.store(log_sum_exp + offset(batch_head, seq_q) + rows, row_log_sum_exp, mask=rows < seq_q)
