"""A sequence in a batch and alone, by one config: the same bits, or others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch

from autotune.device import NVIDIA_H200
from autotune.dispatch import get_kernel
from autotune.registry import load_kernel
from autotune.shape import PagedShape
from autotune.space import Config

PAGE: Final = 16
LENGTHS: Final = (60, 17, 300, 64)
WIDE: Final = (300, 5, 40)  # with 48 heads more rows than are merged as those of few
CHUNKS: Final = (1, 17, 48, 30)  # a decode step among chunks
HALF: Final[dict[str, Any]] = {"dtype": "float16", "page_size": PAGE}
NARROW_HEADS: Final[dict[str, Any]] = {**HALF, "heads": 4, "kv_heads": 1, "head_dim": 64, "window": 200}
CASES: Final[dict[str, tuple[PagedShape, tuple[int, ...]]]] = {
    "decode": (PagedShape(batch=4, max_context=300, **NARROW_HEADS), LENGTHS),
    "decode of wide heads": (
        PagedShape(batch=3, max_context=300, heads=48, kv_heads=1, head_dim=256, **HALF),
        WIDE,
    ),
    "decode of 8-bit floats": (PagedShape(batch=4, max_context=300, kv_dtype="float8_e5m2", **NARROW_HEADS), LENGTHS),
    "chunks": (PagedShape(batch=4, max_context=300, seq_q=24, **NARROW_HEADS), LENGTHS),
}


def other_bits(name: str, changed: dict[str, Any] | None, device: str) -> str | None:
    """Return which sequence of a case has other bits alone, or None, by the batch-invariant pick; ``changed`` are
    parameters of the config that follow it no more."""
    shape, lengths = CASES[name]
    kernel = get_kernel(shape, device=NVIDIA_H200.name, batch_invariant=True)
    config = Config({**kernel.config, **(changed or {})})
    launch = load_kernel(kernel.operation, kernel.implementation)
    is_prefill = kernel.operation == "paged_prefill"
    draw = torch.Generator().manual_seed(22)
    pages = [-(-length // PAGE) for length in lengths]
    of_pages = (sum(pages), PAGE, shape.kv_heads)
    caches = [torch.randn(*of_pages, shape.head_dim, generator=draw).to(getattr(torch, shape.kv_dtype)) for _ in "kv"]
    order = torch.randperm(sum(pages), generator=draw, dtype=torch.int32).split_with_sizes(pages)
    counts = CHUNKS if is_prefill else (1,) * len(lengths)
    rows = torch.randn(sum(counts), shape.heads, shape.head_dim, generator=draw).half().split_with_sizes(counts)
    options: dict[str, Any] = {}
    if shape.kv_dtype != shape.dtype:
        options = {each: torch.tensor(1.0, device=device) for each in ("k_scale", "v_scale")}

    def call(chosen: list[int]) -> list[torch.Tensor]:
        table = torch.zeros(len(chosen), max(pages[each] for each in chosen), dtype=torch.int32)
        for row, each in enumerate(chosen):
            table[row, : pages[each]] = order[each]
        tensors = [torch.cat([rows[each] for each in chosen]), *caches, table]
        tensors.append(torch.tensor([lengths[each] for each in chosen], dtype=torch.int32))
        if is_prefill:
            tensors.append(torch.tensor([0, *(counts[each] for each in chosen)]).cumsum(0).to(torch.int32))
        compute: Callable[..., torch.Tensor] = launch.bind(config, replace(shape, batch=len(chosen)))
        out = compute(*(each.to(device) for each in tensors), **options)
        return list(out.split_with_sizes([counts[each] for each in chosen]))

    together = call(list(range(len(lengths))))
    for company in ([0], [2, 1]):
        for place, found in zip(company, call(company), strict=True):
            if not torch.equal(found, together[place]):
                return f"sequence {place} has other bits among {company}"
    return None
