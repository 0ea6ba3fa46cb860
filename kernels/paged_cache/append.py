"""Launches what appends tokens to a paged cache, over checked tensors."""

from typing import Any, Final

import torch
import triton

from autotune.kernels.paged_cache.layout import AXES, allocate_caches, cache_strides, scale_strides
from autotune.kernels.paged_cache.quantization import LARGEST
from autotune.kernels.paged_cache.store import Slots, store_tokens
from autotune.kernels.tiles.rows import Widths
from autotune.shape import PagedShape

PACKAGE: Final = "autotune.kernels.paged_cache"  # of what is launched here
TILE: Final = 1024  # elements of a program's tile of keys, where a token has as many: 16 bytes of fp16 a thread
ELEMENTS_PER_WARP: Final = 256


def append(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    layout: str,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    compile_only: bool = False,
) -> Any:
    """Put keys ``[T, H_kv, D]`` and values ``[T, H_kv, D_v]`` into the slots of the caches, quantized as these are.

    ``slots`` are ``page * page_size + slot``, int32 or int64 ``[T]``, each at most once; those outside are skipped.
    Scales of int8 are written, one a slot and head; those of 8-bit floats are read, 1 by default. The grid depends on
    shapes alone, so a CUDA graph may hold the launch. With ``compile_only`` nothing runs and the tensors may be on the
    meta device; the compiled kernel is returned.
    """
    if slots.numel() == 0:
        return None
    page_size, kv_heads = (k_cache.shape[axis] for axis in AXES[layout][1:])
    block_d, block_dv = (triton.next_power_of_2(width) for width in (k.shape[2], v.shape[2]))
    heads = max(1, min(triton.next_power_of_2(kv_heads), TILE // max(block_d, block_dv)))
    is_float8 = k_cache.is_floating_point() and k_cache.itemsize == 1  # stored as bits
    k_bits, v_bits = (cache.view(torch.uint8) if is_float8 else cache for cache in (k_cache, v_cache))
    arguments = (
        *(k, v, k_bits, v_bits, k_scale, v_scale, slots, slots.stride(0), k_cache.shape[0]),
        *(k.stride()[:2], v.stride()[:2]),
        *(cache_strides(cache, layout) for cache in (k_cache, v_cache)),
        *(scale_strides(scale, layout) for scale in (k_scale, v_scale)),
    )
    kind = str(k_cache.dtype).removeprefix("torch.") if k_cache.dtype in LARGEST else ""
    constants = {
        "SLOTS": Slots(page_size, kv_heads, kind),
        "HEADS": heads,
        "WIDTHS": Widths(k.shape[2], v.shape[2], block_d, block_dv),
        "num_warps": min(4, max(1, heads * block_d // ELEMENTS_PER_WARP)),
    }
    grid = (slots.shape[0], -(-kv_heads // heads))
    if compile_only:
        return store_tokens.warmup(*arguments, **constants, grid=grid)
    return store_tokens[grid](*arguments, **constants)


def warmup(shape: PagedShape) -> list[Any]:
    """Compile for contiguous tokens of a shape's dtype, in caches and scales that lie as those of ``PagedKVCache``.

    Any number of tokens runs the same binary; slots of int64 and of int32 have one each.
    """
    dtype, sizes = getattr(torch, shape.dtype), (shape.head_dim, shape.head_dim_v)
    k, v = (torch.empty(1, shape.kv_heads, width, dtype=dtype, device="meta") for width in sizes)
    caches = allocate_caches(shape, 2, "meta")
    k_scale, v_scale = (_empty_scale(cache, shape.kv_heads) for cache in caches)
    options: Any = {"layout": shape.layout, "k_scale": k_scale, "v_scale": v_scale, "compile_only": True}
    slots = (torch.empty(1, dtype=each, device="meta") for each in (torch.int64, torch.int32))
    return [append(k, v, *caches, each, **options) for each in slots]


def _empty_scale(cache: torch.Tensor, kv_heads: int) -> torch.Tensor | None:
    """Allocate the scales of a cache: one a slot and head of int8, one a head of 8-bit floats."""
    if cache.dtype not in LARGEST:
        return None
    sizes = cache.shape[:3] if cache.dtype == torch.int8 else (kv_heads,)
    return torch.empty(sizes, device=cache.device)
