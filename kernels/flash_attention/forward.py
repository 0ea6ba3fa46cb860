"""Flash attention forward in Triton: the kernel alone.

Algorithm: FlashAttention-2 (Dao, arXiv 2307.08691, algorithm 1) with the softmax in base 2.
"""

import math

import triton
import triton.language as tl

from autotune.kernels.precision import product_precision

LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2.0))


@triton.jit
def _offset(index, stride):
    """``index * stride`` in 64 bits: neither tensors nor strides are too large."""
    return tl.cast(index, tl.int64) * stride


@triton.jit
def _load_rows(
    source, batch, start, head, stride_batch, stride_row, stride_head, length,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr, BOUNDED: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Load a ``[ROWS, BLOCK_WIDTH]`` tile; what lies beyond ``WIDTH``, and beyond ``length`` if BOUNDED, is 0."""
    if DESCRIPTOR:
        tile = source.load([batch, start, head, 0]).reshape(ROWS, BLOCK_WIDTH)
    else:
        rows = tl.arange(0, ROWS)
        columns = tl.arange(0, BLOCK_WIDTH)
        origin = source + _offset(batch, stride_batch) + _offset(start, stride_row) + _offset(head, stride_head)
        pointers = origin + _offset(rows[:, None], stride_row) + columns[None, :]
        if BOUNDED:
            tile = tl.load(pointers, mask=(start + rows < length)[:, None] & (columns < WIDTH)[None, :], other=0.0)
        elif WIDTH != BLOCK_WIDTH:
            tile = tl.load(pointers, mask=(columns < WIDTH)[None, :], other=0.0)
        else:
            tile = tl.load(pointers)
    return tile


@triton.jit
def _tanh(x, PRECISE: tl.constexpr):
    """tanh by exp2, which Triton has on every backend; PRECISE adds a series near 0, where 1 - exp cancels."""
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
def _hide_keys(scores, rows, keys, seq_kv, offset, window, CAUSAL: tl.constexpr, WINDOW: tl.constexpr):
    """Set to -inf what a query may not see: keys past the end, in its future, or outside its window."""
    visible = (keys < seq_kv)[None, :]
    ahead = keys[None, :] - rows[:, None] - offset  # how far a key lies in the query's future
    if CAUSAL:
        visible = visible & (ahead <= 0)
    if WINDOW:
        visible = visible & (ahead > -window)
        if not CAUSAL:
            visible = visible & (ahead < window)
    return tl.where(visible, scores, float("-inf"))


@triton.jit
def _attend(
    accumulator, row_max, row_sum, q, rows, k, v, batch, kv_head,
    stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
    start, stop, seq_kv, offset, window, score_scale, softcap,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_K: tl.constexpr, MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    PRECISE: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """Fold the keys ``start <= j < stop`` into the running softmax of one tile of queries."""
    for key in tl.range(start, stop, BLOCK_K):
        k_tile = _load_rows(
            k,
            batch,
            key,
            kv_head,
            stride_kb,
            stride_ks,
            stride_kh,
            seq_kv,
            BLOCK_K,
            HEAD_DIM,
            BLOCK_D,
            MASKED,
            DESCRIPTOR,
        )
        scores = tl.dot(q, k_tile.T, input_precision=product_precision(k_tile.dtype))
        if SOFTCAP:
            # score_scale is scale / softcap here; the capped scores are taken to base 2 below.
            scores = softcap * _tanh(scores * score_scale, PRECISE)
            factor = LOG2_E
        else:
            factor = score_scale
        if MASKED:
            scores = _hide_keys(scores, rows, key + tl.arange(0, BLOCK_K), seq_kv, offset, window, CAUSAL, WINDOW)
        new_max = tl.maximum(row_max, tl.max(scores, 1) * factor)
        # A row that has seen no key yet keeps the maximum -inf; subtracting it would make NaN.
        shift = tl.where(new_max == float("-inf"), 0.0, new_max) if MASKED else new_max
        weights = tl.exp2(scores * factor - shift[:, None])
        rescale = tl.exp2(row_max - shift)
        row_sum = row_sum * rescale + tl.sum(weights, 1)
        row_max = new_max
        accumulator = accumulator * rescale[:, None]
        v_tile = _load_rows(
            v,
            batch,
            key,
            kv_head,
            stride_vb,
            stride_vs,
            stride_vh,
            seq_kv,
            BLOCK_K,
            HEAD_DIM_V,
            BLOCK_DV,
            MASKED,
            DESCRIPTOR,
        )
        accumulator = tl.dot(
            weights.to(v_tile.dtype), v_tile, accumulator, input_precision=product_precision(v_tile.dtype)
        )
    return accumulator, row_max, row_sum


@triton.jit
def _key_bounds(
    first_row, seq_q, seq_kv, offset, window,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Bounds of a tile's keys: some row sees a key of ``[low, high)``, every row all of ``[full_low, full_high)``."""
    last_row = tl.minimum(first_row + BLOCK_Q, seq_q) - 1
    low = 0
    full_low = 0
    high = seq_kv
    full_high = seq_kv
    if CAUSAL:
        high = tl.minimum(seq_kv, last_row + offset + 1)
        full_high = tl.minimum(seq_kv, first_row + offset + 1)
    if WINDOW:
        low = tl.maximum(0, first_row + offset - window + 1)
        full_low = tl.maximum(0, last_row + offset - window + 1)
        if not CAUSAL:
            high = tl.minimum(seq_kv, last_row + offset + window)
            full_high = tl.minimum(seq_kv, first_row + offset + window)
    high = tl.maximum(high, 0)
    low = low // BLOCK_K * BLOCK_K
    full_low = tl.minimum(tl.cdiv(full_low, BLOCK_K) * BLOCK_K, high)
    full_high = tl.maximum(tl.maximum(full_high, 0) // BLOCK_K * BLOCK_K, full_low)
    return low, full_low, full_high, high


@triton.jit(
    do_not_specialize=["heads", "group", "seq_q", "seq_kv", "window"],
    do_not_specialize_on_alignment=["heads", "group", "seq_q", "seq_kv", "window"],
)
def flash_attention_forward(
    q, k, v, out_ptr, lse_ptr,
    stride_qb, stride_qs, stride_qh, stride_kb, stride_ks, stride_kh,
    stride_vb, stride_vs, stride_vh, stride_ob, stride_os, stride_oh,
    heads, group, seq_q, seq_kv, window, score_scale, softcap,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    LSE: tl.constexpr, PRECISE: tl.constexpr, DESCRIPTOR: tl.constexpr,
):  # fmt: skip
    """One program computes a tile of queries of one head: ``out = softmax(q k^T) v``, tensors ``[B, S, H, D]``.

    ``q``, ``k`` and ``v`` are pointers or tensor descriptors; ``lse_ptr`` is fp32 ``[B, H, S]``, written if LSE.
    """
    # Neighbouring programs share a head, and with it K and V in the L2. Under a causal mask late queries see the
    # most keys: each head's longest tiles start first. (Longest first over all heads was 1 to 31 % slower: D = 64
    # and 128, S = 512 to 16384, bf16, batch x seq = 16384, best of 60 configs; NVIDIA H200, 2026-11-21, CUDA graphs.)
    blocks = tl.cdiv(seq_q, BLOCK_Q)
    tile = tl.program_id(0)
    block = blocks - 1 - tile % blocks if CAUSAL else tile % blocks
    batch_head = tile // blocks
    batch = batch_head // heads
    head = batch_head % heads
    kv_head = head // group
    first_row = block * BLOCK_Q
    rows = first_row + tl.arange(0, BLOCK_Q)
    offset = seq_kv - seq_q

    q_tile = _load_rows(
        q, batch, first_row, head, stride_qb, stride_qs, stride_qh, seq_q, BLOCK_Q, HEAD_DIM, BLOCK_D, True, DESCRIPTOR
    )
    accumulator = tl.zeros([BLOCK_Q, BLOCK_DV], tl.float32)
    row_max = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_Q], tl.float32)

    low, full_low, full_high, high = _key_bounds(
        first_row, seq_q, seq_kv, offset, window, BLOCK_Q, BLOCK_K, CAUSAL, WINDOW
    )
    if WINDOW:
        # Keys that enter the window of some rows only.
        accumulator, row_max, row_sum = _attend(
            accumulator, row_max, row_sum, q_tile, rows, k, v, batch, kv_head,
            stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
            low, full_low, seq_kv, offset, window, score_scale, softcap,
            HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV, BLOCK_K, True, CAUSAL, WINDOW, SOFTCAP, PRECISE, DESCRIPTOR,
        )  # fmt: skip
    # Keys that every row sees: no mask.
    accumulator, row_max, row_sum = _attend(
        accumulator, row_max, row_sum, q_tile, rows, k, v, batch, kv_head,
        stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
        full_low, full_high, seq_kv, offset, window, score_scale, softcap,
        HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV, BLOCK_K, False, CAUSAL, WINDOW, SOFTCAP, PRECISE, DESCRIPTOR,
    )  # fmt: skip
    # Keys on the diagonal, at the window's far edge, or in the last partial block.
    accumulator, row_max, row_sum = _attend(
        accumulator, row_max, row_sum, q_tile, rows, k, v, batch, kv_head,
        stride_kb, stride_ks, stride_kh, stride_vb, stride_vs, stride_vh,
        full_high, high, seq_kv, offset, window, score_scale, softcap,
        HEAD_DIM, HEAD_DIM_V, BLOCK_D, BLOCK_DV, BLOCK_K, True, CAUSAL, WINDOW, SOFTCAP, PRECISE, DESCRIPTOR,
    )  # fmt: skip

    # A row that saw no key has the sum 0 and the maximum -inf: its output is 0, its log-sum-exp -inf.
    row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    out_tile = accumulator / row_sum[:, None]
    columns = tl.arange(0, BLOCK_DV)
    origin = out_ptr + _offset(batch, stride_ob) + _offset(first_row, stride_os) + _offset(head, stride_oh)
    pointers = origin + _offset(tl.arange(0, BLOCK_Q)[:, None], stride_os) + columns[None, :]
    in_range = (rows < seq_q)[:, None] & (columns < HEAD_DIM_V)[None, :]
    tl.store(pointers, out_tile.to(out_ptr.dtype.element_ty), mask=in_range)
    if LSE:
        lse = (row_max + tl.log2(row_sum)) * LN_2
        tl.store(lse_ptr + _offset(batch_head, seq_q) + rows, lse, mask=rows < seq_q)
