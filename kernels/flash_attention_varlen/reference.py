"""Attention over packed sequences as eager torch computes it: the definition of correct, sequence by sequence."""

from itertools import pairwise
from typing import Any

import torch

from autotune.kernels.flash_attention.reference import attention_reference


def varlen_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    *,
    sinks: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    **features: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute dense attention of each sequence of ``q [T, H, D]`` over its own keys, whose features these are.

    A sink is one more logit of its head, without a value. Returns the output ``[T, H, D_v]`` and the natural logarithm
    of the softmax's denominator ``[T, H]``, a sink included, in ``dtype`` (fp64 by default). A query that sees no key
    has the output 0 and the logarithm -inf, or its sink; rows of no sequence are NaN.
    """
    dtype = dtype or torch.float64
    out = torch.full((*q.shape[:2], v.shape[2]), float("nan"), dtype=dtype, device=q.device)
    lse = torch.full(q.shape[:2], float("nan"), dtype=dtype, device=q.device)
    for rows, keys in zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True):
        here, there = slice(*rows), slice(*keys)
        found, logarithms = attention_reference(q[None, here], k[None, there], v[None, there], **features, dtype=dtype)
        out[here], lse[here] = found[0], logarithms[0].T
    if sinks is not None:
        with_sinks = torch.logaddexp(lse, sinks.to(dtype))
        out, lse = out * (lse - with_sinks).exp()[..., None], with_sinks
    return out, lse
