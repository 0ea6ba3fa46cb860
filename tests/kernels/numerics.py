"""Runs the launcher and compares with dense attention in fp64, written here and nowhere near the kernel.

Every tensor lies in a buffer of NaN, so that a read outside it spoils the result and a write outside it is seen.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from autotune.correctness import STATISTIC_UNITS, error_limit
from autotune.kernels.flash_attention.definition import DEFINITION
from autotune.kernels.flash_attention.triton import KERNEL
from autotune.kernels.flash_attention.triton.launch import launch
from autotune.shape import AttentionShape
from autotune.space import Config
from tests.contract.implementations.flash_attention_triton import TINY
from tests.kernels.cases import Case

MARGIN = 64  # elements of NaN before and after each tensor; a multiple of 16 bytes


def dense_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float,
    attn_mask: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    kv_ends: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float64,
    round_weights: Callable[[torch.Tensor], torch.Tensor] = lambda weights: weights,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention by its formula: all scores at once; positions are counted from the end, where queries and keys meet."""
    group = q.shape[2] // k.shape[2]
    q, k, v = (tensor.to(dtype).transpose(1, 2) for tensor in (q, k, v))
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = multiply(q, k.mT) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        scores = scores + attn_mask.to(dtype)
    elif attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    query_age = torch.arange(q.shape[2], device=q.device).flip(0)[:, None]  # 0: the last one
    key_age = torch.arange(k.shape[2], device=q.device).flip(0)[None, :]
    if causal:
        is_future = key_age < query_age
        if kv_ends is not None:  # [B or 1, S_q]: what is before a query's end is no future to it
            is_future = is_future & (torch.arange(k.shape[2], device=q.device) >= kv_ends[:, None, :, None])
        scores = scores.masked_fill(is_future, -math.inf)
    if window is not None:
        distance = key_age - query_age
        scores = scores.masked_fill((distance if causal else distance.abs()) >= window, -math.inf)
    keys = scores.shape[-1]
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(dtype)[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)[..., :keys]  # NaN: a query that sees no key
    return multiply(round_weights(weights), v).transpose(1, 2), torch.logsumexp(scores, -1)


def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b``; in fp32 summed term by term, as an IEEE dot is.

    A library sums in an order of its own that depends on the processor: MKL's largest error over 256 terms is half that
    of a plain sum (x86-64, torch 2.13, 2026-11-21), which would leave nothing of the factor 2 in the error's limit.
    """
    if a.dtype != torch.float32:
        return torch.matmul(a, b)
    total = a.new_zeros((*a.shape[:-1], b.shape[-1]))
    for column, row in zip(a.unbind(-1), b.unbind(-2), strict=True):
        total.addcmul_(column[..., None], row[..., None, :])
    return total


def case_failure(case: Case, device: str, launch: Callable[..., Any] = launch) -> str | None:
    """Run a case by a launcher; what is wrong with its result, or None."""
    generator = torch.Generator(device=device).manual_seed(1)
    dtype = getattr(torch, case.dtype)

    def draw(length: int, heads: int, width: int) -> torch.Tensor:
        values = torch.randn(case.batch, length, heads, width, generator=generator, device=device).to(dtype)
        if case.layout == "expanded":
            tensor, _ = place((1, *values.shape[1:]), dtype, "contiguous", device)
            return tensor.copy_(values[:1]).expand(values.shape)
        tensor, _ = place(values.shape, dtype, case.layout, device)
        return tensor.copy_(values)

    q = draw(case.seq_q, case.heads, case.head_dim)
    k = draw(case.seq_kv, case.kv_heads, case.head_dim)
    v = draw(case.seq_kv, case.kv_heads, case.head_dim_v)
    # No two elements of an output may share memory.
    out_layout = "contiguous" if case.layout == "expanded" else case.layout
    out, out_buffer = place((*q.shape[:3], case.head_dim_v), dtype, out_layout, device)
    lse, lse_buffer = place((case.batch, 1, case.heads, case.seq_q), torch.float32, "contiguous", device)
    lse = lse.squeeze(1)
    features: dict[str, Any] = {
        "causal": case.causal,
        "window": case.window,
        "softcap": case.softcap,
        "scale": case.head_dim**-0.5 if case.scale is None else case.scale,
    }
    launch(q, k, v, out, lse if case.lse else None, **features, options=case.options)
    expected, expected_lse = dense_attention(q, k, v, **features)
    eager, _ = dense_attention(q, k, v, **features, dtype=dtype)
    found = compare(out, expected, error_limit(expected, eager, dtype))
    if found is None and case.lse:
        _, eager_lse = dense_attention(q, k, v, **features, dtype=torch.float32)
        limit = error_limit(expected_lse, eager_lse, torch.float32, units=STATISTIC_UNITS)
        if case.softcap and dtype != torch.float32:  # tanh is as exact as its largest value, not as each of its own
            limit += 2 * torch.finfo(torch.float32).eps * case.softcap
        found = compare(lse, expected_lse, limit)
    written = [(out, out_buffer), *([(lse, lse_buffer)] if case.lse else [])]
    for tensor, buffer in written if found is None else []:
        tensor.zero_()
        if buffer.isnan().sum().item() != buffer.numel() - tensor.numel():
            found = "memory beside the output was written"
    return found


def compare(actual: torch.Tensor, expected: torch.Tensor, limit: float) -> str | None:
    """Say how an output misses its truth, or None: NaN, infinities in the wrong place, or an error above the limit."""
    if actual.isnan().any():
        return f"{actual.isnan().sum().item()} of {actual.numel()} elements are NaN"
    if not torch.equal(actual.isinf(), expected.isinf()):
        return "infinities are not where they should be"
    finite = expected.isfinite()
    if not finite.any():
        return None
    error = (actual.to(expected.dtype) - expected)[finite].abs().max().item()
    return f"largest error {error:.3g} exceeds {limit:.3g}" if error > limit else None


def place(shape: tuple[int, ...], dtype: torch.dtype, layout: str, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor ``[B, S, H, D]`` of that layout inside a flat buffer of NaN, and the buffer.

    ``packed`` is the middle third of a fused projection's rows; ``unaligned`` starts one element past 16 bytes.
    """
    batch, length, heads, width = shape
    row = heads * width
    strides, start = {
        "contiguous": ((length * row, row, width), 0),
        "transposed": ((length * row, width, length * width), 0),
        "packed": ((3 * length * row, 3 * row, width), row),
        "unaligned": ((length * row, row, width), 1),
    }[layout]
    span = 3 * batch * length * row  # as much as the widest layout takes
    buffer = torch.full((2 * MARGIN + span,), math.nan, dtype=dtype, device=device)
    return buffer.as_strided(shape, (*strides, 1), MARGIN + start), buffer


def distant_failure(axis: str, stride: int, loads: str, device: str) -> str | None:
    """Run attention over tensors whose neighbours along ``axis`` lie ``stride`` elements apart; as ``case_failure``.

    All tensors live in one allocation of which a CPU gives out only the pages that are touched.
    """
    shape = {"batch": (3, 32, 1, 64), "row": (1, 300, 1, 64), "head": (1, 32, 3, 64)}[axis]
    strides = [shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1]
    strides[("batch", "row", "head").index(axis)] = stride
    gap = 2**17  # between the tensors; each is smaller along its other axes
    count = shape[("batch", "row", "head").index(axis)]
    buffer = torch.empty(count * stride, dtype=torch.float16, device=device)
    q, k, v, out = (buffer.as_strided(shape, strides, index * gap) for index in range(4))
    generator = torch.Generator(device=device).manual_seed(2)
    for tensor in (q, k, v):
        tensor.copy_(torch.randn(shape, generator=generator, device=device))
    out.fill_(math.nan)
    options = {**TINY, "BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "loads": loads}
    launch(q, k, v, out, None, causal=True, window=None, softcap=None, scale=0.125, options=options)
    expected, _ = dense_attention(q, k, v, causal=True, scale=0.125)
    eager, _ = dense_attention(q, k, v, causal=True, scale=0.125, dtype=torch.float16)
    return compare(out, expected, error_limit(expected, eager, torch.float16))


def call_failure(device: str) -> str | None:
    """Call what ``bind`` returns, on inputs without a cap and with one, with and without the log-sum-exp."""
    config = Config({**TINY, "BLOCK_Q": 32, "BLOCK_K": 32, "num_warps": 2, "kpack": None})
    sizes: dict[str, Any] = {
        "batch": 2,
        "heads": 4,
        "kv_heads": 2,
        "seq_q": 40,
        "seq_kv": 70,
        "head_dim": 24,
        "head_dim_v": 16,
    }
    shape = AttentionShape(**sizes, dtype="float16", causal=True)
    for softcap in (None, 5.0):
        inputs = DEFINITION.make_inputs(replace(shape, softcap=softcap is not None), seed=0, device=device)
        tensors = inputs.q, inputs.k, inputs.v
        call = KERNEL.bind(config, replace(shape, softcap=softcap is not None))
        for scale in (None, 0.5):
            out, lse = call(*tensors, scale=scale, softcap=softcap, return_lse=True)
            if not torch.equal(out, call(*tensors, scale=scale, softcap=softcap)):
                return "the output depends on return_lse"
            features: dict[str, Any] = {
                "causal": True,
                "softcap": softcap,
                "scale": 24**-0.5 if scale is None else scale,
            }
            expected, expected_lse = dense_attention(*tensors, **features)
            eager, _ = dense_attention(*tensors, **features, dtype=torch.float16)
            found = compare(out, expected, error_limit(expected, eager, torch.float16)) or compare(
                lse, expected_lse, 1e-5
            )
            if found is not None:
                return f"softcap {softcap}, scale {scale}: {found}"
    return None
