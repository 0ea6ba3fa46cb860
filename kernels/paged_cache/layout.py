"""Where page, slot and head lie among the axes of a paged cache, and of its scales."""

from typing import Final

import torch

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
