"""Attention as eager torch computes it: the definition of correct, readable, runs on a CPU."""

import math

import torch

LARGEST_WEIGHT = 2.0**8  # of a row that is rounded to e4m3, which ends with 448
MAX_SCORE_BYTES = 2**28  # one chunk of scores; the peak is a few times this


def attention_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    attn_mask: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    kv_ends: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
    weights_dtype: torch.dtype | None = None,
    max_score_bytes: int = MAX_SCORE_BYTES,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention over ``[B, S, H, D]`` tensors, in chunks of heads and queries so that scores stay small.

    Computes in ``dtype`` (fp64 by default), every intermediate result included. Where ``weights_dtype`` is given,
    weights are rounded to it, at 256 times their ratio to the largest of their row, as kernels of e4m3 do.
    ``attn_mask`` broadcasts to ``[B, H, S_q, S_kv]``: a boolean one hides keys where it is False, another is added to
    the scores. ``sinks [H]`` are logits without a value. ``kv_ends [B or 1, S_q]``: queries see keys before these, too,
    however far ahead.

    Returns the output ``[B, S_q, H, D_v]`` and the natural logarithm of the softmax's denominator ``[B, H, S_q]``, both
    in that type. A query that sees no key has the output 0 and the logarithm -inf, or its sink.
    """
    dtype = dtype or torch.float64
    batches, seq_q, heads, head_dim = q.shape
    seq_kv, group = k.shape[1], heads // max(1, k.shape[2])
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.zeros(batches, seq_q, heads, v.shape[3], dtype=dtype, device=q.device)
    lse = torch.full((batches, heads, seq_q), -math.inf, dtype=dtype, device=q.device)
    if seq_kv == 0:
        return out, lse if sinks is None else lse.copy_(sinks[:, None])
    if attn_mask is not None:
        attn_mask = attn_mask.expand(batches, heads, seq_q, seq_kv)
    rows = max(1, min(seq_q, max_score_bytes // (seq_kv * dtype.itemsize)))
    for batch in range(batches):
        for head in range(heads):
            keys = k[batch, :, head // group].to(dtype)
            values = v[batch, :, head // group].to(dtype)
            for start in range(0, seq_q, rows):
                stop = min(start + rows, seq_q)
                scores = q[batch, start:stop, head].to(dtype) @ keys.T * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                hidden = ~visible_keys(start, stop, seq_q, seq_kv, causal=causal, window=window, device=q.device)
                if kv_ends is not None:
                    position = torch.arange(start, stop, device=q.device)[:, None] + seq_kv - seq_q
                    key = torch.arange(seq_kv, device=q.device)[None, :]
                    hidden &= ~((key > position) & (key < kv_ends.expand(batches, -1)[batch, start:stop, None]))
                if attn_mask is not None:
                    of_rows = attn_mask[batch, head, start:stop]
                    if of_rows.dtype == torch.bool:
                        hidden |= ~of_rows
                    else:
                        scores = scores + of_rows.to(dtype)
                scores = scores.masked_fill(hidden, -math.inf)
                if sinks is not None:
                    scores = torch.cat([scores, sinks[head].to(dtype).expand(stop - start, 1)], 1)
                blind = (scores == -math.inf).all(1, keepdim=True)
                weights = torch.softmax(scores, 1).masked_fill(blind, 0.0)[:, :seq_kv]
                if weights_dtype is not None:
                    unit = weights.amax(1, keepdim=True) / LARGEST_WEIGHT
                    ratios = (weights / unit).nan_to_num(0.0)
                    weights = ratios.to(weights_dtype).to(dtype) * unit
                out[batch, start:stop, head] = weights @ values
                lse[batch, head, start:stop] = torch.logsumexp(scores, 1)
    return out, lse


def visible_keys(
    start: int, stop: int, seq_q: int, seq_kv: int, *, causal: bool, window: int | None, device: torch.device
) -> torch.Tensor:
    """Return a mask ``[stop - start, seq_kv]`` of the keys that the queries ``start..stop`` see, aligned at the end."""
    position = torch.arange(start, stop, device=device)[:, None] + seq_kv - seq_q
    key = torch.arange(seq_kv, device=device)[None, :]
    visible = torch.ones(stop - start, seq_kv, dtype=torch.bool, device=device)
    if causal:
        visible &= key <= position
    if window is not None:
        visible &= (key - position).abs() < window
    return visible
