"""Calls of ``autotune.integrations.flash_attn`` against attention as its documentation says, in a process that
interprets: each function returns None, or what differs."""

import math
from itertools import pairwise
from typing import Any, Final

import torch

from autotune.integrations.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

TOLERANCE: Final = 2e-5
HEADS, KV_HEADS, DIM = 4, 2, 16
LENGTHS: Final = (19, 5, 40)


def expected(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    s_aux: torch.Tensor | None = None,
    softmax_scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one sequence, ``[S, H, D]``: query i sees keys from i + S_k - S_q - left to i + S_k - S_q + right, both
    counted; causal is right = 0."""
    q, k, v = (each.double() for each in (q, k, v))
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    ahead = torch.arange(k.shape[0])[None, :] - torch.arange(q.shape[0])[:, None] - (k.shape[0] - q.shape[0])
    if alibi_slopes is not None:
        scores = scores + alibi_slopes.double()[:, None, None] * ahead
    left, right = window_size[0], 0 if causal else window_size[1]
    hidden = (ahead > right if right >= 0 else ahead < -math.inf) | (ahead < -left if left >= 0 else ahead < -math.inf)
    scores = scores.masked_fill(hidden, -math.inf)
    if s_aux is not None:
        sink = s_aux.double()[:, None, None].expand(-1, q.shape[0], 1)
        lse = torch.cat([scores, sink], dim=-1).logsumexp(-1)
    else:
        lse = scores.logsumexp(-1)
    weights = torch.exp(scores - lse[..., None]).nan_to_num(0.0)
    return torch.einsum("hqk,khd->qhd", weights, v), lse


def drawn(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def differs(what: str, found: torch.Tensor, true: torch.Tensor) -> str | None:
    if found.shape != true.shape:
        return f"{what} has sizes {tuple(found.shape)}, not {tuple(true.shape)}"
    apart = (found.double() - true).nan_to_num(0.0, posinf=0.0, neginf=0.0).abs().max().item()
    return f"{what} differs by {apart}" if apart > TOLERANCE else None


def first(*found: str | None) -> str | None:
    return next((each for each in found if each is not None), None)


def dense_failure(queries: int, keys: int, **options: Any) -> str | None:
    q, k, v = (drawn(2, rows, heads, DIM, seed=n) for n, (rows, heads) in enumerate(
        ((queries, HEADS), (keys, KV_HEADS), (keys, KV_HEADS))
    ))  # fmt: skip
    out, lse, probabilities = flash_attn_func(q, k, v, return_attn_probs=True, **options)
    assert probabilities is None
    assert torch.equal(out, flash_attn_func(q, k, v, **options))
    true = [expected(q[b], k[b], v[b], **options) for b in range(2)]
    return first(
        differs("out", out, torch.stack([each for each, _ in true])),
        differs("lse", lse, torch.stack([each for _, each in true])),
    )


def varlen_failure(paged: bool = False, **options: Any) -> str | None:
    queries = [length // 2 + 1 for length in LENGTHS] if paged else list(LENGTHS)
    offsets, key_offsets = (torch.tensor([0, *each]).cumsum(0).int() for each in (queries, LENGTHS))
    q = drawn(sum(queries), HEADS, DIM)
    k, v = (drawn(sum(LENGTHS), KV_HEADS, DIM, seed=n) for n in (1, 2))
    given: dict[str, Any] = {"k": k, "v": v}
    if paged:
        given = in_pages(k, v)
    out, lse, _ = flash_attn_varlen_func(
        q, **given, cu_seqlens_q=offsets, cu_seqlens_k=key_offsets, max_seqlen_q=max(queries),
        max_seqlen_k=max(LENGTHS), return_attn_probs=True, **options,
    )  # fmt: skip
    alone = flash_attn_varlen_func(
        q, **given, cu_seqlens_q=offsets, cu_seqlens_k=key_offsets, max_seqlen_q=max(queries),
        max_seqlen_k=max(LENGTHS), **options,
    )  # fmt: skip
    assert torch.equal(alone, out)
    pairs = zip(pairwise(offsets.tolist()), pairwise(key_offsets.tolist()), strict=True)
    true = [
        expected(q[begin:end], k[first_key:last], v[first_key:last], **options)
        for (begin, end), (first_key, last) in pairs
    ]
    return first(
        differs("out", out, torch.cat([each for each, _ in true])),
        differs("lse", lse, torch.cat([each for _, each in true], dim=1)),
    )


def tensor_lengths_failure() -> str | None:
    """Give the longest lengths as tensors, as transformers does."""
    ends = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    q, k, v = (drawn(sum(LENGTHS), heads, DIM, seed=n) for n, heads in enumerate((HEADS, KV_HEADS, KV_HEADS)))
    found, true = (
        flash_attn_varlen_func(q, k, v, ends, ends, longest, longest, causal=True)
        for longest in (ends.diff().max(), max(LENGTHS))
    )
    return differs("out", found, true)


def in_pages(k: torch.Tensor, v: torch.Tensor, page: int = 16) -> dict[str, Any]:
    """Scatter packed sequences over the pages of a cache."""
    counts = [-(-length // page) for length in LENGTHS]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(5))
    caches = [torch.full((sum(counts), page, KV_HEADS, DIM), float("nan")) for _ in range(2)]
    table = torch.zeros(len(LENGTHS), max(counts), dtype=torch.int32)
    start = used = 0
    for row, (length, count) in enumerate(zip(LENGTHS, counts, strict=True)):
        table[row, :count] = order[used : used + count]
        for place in range(length):
            for cache, source in zip(caches, (k, v), strict=True):
                cache[order[used + place // page], place % page] = source[start + place]
        start, used = start + length, used + count
    return {"k": caches[0], "v": caches[1], "block_table": table}


def cache_failure(queries: int, new: int, *, paged: bool, rows: list[int] | None = None, **options: Any) -> str | None:
    """Keys that are there and new ones, in rows of a contiguous cache or in pages."""
    length, batch = 48, 3
    held = torch.tensor(LENGTHS).clamp(max=length - max(new, 1)).int()
    caches = [drawn(4, length, KV_HEADS, DIM, seed=n) for n in (1, 2)]
    places = rows or list(range(batch))
    q = drawn(batch, queries, HEADS, DIM)
    fresh = [drawn(batch, new, KV_HEADS, DIM, seed=n) for n in (3, 4)]
    filled = [each.clone() for each in caches]
    for cache, source in zip(filled, fresh, strict=True):
        for b, row in enumerate(places):
            cache[row, held[b] : held[b] + new] = source[b]
    given: dict[str, Any] = {} if rows is None else {"cache_batch_idx": torch.tensor(rows, dtype=torch.int32)}
    if paged:
        caches = [each.reshape(12, 16, KV_HEADS, DIM) for each in caches]
        given = {"block_table": torch.arange(12, dtype=torch.int32).reshape(4, 3)[:batch]}
    if new:
        given |= {"k": fresh[0], "v": fresh[1]}
    out, lse = flash_attn_with_kvcache(
        q, caches[0], caches[1], cache_seqlens=held, return_softmax_lse=True, **given, **options
    )
    alone = flash_attn_with_kvcache(q, caches[0], caches[1], cache_seqlens=held, **given, **options)
    assert torch.equal(alone, out)
    ends = [int(held[b]) + new for b in range(batch)]
    true = [
        expected(q[b], filled[0][row, : ends[b]], filled[1][row, : ends[b]], **options) for b, row in enumerate(places)
    ]
    return first(
        *(
            differs("cache", cache.reshape(each.shape), each.double())
            for cache, each in zip(caches, filled, strict=True)
        ),
        differs("out", out, torch.stack([each for each, _ in true])),
        differs("lse", lse, torch.stack([each for _, each in true])),
    )


def full_cache_failure(paged: bool) -> str | None:
    """Give two new keys to sequences whose caches have room for none, one and both."""
    held, room, new = torch.tensor([32, 31, 20], dtype=torch.int32), 32, 2
    rows = [drawn(3, room, KV_HEADS, DIM, seed=n) for n in (1, 2)]
    fresh = [drawn(3, new, KV_HEADS, DIM, seed=n) for n in (3, 4)]
    q, filled = drawn(3, 1, HEADS, DIM), [each.clone() for each in rows]
    ends = [min(room, length + new) for length in held.tolist()]
    for cache, source in zip(filled, fresh, strict=True):
        for b, end in enumerate(ends):
            cache[b, held[b] : end] = source[b, : end - int(held[b])]
    given: dict[str, Any] = {}
    if paged:
        rows = [each.reshape(6, 16, KV_HEADS, DIM) for each in rows]
        given = {"block_table": torch.arange(6, dtype=torch.int32).reshape(3, 2)}
    given |= {"k": fresh[0], "v": fresh[1]}
    out = flash_attn_with_kvcache(q, rows[0], rows[1], cache_seqlens=held, causal=True, **given)
    true = [expected(q[b], filled[0][b, :end], filled[1][b, :end])[0] for b, end in enumerate(ends)]
    return first(
        *(differs("cache", cache.reshape(each.shape), each.double()) for cache, each in zip(rows, filled, strict=True)),
        differs("out", out, torch.stack(true)),
    )
