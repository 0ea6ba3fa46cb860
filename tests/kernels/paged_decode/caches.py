"""Caches and page tables with which a read outside of the cache shows."""

from dataclasses import replace
from typing import Any, Final

import torch

ENTRIES: Final = ((0, 0), (1, 1), (1, 3))  # of a page table, where keys are read


def amid_nan(inputs: Any) -> Any:
    """Put the caches of inputs between two pages of NaN, and 0.5 where they have NaN themselves."""

    def wrap(cache: torch.Tensor) -> torch.Tensor:
        wide = cache.new_full((cache.shape[0] + 2, *cache.shape[1:]), float("nan"))
        wide[1:-1] = cache.nan_to_num(0.5)
        return wide[1:-1]

    return replace(inputs, k_cache=wrap(inputs.k_cache), v_cache=wrap(inputs.v_cache))


def with_entry(page_table: torch.Tensor, entry: int) -> torch.Tensor:
    """Return a page table that has one entry in several places."""
    changed = page_table.clone()
    for row, column in ENTRIES:
        changed[row, column] = entry
    return changed
