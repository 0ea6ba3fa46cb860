"""Decode attention over a paged cache as eager torch computes it: the definition of correct, runs on a CPU."""

import math

import torch

from autotune.kernels.paged_cache.quantization import dequantize


def gather_keys(
    cache: torch.Tensor,
    pages: torch.Tensor,
    length: int,
    *,
    layout: str,
    scale: torch.Tensor | None = None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Gather the first ``length`` rows ``[length, H_kv, D]`` of a sequence with these page indices, dequantized.

    Rows of a negative index are those of page 0.
    """

    def gather(paged: torch.Tensor) -> torch.Tensor:
        slots = paged if layout == "NHD" else paged.transpose(1, 2)
        used = pages[: -(-length // slots.shape[1])].long().clamp(min=0)
        if slots.itemsize == 1:  # torch gathers no 8-bit floats
            return slots.view(torch.uint8)[used].view(slots.dtype).flatten(0, 1)[:length]
        return slots[used].flatten(0, 1)[:length]

    if scale is None:
        return gather(cache).to(dtype)
    return dequantize(gather(cache), gather(scale) if scale.ndim == 3 else scale, dtype)


def paged_decode_reference(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    layout: str = "NHD",
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    causal: bool = True,
    later_queries: int = 0,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention of ``q [B, S_q, H, D]`` over the pages of each sequence, one sequence at a time.

    The queries are each sequence's last positions but for ``later_queries``. Without ``causal`` they see later keys
    too, a window is one of keys on either side, and slopes are times the distance from the key, negated.
    Computes in ``dtype`` (fp64 by default), every intermediate result included. Returns the output ``[B, S_q, H, D_v]``
    and the natural logarithm of the softmax's denominator ``[B, S_q, H]``, a sink included, both in that type. A query
    that sees no key has the output 0 and the logarithm -inf, or its sink. Keys of a negative page are seen by none.
    """
    dtype = dtype or torch.float64
    batch, seq_q, heads, head_dim = q.shape
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.zeros(batch, seq_q, heads, v_cache.shape[3], dtype=dtype, device=q.device)
    lse = torch.full((batch, seq_q, heads), -math.inf, dtype=dtype, device=q.device)
    for sequence, length in enumerate(seq_lens.tolist()):
        keys, values = (
            gather_keys(cache, page_table[sequence], length, layout=layout, scale=scale_of, dtype=dtype).transpose(0, 1)
            for cache, scale_of in ((k_cache, k_scale), (v_cache, v_scale))
        )  # [H_kv, length, D]
        page_size = k_cache.shape[1 if layout == "NHD" else 2]
        absent = (page_table[sequence] < 0).repeat_interleave(page_size)[:length]
        keys, values = (each.masked_fill(absent[None, :, None], 0.0) for each in (keys, values))
        rows = q[sequence].to(dtype).transpose(0, 1).reshape(keys.shape[0], -1, head_dim)  # [H_kv, group * S_q, D]
        scores = (rows @ keys.transpose(1, 2) * scale).reshape(heads, seq_q, length)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        position = torch.arange(length - seq_q, length, device=q.device)[:, None] - later_queries
        ahead = torch.arange(length, device=q.device)[None, :] - position
        if alibi_slopes is not None:
            scores = scores + alibi_slopes.to(dtype)[:, None, None] * (ahead if causal else -ahead.abs())
        hidden = absent | (ahead > 0) if causal else absent.expand_as(ahead)
        if window is not None:
            hidden = hidden | (ahead.abs() >= window)
        scores = scores.masked_fill(hidden, -math.inf)
        if sinks is not None:  # one more logit, without a value
            scores = torch.cat([scores, sinks.to(dtype)[:, None, None].expand(heads, seq_q, 1)], 2)
        blind = (scores == -math.inf).all(2, keepdim=True)
        weights = torch.softmax(scores, 2).masked_fill(blind, 0.0)[:, :, :length]
        attended = weights.reshape(*rows.shape[:2], length) @ values
        out[sequence] = attended.reshape(heads, seq_q, values.shape[2]).transpose(0, 1)
        lse[sequence] = torch.logsumexp(scores, 2).transpose(0, 1)
    return out, lse
