"""Runs the public function over caches of latents as engines hold them, and compares with dense attention in fp64."""

import math
from typing import Any, Final

import torch

import autotune
from autotune.correctness import error_limit
from tests.kernels.numerics import compare
from tests.kernels.paged_decode.numerics import dense_decode

SCALE: Final = (128 + 64) ** -0.5  # of the heads that latents are projected from


def cache_of(engine: str, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, int, str]:
    """Return 160 random latents of 320 as an engine holds them, as a cache; the size of its pages, and the layout.

    vLLM: ``[blocks, block_size, 320]``; SGLang: ``[slots, 1, 320]``; FlashMLA: ``[blocks, block_size, 1, 320]``. The
    last one lies in rows that are longer.
    """
    latents = torch.randn(160, 320, generator=torch.Generator(device=device).manual_seed(0), device=device).to(dtype)
    if engine == "vllm":
        return latents.view(10, 16, 320).unsqueeze(2), 16, "NHD"
    if engine == "vllm by heads":
        return latents.view(10, 16, 320).unsqueeze(1), 16, "HND"
    if engine == "sglang":
        return latents.view(160, 1, 320).unsqueeze(1), 1, "NHD"
    wide = latents.new_full((10, 16, 1, 384), math.nan)
    wide[..., :320] = latents.view(10, 16, 1, 320)
    return wide[..., :320], 16, "NHD"


def decoded(cache: torch.Tensor, pages: list[list[int]], lengths: list[int], layout: str, **options: Any) -> Any:
    """Decode three sequences of five heads with the pages and lengths given; return queries and results."""
    generator = torch.Generator(device=cache.device).manual_seed(1)
    q = torch.randn(len(lengths), 5, 320, generator=generator, device=cache.device).to(cache.dtype)
    table, seq_lens = (torch.tensor(each, dtype=torch.int32, device=cache.device) for each in (pages, lengths))
    named: dict[str, Any] = {"layout": layout, "scale": SCALE, "return_lse": True, **options}
    return q, autotune.paged_decode(q, cache, cache[..., :256], table, seq_lens, **named)


def engine_failure(engine: str, device: str) -> str | None:
    """Decode over an engine's cache: three sequences, one of them empty."""
    cache, page, layout = cache_of(engine, torch.float16, device)
    rows = (cache if layout == "NHD" else cache.transpose(1, 2)).flatten(0, 1)  # a token each
    pages = [[9, 3, 0, -1], [5, -1, -1, -1], [-1, -1, -1, -1]]
    if page == 1:
        pages = [[entry * 16 + slot for entry in row if entry >= 0 for slot in range(16)] for row in pages]
        pages = [row + [-1] * (64 - len(row)) for row in pages]
    lengths = [40, 3, 0]
    q, (out, lse) = decoded(cache, pages, lengths, layout)
    for sequence, length in enumerate(lengths):
        places = [pages[sequence][key // page] * page + key % page for key in range(length)]
        found = difference(q[sequence], rows[places], out[sequence], lse[sequence])
        if found is not None:
            return f"sequence {sequence}: {found}"
    return None


def difference(q: torch.Tensor, keys: torch.Tensor, out: torch.Tensor, lse: torch.Tensor) -> str | None:
    """Say how a result of one query ``[H, 320]`` over keys ``[length, 1, 320]`` misses the truth, or None."""
    expected, expected_lse = dense_decode(q[None], keys, keys[..., :256], scale=SCALE)
    eager = dense_decode(q[None], keys, keys[..., :256], scale=SCALE, dtype=torch.float16)[0]
    if not torch.allclose(lse.double(), expected_lse[0], atol=1e-4):
        return f"logarithms {lse} instead of {expected_lse[0]}"
    return compare(out, expected[0], error_limit(expected[0], eager[0], torch.float16))


def indices_failure(absent: int, device: str) -> str | None:
    """Decode over top-k indices, filled up with what is none and with some in between, as over those that are there."""
    cache, _, layout = cache_of("sglang", torch.float16, device)
    rows = cache.flatten(0, 1)
    generator = torch.Generator().manual_seed(2)
    indices = [torch.randperm(160, generator=generator)[:count].tolist() for count in (50, 7, 0)]
    padded = [row + [absent] * (64 - len(row)) for row in indices]
    padded[0][10] = padded[0][63] = padded[1][0] = absent
    padded[1][40] = indices[1][0]
    indices[0].pop(10)
    q, (out, lse) = decoded(cache, padded, [64, 64, 64], layout, check=absent < 0)
    for sequence, places in enumerate(indices):
        found = difference(q[sequence], rows[places], out[sequence], lse[sequence])
        if found is not None:
            return f"sequence {sequence}: {found}"
    return None


def absent_pages_failure(absent: int, device: str) -> str | None:
    """Decode over pages of 16 tokens of which two are none, as over the tokens of the others."""
    cache, _, layout = cache_of("vllm", torch.float16, device)
    rows = cache.flatten(0, 1)
    q, (out, lse) = decoded(cache, [[9, absent, 0, absent]], [60], layout)
    return difference(q[0], rows[[*range(144, 160), *range(16)]], out[0], lse[0])


def appended_failure(device: str) -> str | None:
    """Append tokens, each both key and value, to slots of a cache in any order: they lie there whole."""
    latents = torch.randn(20, 1, 320, generator=torch.Generator(device=device).manual_seed(3), device=device).half()
    cache = torch.zeros(3, 8, 1, 320, dtype=torch.float16, device=device)
    slots = torch.randperm(24, generator=torch.Generator().manual_seed(4))[:20].to(device)
    autotune.append_kv(latents, latents[..., :256], cache, cache[..., :256], slots, check=True)
    return None if torch.equal(cache.flatten(0, 1)[slots], latents) else "other latents than were appended"


def traced_failure(backend: str) -> str | None:
    """Compile a call with the view of the values made inside: what runs must see them where the keys lie."""

    def attend(q: torch.Tensor, cache: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return autotune.paged_decode(q, cache, cache[..., :256], table, lengths, scale=SCALE) * 1.0

    cache, _, _ = cache_of("vllm", torch.float16, "cpu")
    q = torch.randn(2, 5, 320).half()
    table, lengths = torch.tensor([[9, 3], [5, 1]], dtype=torch.int32), torch.tensor([20, 32], dtype=torch.int32)
    eager = attend(q, cache, table, lengths)
    found = torch.compile(attend, backend=backend, fullgraph=True)(q, cache, table, lengths)
    return None if torch.equal(found, eager) else "another result than eager"
