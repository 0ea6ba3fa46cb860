"""Attention of packed queries over a paged cache as eager torch computes it: the definition of correct."""

import math
from typing import Any, Final

import torch

from autotune.kernels.paged_decode.reference import paged_decode_reference

MAX_SCORES: Final = 2**26  # of one step: half a GiB in fp64, and a few times that at the peak


def paged_prefill_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    *,
    causal: bool = True,
    dtype: torch.dtype | None = None,
    max_scores: int = MAX_SCORES,
    **features: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention of ``q [T, H, D]``, the last queries of one sequence after another, over each one's pages.

    Queries that end at key j see what the last queries of a sequence of j keys see: each chunk of them is a step of
    paged decode, whose features and rules these are; without ``causal`` they see all keys. Returns the output
    ``[T, H, D_v]`` and the natural logarithm of the softmax's denominator ``[T, H]``, in ``dtype`` (fp64 by default).
    """
    dtype = dtype or torch.float64
    out = torch.zeros(*q.shape[:2], v_cache.shape[3], dtype=dtype, device=q.device)
    lse = torch.full(q.shape[:2], -math.inf, dtype=dtype, device=q.device)
    bounds = cu_seqlens_q.tolist()
    for sequence, length in enumerate(seq_lens.tolist()):
        begin, end = bounds[sequence : sequence + 2]
        step = max(1, max_scores // max(1, q.shape[1] * length))
        for first in range(begin, end, step):
            last = min(first + step, end)
            later = end - last
            seen = max(0, length - later) if causal else length  # keys up to the chunk's last query, or all
            chunk_out, chunk_lse = paged_decode_reference(
                q[None, first:last],
                k_cache,
                v_cache,
                page_table[sequence : sequence + 1],
                torch.tensor([seen]),
                causal=causal,
                later_queries=0 if causal else later,
                dtype=dtype,
                **features,
            )
            out[first:last], lse[first:last] = chunk_out[0], chunk_lse[0]
    return out, lse
