"""The three kernels of naive attention in Triton; all that passes between them is ``[B, H, S_q, S_kv]`` in memory."""

import triton
import triton.language as tl

from autotune.kernels.tiles.precision import product_precision


@triton.jit
def _offset(index, stride):
    """Return ``index * stride`` in 64 bits: scores have more than 2^31 elements from 46341 x 46341 on."""
    return tl.cast(index, tl.int64) * stride


@triton.jit
def attention_scores(
    q, k, scores,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh,
    heads, group, seq_q, seq_kv, scale,
    HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """Write a tile of ``scores = scale q k^T``, -inf where a query does not see a key."""
    query_blocks = tl.cdiv(seq_q, BLOCK_Q)
    key_blocks = tl.cdiv(seq_kv, BLOCK_K)
    tile = tl.program_id(0)
    keys = tile % key_blocks * BLOCK_K + tl.arange(0, BLOCK_K)
    rows = tile // key_blocks % query_blocks * BLOCK_Q + tl.arange(0, BLOCK_Q)
    batch_head = tile // (key_blocks * query_blocks)
    batch = batch_head // heads
    head = batch_head % heads
    q_rows = q + _offset(batch, stride_qb) + _offset(head, stride_qh) + _offset(rows, stride_qs)
    k_rows = k + _offset(batch, stride_kb) + _offset(head // group, stride_kh) + _offset(keys, stride_ks)

    products = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
    for start in range(0, HEAD_DIM, BLOCK_D):
        columns = start + tl.arange(0, BLOCK_D)
        q_mask = (rows < seq_q)[:, None] & (columns < HEAD_DIM)[None, :]
        q_tile = tl.load(q_rows[:, None] + columns[None, :], mask=q_mask, other=0.0)
        k_mask = (keys < seq_kv)[None, :] & (columns < HEAD_DIM)[:, None]
        k_tile = tl.load(k_rows[None, :] + columns[:, None], mask=k_mask, other=0.0)
        products = tl.dot(q_tile, k_tile, products, input_precision=product_precision(q_tile.dtype))

    result = products * scale
    if CAUSAL:
        result = tl.where(keys[None, :] <= rows[:, None] + (seq_kv - seq_q), result, float("-inf"))
    score_rows = scores + _offset(_offset(batch_head, seq_q) + rows, seq_kv)
    in_range = (rows < seq_q)[:, None] & (keys < seq_kv)[None, :]
    tl.store(score_rows[:, None] + keys[None, :], result.to(scores.dtype.element_ty), mask=in_range)


@triton.jit
def softmax_rows(scores, count, seq_kv, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Replace rows of ``scores [count, seq_kv]`` by their softmax, in place; a row of -inf becomes 0.

    A first pass takes maximum and sum together (Milakov and Gimelshein, arXiv 1805.02867), a second one normalizes and
    finds the rows in the cache.
    """
    rows = _offset(tl.program_id(0), ROWS) + tl.arange(0, ROWS)
    starts = scores + _offset(rows, seq_kv)[:, None]
    row_max = tl.full([ROWS], float("-inf"), tl.float32)
    row_sum = tl.zeros([ROWS], tl.float32)
    for start in range(0, seq_kv, BLOCK):
        columns = start + tl.arange(0, BLOCK)[None, :]
        in_range = (rows < count)[:, None] & (columns < seq_kv)
        values = tl.load(starts + columns, mask=in_range, other=float("-inf")).to(tl.float32)
        new_max = tl.maximum(row_max, tl.max(values, 1))
        # A row that has seen no key yet keeps the maximum -inf; subtracting it would make NaN.
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        row_sum = row_sum * tl.exp(row_max - shift) + tl.sum(tl.exp(values - shift[:, None]), 1)
        row_max = new_max

    shift = tl.where(row_max == float("-inf"), 0.0, row_max)
    row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    for start in range(0, seq_kv, BLOCK):
        columns = start + tl.arange(0, BLOCK)[None, :]
        in_range = (rows < count)[:, None] & (columns < seq_kv)
        values = tl.load(starts + columns, mask=in_range, other=float("-inf")).to(tl.float32)
        weights = tl.exp(values - shift[:, None]) / row_sum[:, None]
        tl.store(starts + columns, weights.to(scores.dtype.element_ty), mask=in_range)


@triton.jit
def weighted_sum(
    weights, v, out,
    stride_vb, stride_vs, stride_vh, stride_ob, stride_os, stride_oh,
    heads, group, seq_q, seq_kv,
    HEAD_DIM_V: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_DV: tl.constexpr,
):  # fmt: skip
    """Write a tile of ``out = weights v`` that is as wide as a head, so weights are read once."""
    query_blocks = tl.cdiv(seq_q, BLOCK_Q)
    tile = tl.program_id(0)
    rows = tile % query_blocks * BLOCK_Q + tl.arange(0, BLOCK_Q)
    batch_head = tile // query_blocks
    batch = batch_head // heads
    head = batch_head % heads
    columns = tl.arange(0, BLOCK_DV)
    weight_rows = weights + _offset(_offset(batch_head, seq_q) + rows, seq_kv)
    v_head = v + _offset(batch, stride_vb) + _offset(head // group, stride_vh)

    accumulator = tl.zeros([BLOCK_Q, BLOCK_DV], tl.float32)
    for start in range(0, seq_kv, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        weight_mask = (rows < seq_q)[:, None] & (keys < seq_kv)[None, :]
        weight_tile = tl.load(weight_rows[:, None] + keys[None, :], mask=weight_mask, other=0.0)
        v_mask = (keys < seq_kv)[:, None] & (columns < HEAD_DIM_V)[None, :]
        v_tile = tl.load(v_head + _offset(keys, stride_vs)[:, None] + columns[None, :], mask=v_mask, other=0.0)
        accumulator = tl.dot(weight_tile, v_tile, accumulator, input_precision=product_precision(v_tile.dtype))

    out_rows = out + _offset(batch, stride_ob) + _offset(head, stride_oh) + _offset(rows, stride_os)
    in_range = (rows < seq_q)[:, None] & (columns < HEAD_DIM_V)[None, :]
    tl.store(out_rows[:, None] + columns[None, :], accumulator.to(out.dtype.element_ty), mask=in_range)
