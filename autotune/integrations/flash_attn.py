"""Functions with the signatures of the package ``flash-attn`` 2.8, on our kernels: for code that imports them.

``flash_attn_func``, ``flash_attn_varlen_func`` and ``flash_attn_with_kvcache``, forward passes alone. Beside their own
arguments they take ``s_aux``, a sink of each head, as the builds of it that Hugging Face loads do. What is not computed
(dropout, rotary embeddings, padding on the left of a cache, windows that reach unequally far both ways) is refused by
name; hints (``deterministic``, ``num_splits``) change nothing: results are the same from call to call.

Example:
    >>> from autotune.integrations.flash_attn import flash_attn_func
    >>> out = flash_attn_func(q, k, v, causal=True, window_size=(1023, 0))

Source: https://github.com/Dao-AILab/flash-attention/blob/v2.8.3/flash_attn/flash_attn_interface.py, its docstrings.
"""

from typing import Any, Final, NamedTuple

import torch

from autotune.errors import InputMismatchError, UsageError
from autotune.functional import attention
from autotune.integrations.flash_attn_cache import lengths_of, pages_of, slots_of
from autotune.paged import append_kv, paged_decode, paged_prefill
from autotune.varlen import attention_varlen

ALL_KEYS: Final = -1  # of one side of a window
DECODED: Final = 8  # queries of a sequence that ``paged_decode`` takes


class _Mask(NamedTuple):
    causal: bool
    window: int | None


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (ALL_KEYS, ALL_KEYS),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    s_aux: torch.Tensor | None = None,
) -> Any:
    """Compute ``autotune.attention`` of ``q [B, S_q, H, D]`` over ``k`` and ``v [B, S_kv, H_kv, D]``.

    Args:
        window_size: keys that a query sees before and after its own, -1 for all: equally many, or none after.
        s_aux: ``[H]``: a logit of each head that adds to the softmax's denominator and has no value.

    Returns:
        ``[B, S_q, H, D]``; with ``return_attn_probs`` also the natural log-sum-exp, fp32 ``[B, H, S_q]``, and None in
        the place of the probabilities, which no kernel writes.

    Raises:
        UsageError: an argument asks for what is not computed.
        InputMismatchError: tensors that do not fit each other.
        NotDifferentiableError: gradients are required.
    """
    _refuse(dropout_p=dropout_p, alibi_slopes=alibi_slopes)
    mask = _mask(causal, window_size)
    options = {"scale": softmax_scale, "softcap": softcap or None, "sinks": s_aux, **mask._asdict()}
    if not return_attn_probs:
        return attention(q, k, v, **options)
    return (*attention(q, k, v, return_lse=True, **options), None)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int | torch.Tensor,
    max_seqlen_k: int | torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (ALL_KEYS, ALL_KEYS),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
    *,
    s_aux: torch.Tensor | None = None,
) -> Any:
    """Compute ``autotune.attention_varlen`` of packed sequences, ``q [T_q, H, D]`` over ``k`` and ``v [T_kv, H_kv,
    D]``; with a ``block_table`` ``autotune.paged_prefill`` over ``k`` and ``v [pages, page_size, H_kv, D]``.

    Args:
        max_seqlen_q, max_seqlen_k: the longest; a tensor of one integer, as transformers gives, is read by the host,
            which no CUDA graph holds.
        window_size: keys that a query sees before and after its own, -1 for all: equally many, or none after.
        s_aux: ``[H]``: a logit of each head that adds to the softmax's denominator and has no value.

    Returns:
        ``[T_q, H, D]``; with ``return_attn_probs`` also the natural log-sum-exp, fp32 ``[H, T_q]``, and None.

    Raises:
        UsageError: an argument asks for what is not computed.
        InputMismatchError: tensors that do not fit each other.
        NotDifferentiableError: gradients are required.
    """
    mask = _mask(causal, window_size)
    options: dict[str, Any] = {"scale": softmax_scale, "softcap": softcap or None, "sinks": s_aux, **mask._asdict()}
    if block_table is None:
        _refuse(dropout_p=dropout_p, alibi_slopes=alibi_slopes)
        longest = (_longest(max_seqlen_q), _longest(max_seqlen_k))
        found = attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *longest, return_lse=return_attn_probs, **options)
    else:
        _refuse(dropout_p=dropout_p)
        lengths = cu_seqlens_k.diff()
        options |= {"alibi_slopes": alibi_slopes}
        found = paged_prefill(q, k, v, block_table, lengths, cu_seqlens_q, return_lse=return_attn_probs, **options)
    return found if isinstance(found, torch.Tensor) else (found[0], found[1].T, None)


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    rotary_cos: torch.Tensor | None = None,
    rotary_sin: torch.Tensor | None = None,
    cache_seqlens: torch.Tensor | int | None = None,
    cache_batch_idx: torch.Tensor | None = None,
    cache_leftpad: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (ALL_KEYS, ALL_KEYS),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: torch.Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    s_aux: torch.Tensor | None = None,
) -> Any:
    """Append new keys and values to a cache where some are given, then attend of ``q [B, S_q, H, D]`` over the cache.

    Nothing on the GPU is read by the host: a CUDA graph may hold the call.

    Args:
        k_cache, v_cache: ``[B_cache, S, H_kv, D]``, without ``cache_batch_idx`` of ``B`` rows at least, or ``[pages,
            page_size, H_kv, D]`` with a ``block_table``. Let ``S`` be a multiple of 16, better of 256: rows are cut
            into pages, of one token where a length is prime and above 1024; a warning says once that pages are small.
        k, v: ``[B, S_new, H_kv, D]``, which are written behind the first ``cache_seqlens`` keys of each sequence. Those
            that do not fit into the cache are left out, and the queries are the last positions of what it holds.
        cache_seqlens: int32 ``[B]``, or one for all: keys of each sequence in the cache, new ones, for which there is
            room, not counted; without new ones all of a contiguous cache's by default.
        cache_batch_idx: int32 ``[B]``: the row of a contiguous cache that is each sequence's; its own place by default.
        block_table: int32 ``[B, max_pages]``.
        window_size: keys that a query sees before and after its own, -1 for all: equally many, or none after.
        s_aux: ``[H]``: a logit of each head that adds to the softmax's denominator and has no value.

    Returns:
        ``[B, S_q, H, D]``; with ``return_softmax_lse`` also the natural log-sum-exp, fp32 ``[B, H, S_q]``.

    Raises:
        UsageError: an argument asks for what is not computed.
        InputMismatchError: tensors that do not fit each other.
        NotDifferentiableError: gradients are required.
    """
    _refuse(rotary_cos=rotary_cos, rotary_sin=rotary_sin, cache_leftpad=cache_leftpad)
    batch, queries = q.shape[:2]
    mask = _mask(causal, window_size, queries)
    new = _new_tokens(k, v, batch)
    if block_table is not None:
        _refuse(cache_batch_idx=cache_batch_idx)
    lengths = lengths_of(cache_seqlens, k_cache, block_table, batch, new)
    pages = pages_of(k_cache, v_cache, block_table, cache_batch_idx, batch)
    if k is not None and v is not None:
        append_kv(k.flatten(0, 1), v.flatten(0, 1), pages.k_cache, pages.v_cache, slots_of(pages, lengths, new))
        lengths = lengths + new
    options: dict[str, Any] = {"scale": softmax_scale, "softcap": softcap or None, "sinks": s_aux}
    options |= {"alibi_slopes": alibi_slopes, "window": mask.window}
    if mask.causal and queries <= DECODED:
        found = paged_decode(q, *pages, lengths, return_lse=return_softmax_lse, **options)
    else:
        offsets = torch.arange(0, (batch + 1) * queries, queries, dtype=torch.int32, device=q.device)
        options |= {"causal": mask.causal, "return_lse": return_softmax_lse}
        found = paged_prefill(q.flatten(0, 1), *pages, lengths, offsets, **options)
    if isinstance(found, torch.Tensor):
        return found.view(batch, queries, *found.shape[-2:])
    out, lse = found
    return out.view(batch, queries, *out.shape[-2:]), lse.view(batch, queries, lse.shape[-1]).transpose(1, 2)


def _longest(length: Any) -> Any:
    """Return a length as a number where it is a tensor of one integer; ``attention_varlen`` refuses others by name."""
    is_number = isinstance(length, torch.Tensor) and length.numel() == 1 and not length.dtype.is_floating_point
    return int(length) if is_number else length


def _new_tokens(k: torch.Tensor | None, v: torch.Tensor | None, batch: int) -> int:
    """Return how many new tokens each sequence has."""
    if k is None and v is None:
        return 0
    if k is None or v is None:
        raise UsageError(f"{'v' if v is None else 'k'}=None beside new {'keys' if v is None else 'values'}; give both")
    for name, given in (("k", k), ("v", v)):
        if given.ndim != 4 or tuple(given.shape[:2]) != (batch, k.shape[1]):
            expected = f"expected [{batch}, S_new, H_kv, D], as many as the batch of q and as k"
            raise InputMismatchError(f"{name} is {tuple(given.shape)}; {expected}")
    return k.shape[1]


def _refuse(**given: object) -> None:
    for name, value in given.items():
        is_tensor = isinstance(value, torch.Tensor)
        if value is not None and (is_tensor or value != 0.0):
            shown = "a tensor" if is_tensor else repr(value)
            raise UsageError(f"{name}={shown} is not computed by autotune; leave it out")


def _mask(causal: bool, window_size: tuple[int, int], queries: int = 2) -> _Mask:
    """Read a window: ours of W holds the keys closer than W positions. A single query is the last: none come after."""
    before, after = window_size
    if causal or queries == 1 or after == 0:
        return _Mask(True, None if before == ALL_KEYS else before + 1)
    if before != after:
        raise UsageError(f"window_size={window_size!r} is not computed; expected as many keys after a query as before")
    return _Mask(False, None if before == ALL_KEYS else before + 1)
