"""Appends to a paged cache and compares every byte of it, and of its scales, with what torch stores on the CPU."""

import math
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch

from autotune import PagedKVCache, append_kv, paged_decode, paged_prefill
from autotune.correctness import error_limit
from autotune.kernels.paged_cache.quantization import quantize
from autotune.kernels.paged_decode.reference import paged_decode_reference
from autotune.kernels.paged_prefill.reference import paged_prefill_reference
from tests.kernels.numerics import compare

PAGES: Final = 6
TOKENS: Final = 11
BITS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``kv_dtype`` follows ``dtype``; ``scale`` is that of an 8-bit float's cache."""

    dtype: str = "float16"
    kv_dtype: str | None = None
    layout: Literal["NHD", "HND"] = "NHD"
    kv_heads: int = 2
    head_dim: int = 64
    head_dim_v: int = 64
    page_size: int = 4
    scale: str = "none"  # one, heads
    slots: str = "int64"
    strided: bool = False

    def __str__(self) -> str:
        sizes = f"{self.kv_heads}x{self.head_dim}-{self.head_dim_v}-page{self.page_size}"
        extras = [self.slots, self.scale, *(["strided"] if self.strided else [])]
        return "-".join([self.dtype, self.kv_dtype or "same", self.layout, sizes, *extras])


def differing(actual: torch.Tensor, expected: torch.Tensor) -> int:
    """Count the elements that differ in a bit; all NaN are one."""
    kind = BITS[actual.itemsize]
    same = actual.view(kind) == expected.view(kind)
    if actual.is_floating_point():
        same |= actual.float().isnan() & expected.float().isnan()
    return int((~same).sum())


def draw_tokens(sizes: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Normal numbers, and rows of zeros, of halves of an int8's unit, of large and small numbers, of NaN, infinity."""
    tokens = torch.randn(*sizes, generator=generator)
    tokens[0, 0] = 0.0
    tokens[1, 0] = torch.arange(sizes[2]) % 100 + 0.5
    tokens[1, 0, 0] = 127.0
    tokens[2, 0] *= torch.finfo(dtype).max / 8.0
    tokens[3, 0] *= 1e-6
    tokens[4, 0, 1] = math.nan
    tokens[4, 1, 2] = -math.inf
    tokens[5, 0] *= 1e-43 if dtype == torch.float32 else 1e-7
    return tokens.clamp(-math.inf, math.inf).to(dtype)


def filled(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows that are longer by 16 elements, of some bytes."""
    return torch.full((*sizes[:-1], (sizes[-1] + 16) * dtype.itemsize), 0x5A, dtype=torch.uint8).view(dtype)


def store(pool: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, layout: str) -> None:
    """Put ``rows [T, H_kv, ...]`` where the slots say, as torch does it."""
    if pool.itemsize == 1:
        pool, rows = pool.view(torch.uint8), rows.view(torch.uint8)
    by_slot = pool if layout == "NHD" else pool.transpose(1, 2)
    for slot, row in zip(slots.tolist(), rows, strict=True):
        if slot >= 0:
            by_slot[slot // by_slot.shape[1], slot % by_slot.shape[1]] = row


def place(rows: torch.Tensor, strided: bool, device: str) -> torch.Tensor:
    """Tokens on the device; ``strided``: the middle of the rows of a fused projection, heads before tokens."""
    tokens, heads, width = rows.shape
    if not strided:
        return rows.to(device)
    fused = torch.full((heads, tokens, 3 * width), math.nan, dtype=rows.dtype, device=device)
    return fused.transpose(0, 1)[..., width : 2 * width].copy_(rows)


def case_failure(case: Case, device: str) -> str | None:
    """Append some tokens; what differs from torch, or None."""
    generator = torch.Generator().manual_seed(3)
    dtype, kv_dtype = getattr(torch, case.dtype), getattr(torch, case.kv_dtype or case.dtype)
    slots = torch.randperm(PAGES * case.page_size, generator=generator)[:TOKENS].to(getattr(torch, case.slots))
    slots[7], slots[9] = -1, -100
    middle = (case.page_size, case.kv_heads) if case.layout == "NHD" else (case.kv_heads, case.page_size)
    arguments: dict[str, Any] = {"slots": slots.to(device)}
    pools: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}  # as appended to, and as expected
    for name, width in (("k", case.head_dim), ("v", case.head_dim_v)):
        rows = draw_tokens((TOKENS, case.kv_heads, width), dtype, generator)
        arguments[name] = place(rows, case.strided, device)
        scale = None
        if case.scale != "none":
            scale = torch.rand(case.kv_heads if case.scale == "heads" else (), generator=generator) + 0.1
            arguments[f"{name}_scale"] = scale.to(device)
        values, row_scales = quantize(rows, kv_dtype, scale) if case.kv_dtype else (rows, rows)
        cache = filled(PAGES, *middle, width, dtype=kv_dtype)
        pools[f"{name}_cache"] = cache.to(device, copy=True), cache
        arguments[f"{name}_cache"] = pools[f"{name}_cache"][0][..., :width]
        store(cache[..., :width], values, slots, case.layout)
        if kv_dtype == torch.int8:
            scales = torch.full((PAGES, *middle), 0.25)
            pools[f"{name}_scale"] = scales.to(device, copy=True), scales
            arguments[f"{name}_scale"] = pools[f"{name}_scale"][0]
            store(scales, row_scales, slots, case.layout)
    append_kv(**arguments, layout=case.layout, check=True)
    wrong = {name: differing(actual.cpu(), expected) for name, (actual, expected) in pools.items()}
    return f"elements that differ: {wrong}" if any(wrong.values()) else None


def every_half_failure(kv_dtype: str, device: str) -> str | None:
    """Append every number of fp16; what differs from torch, or None."""
    k = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16).reshape(256, 2, 128)
    cache = torch.zeros(16, 16, 2, 128, dtype=getattr(torch, kv_dtype), device=device)
    given = k.to(device)
    append_kv(given, given, cache, torch.zeros_like(cache), torch.arange(256, device=device))
    expected, _ = quantize(k, cache.dtype)
    wrong = differing(cache.cpu().flatten(0, 1), expected)
    return f"{wrong} numbers differ" if wrong else None


def distant_failure(device: str) -> str | None:
    """Append to a cache whose last page lies beyond 2**32 elements; a CPU gives out only pages that are touched."""
    stride = 2**30
    buffer = torch.empty(4 * stride + 64, dtype=torch.float16, device=device)
    k_cache, v_cache = (buffer.as_strided((5, 1, 1, 32), (stride, 32, 32, 1), start) for start in (0, 32))
    k, v = (torch.full((1, 1, 32), value, dtype=torch.float16, device=device) for value in (1.0, 2.0))
    append_kv(k, v, k_cache, v_cache, torch.tensor([4], device=device))
    is_there = torch.equal(k_cache[4, 0], k[0]) and torch.equal(v_cache[4, 0], v[0])
    return None if is_there else "the tokens are elsewhere"


def outside_failure(device: str) -> str | None:
    """Append to slots around a cache that lies amid the memory of others: only the one that it has may change."""
    buffer = torch.zeros(2, 9, 4, 1, 32, dtype=torch.float16, device=device)
    k_cache, v_cache = (each[2:7] for each in buffer)  # 5 pages of 4
    slots = torch.tensor([7, 20, 23, 35, 10**7, 2**40, 2**62, 2**63 - 1, -1, -4, -(2**63)], device=device)
    k, v = (torch.full((len(slots), 1, 32), value, dtype=torch.float16, device=device) for value in (1.0, 2.0))
    append_kv(k, v, k_cache, v_cache, slots)
    expected = torch.zeros_like(buffer)
    expected[0, 3, 3], expected[1, 3, 3] = 1.0, 2.0
    return None if torch.equal(buffer, expected) else "memory outside the cache, or of another token, was written"


def graph_failure(kv_dtype: str) -> str | None:
    """Capture an append, change tokens and slots under it, replay: the cache must follow."""
    generator = torch.Generator().manual_seed(4)
    first, later = (torch.randn(4, 2, 64, generator=generator).cuda().bfloat16() for _ in range(2))
    slots = torch.tensor([0, 5, -1, 9], device="cuda")
    dtype = getattr(torch, kv_dtype)
    k_cache, v_cache = (torch.zeros(4, 4, 2, 64, dtype=dtype, device="cuda") for _ in range(2))
    k_scale, v_scale = (torch.zeros(4, 4, 2, device="cuda") if dtype == torch.int8 else None for _ in range(2))
    written = [(k_cache, k_scale), (v_cache, v_scale)]

    def append() -> None:
        append_kv(first, 2 * first, k_cache, v_cache, slots, k_scale=k_scale, v_scale=v_scale)

    append()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        append()
    for tensor in (k_cache, v_cache, k_scale, v_scale):
        if tensor is not None:
            tensor.zero_()
    first.copy_(later)
    slots.copy_(torch.tensor([15, -3, 2, 4]))
    # What is doubled was computed when the graph was captured, and is computed again by its replay.
    graph.replay()
    for (cache, scale), tokens in zip(written, (later, 2 * later), strict=True):
        values, row_scale = quantize(tokens.cpu(), dtype) if dtype.itemsize == 1 else (tokens.cpu(), None)
        expected = torch.zeros_like(cache, device="cpu")
        store(expected, values, slots.cpu(), "NHD")
        if wrong := differing(cache.cpu(), expected):
            return f"{wrong} elements differ"
        if scale is not None and row_scale is not None:
            stored = scale.cpu().flatten(0, 1)[slots.cpu()[slots.cpu() >= 0]]
            if not torch.equal(stored, row_scale[slots.cpu() >= 0]):
                return "scales differ"
    return None


def attention_failure(kv_dtype: str, device: str, dtype: torch.dtype = torch.bfloat16) -> str | None:
    """Append, then decode: what the public functions compute must be attention over what the cache stands for."""
    generator = torch.Generator(device=device).manual_seed(5)
    lengths, page_size = (70, 33), 16
    k, v = (torch.randn(2 * 80, 2, 64, generator=generator, device=device).to(dtype) for _ in range(2))
    q = torch.randn(2, 1, 8, 64, generator=generator, device=device).to(dtype)
    kind = getattr(torch, kv_dtype)
    k_cache, v_cache = (torch.zeros(10, page_size, 2, 64, dtype=kind, device=device) for _ in range(2))
    sizes = (10, page_size, 2) if kind == torch.int8 else ()
    scales: dict[str, Any] = {name: torch.full(sizes, 0.05, device=device) for name in ("k_scale", "v_scale")}
    table = torch.arange(10, dtype=torch.int32, device=device).reshape(2, 5)
    seq_lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    append_kv(k, v, k_cache, v_cache, torch.arange(160, device=device), **scales)
    out = paged_decode(q, k_cache, v_cache, table, seq_lens, **scales)
    expected, eager = (
        paged_decode_reference(q, k_cache, v_cache, table, seq_lens, **scales, dtype=precision)[0]
        for precision in (torch.float64, dtype)
    )
    assert isinstance(out, torch.Tensor)
    return compare(out, expected, error_limit(expected, eager, dtype))


def prefill_failure(device: str, dtype: torch.dtype = torch.bfloat16, kv_dtype: str | None = None) -> str | None:
    """Fill a ``PagedKVCache``, then prefill: what is computed must be attention over what was appended."""
    generator = torch.Generator(device=device).manual_seed(6)
    stored = dtype if kv_dtype is None else getattr(torch, kv_dtype)
    cache = PagedKVCache(pages=12, page_size=8, kv_heads=2, head_dim=32, dtype=stored, device=device)
    ids = [cache.allocate(), cache.allocate()]
    for sequence, length in zip(ids, (41, 9), strict=True):
        cache.append(sequence, *torch.randn(2, length, 2, 32, generator=generator, device=device).to(dtype))
    q = torch.randn(23, 4, 32, generator=generator, device=device).to(dtype)
    offsets = torch.tensor([0, 17, 23], dtype=torch.int32, device=device)
    tensors = (q, cache.k_cache, cache.v_cache, cache.page_table(ids), cache.seq_lens(ids), offsets)
    scales: dict[str, Any] = {"k_scale": cache.k_scale, "v_scale": cache.v_scale}
    out = paged_prefill(*tensors, **scales)
    expected, eager = (
        paged_prefill_reference(*tensors, **scales, dtype=precision)[0] for precision in (torch.float64, dtype)
    )
    assert isinstance(out, torch.Tensor)
    return compare(out, expected, error_limit(expected, eager, dtype))


def one_element_failure(device: str) -> str | None:
    """Append to a cache of width 1, and decode over one page, or one sequence: their last strides lead nowhere."""
    generator = torch.Generator(device=device).manual_seed(7)
    rows = torch.randn(5, 2, 3, generator=generator, device=device)[..., ::3]
    narrow_k, narrow_v = (torch.zeros(3, 4, 2, 3, device=device)[..., ::3] for _ in range(2))
    append_kv(rows, -rows, narrow_k, narrow_v, torch.arange(5, device=device), check=True)
    for sign, cache in ((1.0, narrow_k), (-1.0, narrow_v)):
        if not torch.equal(cache.flatten(0, 1)[:5], sign * rows) or cache.flatten(0, 1)[5:].any():
            return "what was appended is not what was given"
    q = torch.randn(2, 1, 4, 16, generator=generator, device=device)
    k_cache, v_cache = torch.randn(2, 4, 32, 2, 16, generator=generator, device=device)
    pages, lengths = (torch.tensor(given, dtype=torch.int32, device=device) for given in ([3, 1, 2, 0], [21, 32]))
    for batch, seq_lens in ((2, lengths), (1, lengths[::2])):
        tensors = (q[:batch], k_cache, v_cache, pages.as_strided((batch, 1), (1, 3)), seq_lens)
        out = paged_decode(*tensors, check=True)
        expected, eager = (paged_decode_reference(*tensors, dtype=kind)[0] for kind in (torch.float64, torch.float32))
        assert isinstance(out, torch.Tensor)
        if (found := compare(out, expected, error_limit(expected, eager, torch.float32))) is not None:
            return f"batch {batch}: {found}"
    return None
