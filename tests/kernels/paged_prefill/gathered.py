"""Pages laid side by side by torch: the truth of the kernel that copies them, and its stand-in in simulations."""

from collections.abc import Callable
from typing import Any, Final

import torch


def gather(
    cache: Any, page_table: torch.Tensor, seq_lens: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
    key_offsets: torch.Tensor, cu_seqlens_q: torch.Tensor | None, table_stride: int, capacity: int, cache_pages: int,
    room: int, window: int | None, kv_heads: int, tokens: int, widths: Any, paging: Any,
) -> None:  # fmt: skip
    """Fill ``keys [B * room, H_kv, D]``, ``values`` and ``key_offsets [B + 1]`` as ``gather_pages`` does."""
    key_offsets.copy_(torch.arange(len(key_offsets)) * room)
    counts = None if cu_seqlens_q is None else cu_seqlens_q.diff().tolist()
    for target, source, strides, width, scales in (
        (keys, cache.k, paging.key_strides, widths.k, cache.k_scales),
        (values, cache.v, paging.value_strides, widths.v, None),
    ):
        sizes = (cache_pages, paging.page_size, kv_heads, width)
        laid_out = source.as_strided(sizes, (*strides, 1)).float()
        for sequence, length in enumerate(seq_lens.clamp(0, capacity).tolist()):
            places = torch.arange(length)
            table = page_table.as_strided(page_table.shape, (table_stride, 1))[sequence].long()
            pages = table[places // paging.page_size]
            pages = torch.where((pages < 0) | (pages >= cache_pages), cache_pages - 1, pages)
            rows = laid_out[pages, places % paging.page_size]
            if scales is not None:
                signs = scales.expand(kv_heads) if scales.ndim == 0 else scales
                rows = torch.where(signs[:, None] < 0, -rows, rows)
            begin = 0
            if counts is not None and window is not None:
                first = max(0, length - counts[sequence] - window + 1)
                rows[:first] = 0.0
                begin = length if counts[sequence] == 0 else max(0, (first - ZEROS) // tokens * tokens)
            target[sequence * room + begin : sequence * room + length] = rows[begin:].to(target.dtype)


ZEROS: Final = 256  # of keys before the first in a window


class GatheredByTorch:
    """Stands for ``gather_pages`` in the module that launches it."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, num_warps: gather(*arguments)


GATHERED_BY_TORCH: Final = GatheredByTorch()
