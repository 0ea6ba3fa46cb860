# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The rows of a tile in Triton: queries as the product with a cache's keys takes them, and what each row's score is
multiplied by."""

import triton
import triton.language as tl

from autotune.kernels.flash_attention.forward import _offset
from autotune.kernels.paged_decode.keys import load_rows

LARGEST_QUERY = tl.constexpr(127.0 * 256.0 + 127.0)


@triton.jit
def fit_half(low, high, score_scale):
    """Queries in two parts as fp16, a row's largest element between 1 and 2, and the factors of the rows' scores.

    Powers of two, so nothing is rounded but elements below 2**-14 of the row's largest; fp16 holds every value of the
    one-byte types, and converts from them in few instructions.
    """
    low = low.to(tl.float32)
    high = high.to(tl.float32)
    peaks = tl.maximum(tl.max(tl.abs(low), 1), tl.max(tl.abs(high), 1))
    exponents = tl.floor(tl.log2(tl.maximum(peaks, 1e-30)))
    down = tl.exp2(-exponents)[:, None]
    return (low * down).to(tl.float16), (high * down).to(tl.float16), (score_scale * tl.exp2(exponents))[:, None]


@triton.jit
def fit_bytes(queries, score_scale):
    """Queries as 256 times one int8 tile plus another, and the factors of the rows' scores.

    16 bits relative to a row's largest element, for products with int8 keys as they are: those need no conversion, and
    int32 holds the sums of 512 products.
    """
    queries = queries.to(tl.float32)
    peaks = tl.maximum(tl.max(tl.abs(queries), 1), 1e-30)
    scaled = queries * (LARGEST_QUERY / peaks)[:, None]
    rounded = tl.floor(scaled + 0.5)
    high = tl.floor(rounded / 256.0 + 0.5)
    low = rounded - 256.0 * high  # within -128 and 127
    factors = score_scale * (peaks / LARGEST_QUERY) + 0.0 * tl.sum(queries, 1)  # what is not finite must be seen
    return high.to(tl.int8), low.to(tl.int8), factors[:, None]


@triton.jit
def locate_rows(kv_head, block, SEQ_Q: tl.constexpr, GROUP: tl.constexpr, BLOCK_ROWS: tl.constexpr):
    """Of each row of a block: its number, its KV head of those in the tile, its query, and its head."""
    rows = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    row_heads = rows // (SEQ_Q * GROUP)
    return rows, row_heads, rows // GROUP % SEQ_Q, (kv_head + row_heads) * GROUP + rows % GROUP


@triton.jit
def load_queries(
    q, q_strides, k_scale, sequence, kv_head, block, score_scale,
    KEY_TYPE: tl.constexpr, SEQ_Q: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, KEY_SCALES: tl.constexpr, PACKED: tl.constexpr, HEADS: tl.constexpr,
    STRIDE_SCALE: tl.constexpr,
):  # fmt: skip
    """A block's queries of one sequence, in two parts where the product is of two, and the factors of its scores.

    ``k_scale`` are those of the tile's heads, where a head has one.
    """
    rows, row_heads, queries, heads = locate_rows(kv_head, block, SEQ_Q, GROUP, BLOCK_ROWS)
    is_row = rows < HEADS * SEQ_Q * GROUP
    exact: tl.constexpr = PACKED and tl.int8 == KEY_TYPE
    parts: tl.constexpr = 2 if PACKED and not exact else 1
    offsets = _offset(sequence, q_strides[0]) + _offset(queries, q_strides[1]) + _offset(heads, q_strides[2])
    tile = load_rows(q, offsets, None, is_row, HEAD_DIM, BLOCK_D, parts)
    other = tile
    if parts == 2:
        other = load_rows(q + 2, offsets, None, is_row, HEAD_DIM - 2, BLOCK_D, parts)
    factors = tl.full([BLOCK_ROWS, 1], 1.0, tl.float32) * score_scale
    if exact:
        tile, other, factors = fit_bytes(tile, score_scale)
    elif q.dtype.element_ty != KEY_TYPE:
        tile, other, factors = fit_half(tile, other, score_scale)
    if k_scale is not None and not KEY_SCALES:
        factors *= tl.load(k_scale + row_heads * STRIDE_SCALE, mask=is_row, other=1.0)[:, None]
    return tile, other, factors
