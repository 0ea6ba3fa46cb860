# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Stores tokens in a paged cache, in Triton: each program one token and a few of its KV heads, quantized on the way.

The values are those that ``quantization.quantize`` has, to the bit; where a NaN comes from an 8-bit float's division,
its sign may differ. Divisions are rounded correctly, products never meet the sum that rounds them (the compiler would
fuse the two), and 8-bit floats are made from bits, so no GPU needs instructions for them.
"""

from typing import NamedTuple

import triton
import triton.language as tl

from autotune.kernels.tiles.rows import offset

# Added to a number below 2**22, it leaves no bits for a fraction: the sum is rounded, half to even.
ROUNDING = tl.constexpr(1.5 * 2**23)


class Slots(NamedTuple):
    """Slots of a page, heads of a slot, and the type of a quantized cache; empty where it is not quantized."""

    page_size: int
    kv_heads: int
    kind: str


@triton.jit
def _quantize_int8(numbers):
    """Return integers of rows ``[R, D]`` in fp32, and the rows' scales: their largest absolute values over 127."""
    # As integers, the bits of positive floats have the order of the floats, and NaN is the largest.
    sizes = numbers.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    peaks = tl.max(sizes, 1).to(tl.float32, bitcast=True)
    factors = tl.div_rn(127.0, tl.where(peaks > 0.0, peaks, float("inf")))
    ratios = numbers * factors[:, None]
    ratios = tl.where(ratios == ratios, ratios, 0.0)
    integers = tl.minimum(tl.maximum(ratios, -127.0), 127.0) + ROUNDING - ROUNDING
    return integers.to(tl.int8), tl.div_rn(peaks, 127.0)


@triton.jit
def _round_float8(numbers, MANTISSA: tl.constexpr, BIAS: tl.constexpr, LARGEST: tl.constexpr):
    """Return the bits of the nearest 8-bit floats, ties to even: no more than those of LARGEST, 0x7F of NaN.

    As PyTorch does it on the host (c10/util/Float8_e4m3fn.h, Float8_e5m2.h).
    """
    SHIFT: tl.constexpr = 23 - MANTISSA
    REBASE: tl.constexpr = (127 - BIAS) << 23
    UNIT: tl.constexpr = (151 - BIAS - MANTISSA) << 23  # the bits of a number whose last bit is the least subnormal
    bits = numbers.to(tl.int32, bitcast=True)
    sizes = bits & 0x7FFFFFFF
    is_nan = sizes > 0x7F800000
    sizes = tl.minimum(sizes, (LARGEST << SHIFT) + REBASE)
    rebased = sizes - REBASE
    normal = (rebased + (1 << (SHIFT - 1)) - 1 + ((rebased >> SHIFT) & 1)) >> SHIFT
    unit = tl.full(sizes.shape, UNIT, tl.int32).to(tl.float32, bitcast=True)
    subnormal = (sizes.to(tl.float32, bitcast=True) + unit).to(tl.int32, bitcast=True) - UNIT
    rounded = tl.where(sizes < REBASE + (1 << 23), subnormal, normal)
    return (tl.where(is_nan, 0x7F, rounded) | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def _store_rows(
    tokens, cache, scales, token, page, slot, heads, token_strides, cache_strides, scale_strides,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_WIDTH: tl.constexpr,
):  # fmt: skip
    """Move the rows of some heads of a token into their slot, and of int8 their scales into theirs."""
    columns = tl.arange(0, BLOCK_WIDTH)
    present = heads < SLOTS.kv_heads
    mask = present[:, None] & (columns < WIDTH)[None, :]
    source = tokens + offset(token, token_strides[0]) + offset(heads, token_strides[1])
    rows = tl.load(source[:, None] + columns[None, :], mask=mask, other=0.0)
    if SLOTS.kind == "int8":
        rows, row_scales = _quantize_int8(rows.to(tl.float32))
        place = offset(page, scale_strides[0]) + offset(slot, scale_strides[1]) + offset(heads, scale_strides[2])
        tl.store(scales + place, row_scales, mask=present)
    elif SLOTS.kind != "":
        rows = rows.to(tl.float32)
        if scales is not None:
            divisors = tl.load(scales + offset(heads, scale_strides[2]), mask=present, other=1.0)
            rows = tl.div_rn(rows, tl.broadcast_to(divisors[:, None], rows.shape))
        if SLOTS.kind == "float8_e4m3fn":
            rows = _round_float8(rows, MANTISSA=3, BIAS=7, LARGEST=0x7E)
        else:
            rows = _round_float8(rows, MANTISSA=2, BIAS=15, LARGEST=0x7B)
    target = cache + offset(page, cache_strides[0]) + offset(slot, cache_strides[1])
    tl.store(target + offset(heads, cache_strides[2])[:, None] + columns[None, :], rows, mask=mask)


@triton.jit(do_not_specialize=["pages"])
def store_tokens(
    k, v, k_cache, v_cache, k_scale, v_scale, slots, stride_slots, pages,
    k_strides, v_strides, k_cache_strides, v_cache_strides, k_scale_strides, v_scale_strides,
    SLOTS: tl.constexpr, HEADS: tl.constexpr, WIDTHS: tl.constexpr,
):  # fmt: skip
    """Store key and value of one token, HEADS heads of them, unless its slot is negative or past the last page."""
    token = tl.program_id(0)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    place = tl.load(slots + offset(token, stride_slots)).to(tl.int64)
    if (place >= 0) & (place < pages.to(tl.int64) * SLOTS.page_size):
        page = place // SLOTS.page_size
        slot = place % SLOTS.page_size
        _store_rows(
            k, k_cache, k_scale, token, page, slot, heads, k_strides, k_cache_strides, k_scale_strides,
            SLOTS, WIDTHS.k, WIDTHS.padded_k,
        )  # fmt: skip
        _store_rows(
            v, v_cache, v_scale, token, page, slot, heads, v_strides, v_cache_strides, v_scale_strides,
            SLOTS, WIDTHS.v, WIDTHS.padded_v,
        )  # fmt: skip
