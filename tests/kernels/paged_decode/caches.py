"""Caches and page tables with which a read outside of the cache shows."""

from dataclasses import replace
from typing import Any, Final

import torch

ENTRIES: Final = ((0, 0), (1, 1), (1, 3))  # of a page table, where keys are read
FOREIGN: Final = 100  # of caches of integers, on both sides


def amid_nan(inputs: Any) -> Any:
    """Put the caches of inputs, and scales a slot, between two pages of NaN, and 0.5 where they have NaN themselves."""

    def wrap(cache: torch.Tensor) -> torch.Tensor:
        is_floating = cache.is_floating_point()
        wide = cache.new_full((cache.shape[0] + 2, *cache.shape[1:]), float("nan") if is_floating else FOREIGN)
        wide[1:-1] = cache.nan_to_num(0.5) if is_floating else cache
        return wide[1:-1]

    names = ["k_cache", "v_cache"]
    if inputs.k_scale is not None:
        names += ["k_scale", "v_scale"]
    return replace(inputs, **{name: wrap(getattr(inputs, name)) for name in names})


def with_entry(page_table: torch.Tensor, entry: int) -> torch.Tensor:
    """Return a page table that has one entry in several places."""
    changed = page_table.clone()
    for row, column in ENTRIES:
        changed[row, column] = entry
    return changed


def differing(found: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> bool:
    """Return True if results, outputs and logarithms, are not the same to the bit, or not finite."""
    return not all(torch.equal(*pair) and bool(pair[0].isfinite().all()) for pair in zip(found, expected, strict=True))
