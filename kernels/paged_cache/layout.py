"""The layout of a paged cache: the axes of page, slot and head, their strides, and room that is laid out so."""

from typing import Final

import torch

from autotune.shape import PagedShape

AXES: Final = {"NHD": (0, 1, 2), "HND": (0, 2, 1)}


def cache_strides(cache: torch.Tensor, layout: str) -> tuple[int, ...]:
    """Return the strides of page, slot and head."""
    page, second, third, *_ = cache.stride()
    return (page, second, third) if layout == "NHD" else (page, third, second)


def scale_strides(scales: torch.Tensor | None, layout: str) -> tuple[int, ...]:
    """Return the strides of page, slot and head of a cache's scales; 0 where one scale serves all."""
    if scales is None or scales.ndim == 0:
        return (0, 0, 0)
    if scales.ndim == 1:
        return (0, 0, scales.stride(0))
    return cache_strides(scales, layout)


def allocate_caches(
    shape: PagedShape, pages: int, device: torch.device | str, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate keys ``[pages, page_size, H_kv, D]`` and values ``[..., D_v]``, or both in the layout ``HND``'s order.

    Of one width they share a buffer, page by page, as in FlashInfer; latents are their own values. Their type is the
    cache's own by default. Strides are constants of the kernels' binaries: a cache that was allocated otherwise
    computes the same, with binaries of its own.
    """
    dtype = dtype or getattr(torch, shape.kv_dtype)
    middle = (shape.page_size, shape.kv_heads) if shape.layout == "NHD" else (shape.kv_heads, shape.page_size)
    if shape.head_dim == shape.head_dim_v:
        both = torch.empty(pages, 2, *middle, shape.head_dim, dtype=dtype, device=device)
        return both[:, 0], both[:, 1]
    k_cache = torch.empty(pages, *middle, shape.head_dim, dtype=dtype, device=device)
    if shape.is_latent:
        return k_cache, k_cache[..., : shape.head_dim_v]
    return k_cache, torch.empty(pages, *middle, shape.head_dim_v, dtype=dtype, device=device)


def is_prefix(k_cache: torch.Tensor, v_cache: torch.Tensor) -> bool:
    """Return if ``v_cache`` is the first columns of ``k_cache``, of as many pages, where they lie."""
    return (
        k_cache.data_ptr() == v_cache.data_ptr()
        and k_cache.shape[:3] == v_cache.shape[:3]
        and all(
            ours == theirs
            for size, ours, theirs in zip(k_cache.shape[:3], k_cache.stride(), v_cache.stride(), strict=False)
            if size > 1
        )
    )
