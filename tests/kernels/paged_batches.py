"""Sequences in a batch and alone, through the public functions with ``AUTOTUNE_BATCH_INVARIANT=1``."""

import os
from collections.abc import Callable
from typing import Any, Final

import torch

import autotune
from autotune.dispatch.batch_invariance import VARIABLE

LENGTHS: Final = (100, 17, 300, 64)
PAGE: Final = 16
HEADS, KV_HEADS, WIDTH = 4, 1, 64
QUERIES: Final = (1, 17, 48, 30)  # of each sequence; chunks, a decode step among them


def alone_failure(operation: str, kv_dtype: str, device: str) -> str | None:
    """Return which sequence has other bits alone, over a page table of its own width, or None."""
    os.environ[VARIABLE] = "1"
    autotune.reload()
    try:
        return _alone_failure(operation, kv_dtype, device)
    finally:
        del os.environ[VARIABLE]
        autotune.reload()


def _alone_failure(operation: str, kv_dtype: str, device: str) -> str | None:
    draw = torch.Generator().manual_seed(22)
    pages = [-(-length // PAGE) for length in LENGTHS]
    keys, values = torch.randn(2, sum(pages), PAGE, KV_HEADS, WIDTH, generator=draw)
    dtype = torch.float16 if kv_dtype == "float16" else getattr(torch, kv_dtype)
    caches = [each.to(dtype).to(device) for each in (keys, values)]
    scales: dict[str, Any] = {}
    if dtype != torch.float16:
        scales = {name: torch.tensor(1.0, device=device) for name in ("k_scale", "v_scale")}
    order = torch.randperm(sum(pages), generator=draw, dtype=torch.int32).split_with_sizes(pages)
    counts = QUERIES if operation == "paged_prefill" else (1,) * len(LENGTHS)
    q = torch.randn(sum(counts), HEADS, WIDTH, generator=draw).half()

    def call(chosen: list[int]) -> list[torch.Tensor]:
        table = torch.zeros(len(chosen), max(pages[each] for each in chosen), dtype=torch.int32)
        for row, each in enumerate(chosen):
            table[row, : pages[each]] = order[each]
        rows = q.split_with_sizes(counts)
        found: tuple[torch.Tensor, ...] = (torch.cat([rows[each] for each in chosen]), table)
        found += (torch.tensor([LENGTHS[each] for each in chosen], dtype=torch.int32),)
        if operation == "paged_prefill":
            ends = torch.tensor([0, *(counts[each] for each in chosen)]).cumsum(0)
            found += (ends.to(torch.int32),)
        queries, *rest = (each.to(device) for each in found)
        function: Callable[..., torch.Tensor] = getattr(autotune, operation)
        out = function(queries, *caches, *rest, window=200, **scales)
        return list(out.split_with_sizes([counts[each] for each in chosen]))

    together = call([0, 1, 2, 3])
    for company in ([2], [3, 1]):
        for place, found in zip(company, call(company), strict=True):
            if not torch.equal(found, together[place]):
                return f"sequence {place} has other bits among {company}"
    return None
