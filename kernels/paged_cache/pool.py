"""Room for a paged cache, laid out alike wherever one is made: for serving, for tuning, for compiling ahead."""

import torch

from autotune.shape import PagedShape


def allocate_caches(
    shape: PagedShape, pages: int, device: torch.device | str, dtype: torch.dtype | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys ``[pages, page_size, H_kv, D]`` and values ``[..., D_v]``, or both in the order of the layout ``HND``, whose
    elements are undefined; of one width they share a buffer, page by page, as in FlashInfer.

    In the cache's own type by default. Strides are constants of the kernels' binaries: a cache that was allocated
    otherwise computes the same, with binaries of its own.
    """
    dtype = dtype or getattr(torch, shape.kv_dtype)
    middle = (shape.page_size, shape.kv_heads) if shape.layout == "NHD" else (shape.kv_heads, shape.page_size)
    if shape.head_dim == shape.head_dim_v:
        both = torch.empty(pages, 2, *middle, shape.head_dim, dtype=dtype, device=device)
        return both[:, 0], both[:, 1]
    k_cache = torch.empty(pages, *middle, shape.head_dim, dtype=dtype, device=device)
    return k_cache, torch.empty(pages, *middle, shape.head_dim_v, dtype=dtype, device=device)
