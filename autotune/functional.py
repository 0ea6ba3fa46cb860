"""Functions that pick a kernel by their tensors and cache the pick: what most users call."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from autotune.dispatch import CACHED_PICKS, get_kernel
from autotune.errors import InputMismatchError
from autotune.shape import LAYOUTS, MAX_CONTEXT, AttentionShape, PagedShape

if TYPE_CHECKING:
    import torch


def attention(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]":
    """Softmax attention of ``q [B, S_q, H, D]`` over ``k [B, S_kv, H_kv, D]`` and ``v [B, S_kv, H_kv, D_v]``.

    Forward only; fp16, bf16 or fp32, any strides with a unit last one, ``H`` a multiple of ``H_kv``.

    Args:
        causal: bottom-right aligned: query i sees keys up to ``i + S_kv - S_q``.
        window: see only keys closer than this many positions, one's own included.
        softcap: bound scaled scores by ``softcap * tanh(score / softcap)``.
        scale: what scores are multiplied by; ``D ** -0.5`` by default.
        return_lse: also return the natural log-sum-exp of the scores, fp32 ``[B, H, S_q]``.

    Returns:
        The output ``[B, S_q, H, D_v]`` in the dtype of ``q``; a query that sees no key gets 0, its log-sum-exp is -inf.

    Raises:
        InputMismatchError: tensors that do not fit each other.
        NotDifferentiableError: gradients are required.

    Example:
        >>> out = autotune.attention(q, k, v, causal=True)
    """
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise InputMismatchError(f"q, k and v have {q.ndim}, {k.ndim} and {v.ndim} dimensions; expected [B, S, H, D]")
    if 0 in (q.shape[0], q.shape[1], k.shape[1]):
        return _empty(q, k, v, scale, softcap, return_lse)
    shape = _shape_of(tuple(q.shape), tuple(k.shape), v.shape[3], str(q.dtype)[6:], causal, window, softcap is not None)
    kernel = get_kernel(shape)  # keeps its picks, until reload()
    return kernel(q, k, v, scale=scale, softcap=softcap, return_lse=return_lse)  # type: ignore[no-any-return]


def paged_decode(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    seq_lens: "torch.Tensor",
    *,
    layout: Literal["NHD", "HND"] = "NHD",
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: "torch.Tensor | None" = None,
    alibi_slopes: "torch.Tensor | None" = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    mean_context: int | None = None,
    return_lse: bool = False,
    check: bool = False,
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]":
    """Softmax attention of one query a sequence, ``q [B, H, D]``, or of its last few, ``q [B, S_q, H, D]`` with ``S_q``
    up to 8, over a paged cache that holds their keys already.

    Forward only; fp16, bf16 or fp32, ``H`` a multiple of ``H_kv``, unit last strides. Nothing on the GPU is read by the
    host, and the grid depends on no length: a CUDA graph may hold the call.

    Args:
        k_cache: ``[pages, page_size, H_kv, D]``, or ``[pages, H_kv, page_size, D]`` with ``layout="HND"``; any strides.
        v_cache: the same with ``D_v`` for ``D``.
        page_table: int32 ``[B, max_pages]``: page ``i`` of a sequence holds its keys from ``i * page_size``. What lies
            past a sequence's length, or wholly outside its window, may be anything.
        seq_lens: int32 ``[B]``: keys of each sequence, those of its queries included; 0 is allowed.
        scale: what scores are multiplied by; ``D ** -0.5`` by default.
        window: see only this many last keys, one's own included.
        softcap: bound scaled scores by ``softcap * tanh(score / softcap)``.
        sinks: ``[H]``: a logit of each head that adds to the softmax's denominator and has no value.
        alibi_slopes: ``[H]``: added to a score is the slope times the key's position less the query's.
        k_scale, v_scale: of quantized caches; none is supported yet.
        mean_context: a hint for picking the kernel: keys of a sequence on average; the table's capacity by default.
        return_lse: also return the natural logarithm of the softmax's denominator, a sink included, fp32 ``[B, H]`` or
            ``[B, S_q, H]``; see ``merge_attention``.
        check: also read lengths and page indices and refuse those that lead outside the cache; waits for the GPU.

    Returns:
        The output ``[B, H, D_v]`` or ``[B, S_q, H, D_v]`` in the dtype of ``q``; a query that sees no key gets 0, and
        the logarithm -inf or its sink.

    Raises:
        InputMismatchError: tensors that do not fit each other.
        NotDifferentiableError: gradients are required.

    Example:
        >>> out = autotune.paged_decode(q, cache.k_cache, cache.v_cache, cache.page_table(ids), cache.seq_lens(ids))
    """
    if q.ndim not in (3, 4) or k_cache.ndim != 4 or v_cache.ndim != 4 or page_table.ndim != 2:
        raise InputMismatchError(
            f"q, k_cache, v_cache and page_table have {q.ndim}, {k_cache.ndim}, {v_cache.ndim} and {page_table.ndim} "
            "dimensions; expected [B, H, D] or [B, S_q, H, D], two caches of 4, and [B, max_pages]"
        )
    if layout not in LAYOUTS:
        raise InputMismatchError(f"layout={layout!r} is not allowed; expected {' or '.join(map(repr, LAYOUTS))}")
    if k_scale is not None or v_scale is not None:
        raise InputMismatchError(f"k_scale={k_scale}, v_scale={v_scale}: quantized caches are not supported yet")
    shape = _paged_shape_of(
        (q.shape[0], 1, *q.shape[1:]) if q.ndim == 3 else tuple(q.shape),
        tuple(k_cache.shape[1:]),
        v_cache.shape[3],
        page_table.shape[1],
        (str(q.dtype)[6:], str(k_cache.dtype)[6:]),
        (window, softcap is not None, sinks is not None, alibi_slopes is not None),
        layout,
        mean_context,
    )
    kernel = get_kernel(shape)
    return kernel(  # type: ignore[no-any-return]
        q,
        k_cache,
        v_cache,
        page_table,
        seq_lens,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        return_lse=return_lse,
        check=check,
    )


def merge_attention(
    outs: "torch.Tensor | Sequence[torch.Tensor]", lses: "torch.Tensor | Sequence[torch.Tensor]"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Attention over the union of disjoint sets of keys, from the results over each: a shared prefix and its suffixes.

    Args:
        outs: ``[n, ..., D]`` stacked or as a sequence: the output over each set.
        lses: ``[n, ...]``: the natural logarithm of each softmax's denominator. A sink belongs into one of them only.

    Returns:
        The output ``[..., D]`` in the dtype of ``outs``, computed in fp32 at least, and its ``lse [...]``. A query that
        saw no key in any set gets 0 and -inf.

    Raises:
        InputMismatchError: as many outputs as logarithms, of the same sizes, were expected.

    Example:
        >>> out, lse = autotune.merge_attention([prefix_out, suffix_out], [prefix_lse, suffix_lse])
    """
    import torch

    outs = outs if isinstance(outs, torch.Tensor) else torch.stack(tuple(outs))
    lses = lses if isinstance(lses, torch.Tensor) else torch.stack(tuple(lses))
    if outs.shape[:-1] != lses.shape or outs.ndim < 2:
        raise InputMismatchError(
            f"outs is {tuple(outs.shape)} and lses {tuple(lses.shape)}; expected [n, ..., D] and [n, ...]"
        )
    dtype = torch.promote_types(torch.promote_types(outs.dtype, lses.dtype), torch.float32)
    lse = lses.to(dtype).logsumexp(0)
    weights = (lses.to(dtype) - lse.masked_fill(lse == -math.inf, 0.0)).exp()[..., None]
    parts = (weights * outs.to(dtype)).masked_fill(weights == 0.0, 0.0)
    return parts.sum(0).to(outs.dtype), lse


@lru_cache(maxsize=CACHED_PICKS)
def _paged_shape_of(
    q: tuple[int, ...],
    k_page: tuple[int, ...],
    head_dim_v: int,
    max_pages: int,
    dtypes: tuple[str, str],
    features: tuple[int | None, bool, bool, bool],
    layout: str,
    mean_context: int | None,
) -> PagedShape:
    """The shape of a call; the table's capacity, rounded up to a power of two, bounds the context."""
    page_size, kv_heads = k_page[:2] if layout == "NHD" else (k_page[1], k_page[0])
    capacity = max(1, max_pages * page_size)
    window, softcap, sinks, alibi = features
    return PagedShape(
        batch=q[0],
        heads=q[2],
        kv_heads=kv_heads,
        seq_q=q[1],
        max_context=min(MAX_CONTEXT, 1 << (capacity - 1).bit_length()),
        mean_context=mean_context,  # type: ignore[arg-type] # None: as max_context
        head_dim=q[3],
        head_dim_v=head_dim_v,
        page_size=page_size,
        dtype=dtypes[0],
        kv_dtype=dtypes[1],
        window=window,
        softcap=softcap,
        sinks=sinks,
        alibi=alibi,
        layout=layout,
    )


@lru_cache(maxsize=CACHED_PICKS)
def _shape_of(
    q: tuple[int, ...], k: tuple[int, ...], width: int, dtype: str, causal: bool, window: int | None, softcap: bool
) -> AttentionShape:
    return AttentionShape(
        batch=q[0],
        heads=q[2],
        kv_heads=k[2],
        seq_q=q[1],
        seq_kv=k[1],
        head_dim=q[3],
        head_dim_v=width,
        dtype=dtype,
        causal=causal,
        window=window,
        softcap=softcap,
    )


def _empty(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    scale: float | None,
    softcap: float | None,
    return_lse: bool,
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]":
    """No queries or no keys: nothing to pick a kernel for."""
    from autotune.kernels.flash_attention.call import check_call

    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise InputMismatchError(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit each other")
    check_call(q, k, v, scale=scale, softcap=softcap)
    out = q.new_zeros((*q.shape[:3], v.shape[3]))
    lse = q.new_full((q.shape[0], q.shape[2], q.shape[1]), -math.inf).float()
    return (out, lse) if return_lse else out
