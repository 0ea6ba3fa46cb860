"""The cache of ``flash_attn_with_kvcache`` as pages, the keys that it holds, and where new ones go.

What the host knows of them is checked, and nothing on the GPU is read."""

import warnings
from functools import cache
from typing import Final, NamedTuple

import torch

from autotune.errors import InputMismatchError, UsageError

PAGES: Final = (256, 128, 64, 32, 16)  # tokens, that a row of a contiguous cache is cut into
MAX_PAGE: Final = 1024
SMALL_PAGE: Final = 16  # kernels load tiles of keys, and smaller pages apart


class CachePages(NamedTuple):
    """Caches ``[pages, page_size, H_kv, D]``, and int32 ``[B, max_pages]``, as ``paged_decode`` takes them."""

    k_cache: torch.Tensor
    v_cache: torch.Tensor
    table: torch.Tensor


def pages_of(
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_batch_idx: torch.Tensor | None,
    batch: int,
) -> CachePages:
    """Return a cache as pages; the rows of a contiguous one are cut, without a copy.

    Raises:
        InputMismatchError: fewer rows than sequences, or another number of their places; rows that cannot be cut.
    """
    if block_table is not None:
        return CachePages(k_cache, v_cache, block_table)
    if v_cache.shape[:2] != k_cache.shape[:2]:
        expected = f"expected {list(k_cache.shape[:2])}, as k_cache has"
        raise InputMismatchError(f"v_cache is {tuple(v_cache.shape)}; {expected}")
    rows = _rows(cache_batch_idx, k_cache, batch)
    length = k_cache.shape[1]
    page_size = _page_size(length)
    count = length // page_size
    k_pages, v_pages = (_cut(name, each, page_size) for name, each in (("k_cache", k_cache), ("v_cache", v_cache)))
    table = rows[:, None] * count + torch.arange(count, device=k_cache.device)
    return CachePages(k_pages, v_pages, table.to(torch.int32))


def lengths_of(
    given: torch.Tensor | int | None, k_cache: torch.Tensor, block_table: torch.Tensor | None, batch: int, new: int
) -> torch.Tensor:
    """Return the keys that each sequence has before so many new ones, int32 ``[batch]``, given as ``cache_seqlens``.

    Raises:
        UsageError: none is given where a default is of no use, or one number that leaves no room for the new keys.
        InputMismatchError: a tensor of other sizes.
    """
    if isinstance(given, torch.Tensor):
        if tuple(given.shape) != (batch,) or given.dtype != torch.int32:
            shown = f"{tuple(given.shape)} of {given.dtype}"
            raise InputMismatchError(f"cache_seqlens is {shown}; expected [{batch}] of torch.int32, as the batch of q")
        return given
    capacity = k_cache.shape[1] * (1 if block_table is None else block_table.shape[-1])
    if given is None:
        if block_table is not None or new:
            beside = "new keys" if block_table is None else "a block_table"
            raise UsageError(f"cache_seqlens=None beside {beside}; expected the keys of each sequence")
        given = capacity
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= capacity - new:
        room = f"the {capacity} keys of a sequence in the cache" + (f" less {new} new ones" if new else "")
        raise UsageError(f"cache_seqlens={given!r} is not allowed; expected 0 to {capacity - new}, {room}")
    return torch.full((batch,), given, dtype=torch.int32, device=k_cache.device)


def slots_of(pages: CachePages, lengths: torch.Tensor, count: int) -> torch.Tensor:
    """Return the slots of so many new tokens of each sequence, behind those that it has; negative, which ``append_kv``
    skips, for those that do not fit into its pages."""
    page_size = pages.k_cache.shape[1]
    places = lengths[:, None].long() + torch.arange(count, device=lengths.device)
    table = torch.nn.functional.pad(pages.table, (1, 1), value=-1)  # no page before the first, nor behind the last
    columns = (places // page_size + 1).clamp(0, table.shape[1] - 1)
    return (table.gather(1, columns).long() * page_size + places % page_size).flatten()


def _rows(cache_batch_idx: torch.Tensor | None, k_cache: torch.Tensor, batch: int) -> torch.Tensor:
    """Return the row of a contiguous cache that is each sequence's."""
    if cache_batch_idx is None:
        if batch > k_cache.shape[0]:
            expected = f"expected {batch} rows at least, one for each sequence of q, or cache_batch_idx"
            raise InputMismatchError(f"k_cache is {tuple(k_cache.shape)}; {expected}")
        return torch.arange(batch, device=k_cache.device)
    is_number = not cache_batch_idx.dtype.is_floating_point and cache_batch_idx.dtype != torch.bool
    if tuple(cache_batch_idx.shape) != (batch,) or not is_number:
        given = f"{tuple(cache_batch_idx.shape)} of {cache_batch_idx.dtype}"
        raise InputMismatchError(f"cache_batch_idx is {given}; expected [{batch}] of torch.int32, as the batch of q")
    return cache_batch_idx.long()


@cache  # it warns once of a length
def _page_size(length: int) -> int:
    """Return how many tokens of a row of so many make a page."""
    if (found := next((each for each in PAGES if length % each == 0), None)) is not None:
        return found
    found = max(each for each in range(1, MAX_PAGE + 1) if length % each == 0)
    if found < min(SMALL_PAGE, length):
        warnings.warn(
            f"k_cache has rows of {length} tokens, which are cut into pages of {found}, and that is slow; allocate "
            f"{-(-length // SMALL_PAGE) * SMALL_PAGE}, a multiple of {SMALL_PAGE}",
            RuntimeWarning,
            stacklevel=4,
        )
    return found


def _cut(name: str, cache: torch.Tensor, page_size: int) -> torch.Tensor:
    try:
        return cache.view(-1, page_size, *cache.shape[2:])
    except RuntimeError:
        expected = "expected rows one after another, as a contiguous cache has them, or a block_table"
        raise InputMismatchError(
            f"{name} has strides {cache.stride()} for sizes {tuple(cache.shape)}; {expected}"
        ) from None
