# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
"""Lays the keys and values of each sequence side by side, in the dtype of the queries: a kernel in Triton.

Many tiles of queries read each key, and each would look up its page again, and convert it again where the cache has one
byte an element. Copied once, tiles are there for TMA.
"""

import triton
import triton.language as tl

from autotune.kernels.paged_prefill.triton.quantized import widen
from autotune.kernels.tiles.pages import clamp_pages, load_pages, locate_keys
from autotune.kernels.tiles.rows import gather_rows, offset

# Keys before the first that is copied, which blocks of keys may reach back to: no longer ones are there.
ZEROS = tl.constexpr(256)
MOST_QUERIES = tl.constexpr(2**30)

_NUMBERS = ["table_stride", "capacity", "cache_pages", "room", "window"]
_INTEGERS = ["page_table", "seq_lens", "key_offsets", "cu_seqlens_q"]


@triton.jit
def _in_dtype(tile, scales, head, STRIDES: tl.constexpr, TYPE: tl.constexpr):
    """Return a tile in the dtype of the queries, which has every value of one byte, with the sign of its head's scale.

    The scale itself is a factor of scores, above 0, and one of the output.
    """
    wide = widen(tile, TYPE)
    if scales is not None:
        wide = tl.where(tl.load(scales + offset(head, STRIDES[2])) < 0.0, -wide, wide)
    return wide


@triton.jit(do_not_specialize=_NUMBERS, do_not_specialize_on_alignment=[*_INTEGERS, *_NUMBERS])
def gather_pages(
    cache, page_table, seq_lens, keys, values, key_offsets, cu_seqlens_q, table_stride, capacity, cache_pages, room,
    window,
    KV_HEADS: tl.constexpr, TOKENS: tl.constexpr, WIDTHS: tl.constexpr, PAGING: tl.constexpr,
):  # fmt: skip
    """Copy a block of TOKENS tokens of one sequence and KV head to ``keys [B * room, H_kv, D]`` and ``values``.

    Sequence b has the rows from ``b * room`` on, which ``key_offsets [B + 1]`` get. Whatever the lengths say, it has no
    more keys than ``capacity``, its table's. With a window ``cu_seqlens_q`` counts its queries, and keys that none of
    them sees are not read: zeros stand for the last of these.
    """
    K_STRIDES: tl.constexpr = PAGING.key_strides
    V_STRIDES: tl.constexpr = PAGING.value_strides
    K_SCALE_STRIDES: tl.constexpr = PAGING.key_scale_strides
    head = tl.program_id(0) % KV_HEADS
    block = tl.program_id(0) // KV_HEADS
    sequence = tl.program_id(1)
    if tl.program_id(0) == 0:
        tl.store(key_offsets + sequence + 1, (sequence + 1) * room)
        tl.store(key_offsets, 0, mask=sequence == 0)
    length = tl.minimum(tl.maximum(tl.load(seq_lens + sequence), 0), capacity)
    first = 0
    if window is not None:
        queries = tl.load(cu_seqlens_q + sequence + 1) - tl.load(cu_seqlens_q + sequence)
        length = tl.where(queries > 0, length, 0)
        # Whatever the offsets say, in 32 bits.
        first = tl.maximum(length - tl.minimum(tl.maximum(queries, 0), MOST_QUERIES) - window + 1, 0)
        if (block + 1) * TOKENS <= first - ZEROS:
            return
    if block * TOKENS >= length:
        return
    tokens = block * TOKENS + tl.arange(0, TOKENS)
    present = tokens < length
    is_read = present
    if window is not None:
        is_read = present & (tokens >= first)
    pages = load_pages(page_table + offset(sequence, table_stride), block, first, length, TOKENS, PAGING)
    pages = clamp_pages(pages, cache_pages)
    rows = (tl.cast(sequence, tl.int64) * room + tokens) * KV_HEADS + head
    k_fixed, k_moving = locate_keys(pages, block, K_STRIDES, TOKENS, PAGING)
    k_cache = cache.k + offset(head, K_STRIDES[2])
    k_tile = gather_rows(k_cache, k_fixed, k_moving, is_read, WIDTHS.k, WIDTHS.padded_k)
    v_fixed, v_moving = locate_keys(pages, block, V_STRIDES, TOKENS, PAGING)
    v_cache = cache.v + offset(head, V_STRIDES[2])
    v_tile = gather_rows(v_cache, v_fixed, v_moving, is_read, WIDTHS.v, WIDTHS.padded_v)
    k_tile = _in_dtype(k_tile, cache.k_scales, head, K_SCALE_STRIDES, keys.dtype.element_ty)
    v_tile = widen(v_tile, values.dtype.element_ty)
    k_columns, v_columns = tl.arange(0, WIDTHS.padded_k), tl.arange(0, WIDTHS.padded_v)
    tl.store(
        keys + rows[:, None] * WIDTHS.k + k_columns[None, :],
        k_tile,
        mask=present[:, None] & (k_columns < WIDTHS.k)[None, :],
    )
    tl.store(
        values + rows[:, None] * WIDTHS.v + v_columns[None, :],
        v_tile,
        mask=present[:, None] & (v_columns < WIDTHS.v)[None, :],
    )
