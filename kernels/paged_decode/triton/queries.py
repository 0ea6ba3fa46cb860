# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""The rows of a tile: queries as the product with a cache's keys takes them, and the factor of each row's scores."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.rows import gather_rows, offset

LARGEST_QUERY = tl.constexpr(127.0 * 256.0 + 127.0)


class Rows(NamedTuple):
    """Of each row of a block: its KV head among those of the tile, its query, its head, and if it is used."""

    kv_heads: Any
    queries: Any
    heads: Any
    is_row: Any


class Queries(NamedTuple):
    """Queries in one part or two, as the product takes them, and the factors of the rows' scores."""

    first: Any
    second: Any
    factors: Any


@triton.jit
def fit_half(low, high, score_scale):
    """Convert queries in two parts to fp16, and return the factors of the rows' scores too.

    A row's largest element is then between 1 and 2. The factors are powers of two, so nothing is rounded but elements
    below 2**-14 of the row's largest; fp16 holds every value of the one-byte types, and converts from them in few
    instructions.
    """
    low = low.to(tl.float32)
    high = high.to(tl.float32)
    peaks = tl.maximum(tl.max(tl.abs(low), 1), tl.max(tl.abs(high), 1))
    exponents = tl.floor(tl.log2(tl.maximum(peaks, 1e-30)))
    down = tl.exp2(-exponents)[:, None]
    return (low * down).to(tl.float16), (high * down).to(tl.float16), (score_scale * tl.exp2(exponents))[:, None]


@triton.jit
def fit_bytes(queries, score_scale):
    """Split queries into 256 times one int8 tile plus another, and return the factors of the rows' scores too.

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
def locate_rows(kv_head, block, TILE: tl.constexpr):
    """Locate the rows of a block of a tile whose first KV head is ``kv_head``."""
    rows = block * TILE.rows + tl.arange(0, TILE.rows)
    queries = rows // TILE.group
    kv_heads = queries // TILE.queries
    # Not ``rows // group % queries``, which LLVM computes for two rows at once: where ptxas (12.8 to 13.0, sm_90) does
    # so a second time, its ``VIADD.16x2`` adds 0 instead of the constant, and rows are stored elsewhere.
    queries -= kv_heads * TILE.queries
    heads = (kv_head + kv_heads) * TILE.group + rows % TILE.group
    return Rows(kv_heads, queries, heads, rows < TILE.used_rows)


@triton.jit
def load_queries(
    q, q_strides, key_scales, sequence, kv_head, block, score_scale,
    KEY_TYPE: tl.constexpr, TILE: tl.constexpr, WIDTHS: tl.constexpr, PAGING: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Load a block's queries of one sequence, in two parts where the product is of two.

    ``key_scales`` are those of the tile's heads, where a head has one.
    """
    rows = locate_rows(kv_head, block, TILE)
    exact: tl.constexpr = FEATURES.packed and tl.int8 == KEY_TYPE
    parts: tl.constexpr = 2 if FEATURES.packed and not exact else 1
    BLOCK_ROWS: tl.constexpr = TILE.rows
    offsets = offset(sequence, q_strides[0]) + offset(rows.queries, q_strides[1]) + offset(rows.heads, q_strides[2])
    first = gather_rows(q, offsets, None, rows.is_row, WIDTHS.k, WIDTHS.padded_k, parts)
    second = first
    if parts == 2:
        second = gather_rows(q + 2, offsets, None, rows.is_row, WIDTHS.k - 2, WIDTHS.padded_k, parts)
    factors = tl.full([BLOCK_ROWS, 1], 1.0, tl.float32) * score_scale
    if exact:
        first, second, factors = fit_bytes(first, score_scale)
    elif q.dtype.element_ty != KEY_TYPE:
        first, second, factors = fit_half(first, second, score_scale)
    if key_scales is not None and not FEATURES.token_scales:
        scales = key_scales + rows.kv_heads * PAGING.key_scale_strides[2]
        factors *= tl.load(scales, mask=rows.is_row, other=1.0)[:, None]
    return Queries(first, second, factors)
