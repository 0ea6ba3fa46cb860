"""Limits of the vLLM backend: the caches, widths and dtypes that are computed; others are refused with a reason."""

from typing import Final

import torch

from autotune.errors import InvalidShapeError, UnsupportedCallError
from autotune.shape import PagedShape

DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)
QUANTIZED: Final = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
PLAIN: Final = {"float16": torch.float16, "bfloat16": torch.bfloat16}
CACHES: Final = ("auto", *PLAIN, *QUANTIZED)
BLOCK_SIZES: Final = (16, 32, 64, 128, 256, 512, 1024)  # of the kernels: vLLM cuts longer blocks into these
FIRST_CAPABILITY: Final = (8, 0)
FIRST_WITH_E4M3: Final = (8, 9)


def quantized_type(kv_cache_dtype: str) -> torch.dtype | None:
    """Return the type of a quantized cache's elements, which vLLM holds as bytes; None of one that is not quantized.

    Raises:
        UnsupportedCallError: no kernel reads such a cache.
    """
    if kv_cache_dtype not in CACHES:
        allowed = ", ".join(CACHES)
        raise UnsupportedCallError(f"kv_cache_dtype={kv_cache_dtype!r} is not computed; expected one of {allowed}")
    return QUANTIZED.get(kv_cache_dtype)


def is_head_size(head_size: int) -> bool:
    """Return True if keys and values of this width are computed; MLA's latents, 320 among them, are not."""
    try:
        PagedShape(batch=1, heads=1, max_context=1, head_dim=head_size, head_dim_v=head_size)
    except InvalidShapeError:
        return False
    return True


def reason_against(dtype: torch.dtype, kv_cache_dtype: str | None, capability: tuple[int, int]) -> str | None:
    """Return why queries of a dtype over such a cache are not computed on a GPU of this capability, or None."""
    cache = kv_cache_dtype or "auto"
    if cache in PLAIN and PLAIN[cache] != dtype:
        return f"kv_cache_dtype={cache} is not the model's dtype, {dtype}"
    if cache in QUANTIZED and dtype == torch.float32:
        return f"kv_cache_dtype={cache} is read under float16 and bfloat16 alone"
    if QUANTIZED.get(cache) == torch.float8_e4m3fn and capability < FIRST_WITH_E4M3:
        return f"kv_cache_dtype={cache} needs compute capability 8.9; fp8_e5m2 does not"
    return None
