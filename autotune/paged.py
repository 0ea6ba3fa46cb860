"""Functions over a paged cache: attention, which picks a kernel by its tensors and caches the pick, and appending."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

from autotune.eager_calls import append, decode, is_traced, prefill

if TYPE_CHECKING:
    import torch

    Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class PagedOptions(TypedDict, total=False):
    """The options of attention over a paged cache that do not change its result's type: those of ``paged_decode``."""

    layout: Literal["NHD", "HND"]
    scale: float | None
    window: int | None
    softcap: float | None
    sinks: "torch.Tensor | None"
    alibi_slopes: "torch.Tensor | None"
    k_scale: "torch.Tensor | None"
    v_scale: "torch.Tensor | None"
    mean_context: int | None
    out: "torch.Tensor | None"
    check: bool


class PrefillOptions(PagedOptions, total=False):
    """Those of ``paged_prefill``, which may show its queries all keys."""

    causal: bool


@overload
def paged_decode(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    seq_lens: "torch.Tensor",
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[PagedOptions],
) -> "torch.Tensor": ...
@overload
def paged_decode(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    seq_lens: "torch.Tensor",
    *,
    return_lse: Literal[True],
    **options: Unpack[PagedOptions],
) -> "tuple[torch.Tensor, torch.Tensor]": ...
@overload
def paged_decode(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    seq_lens: "torch.Tensor",
    *,
    return_lse: bool,
    **options: Unpack[PagedOptions],
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]": ...
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
    k_scale: "torch.Tensor | None" = None,
    v_scale: "torch.Tensor | None" = None,
    mean_context: int | None = None,
    return_lse: bool = False,
    out: "torch.Tensor | None" = None,
    check: bool = False,
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]":
    """Compute softmax attention of one query a sequence, ``q [B, H, D]``, or of its last few, ``q [B, S_q, H, D]`` with
    ``S_q`` up to 8, over a paged cache that holds their keys already.

    Forward only; fp16, bf16 or fp32, ``H`` a multiple of ``H_kv``, unit last strides. Nothing on the GPU is read by the
    host, and the grid depends on no length: a CUDA graph may hold the call. On the CPU it needs
    ``TRITON_INTERPRET=1``, and computes fp16 and fp32, to check numbers.

    Args:
        k_cache: ``[pages, page_size, H_kv, D]``, or ``[pages, H_kv, page_size, D]`` with ``layout="HND"``; any strides.
            Of the dtype of ``q``, or of one byte an element where that is fp16 or bf16: int8, float8_e4m3fn or
            float8_e5m2.
        v_cache: the same with ``D_v`` for ``D``.
        page_table: int32 ``[B, max_pages]``: page ``i`` of a sequence holds its keys from ``i * page_size``. What lies
            past a sequence's length, or wholly outside its window, may be anything. What is no page of the cache is
            taken for its last one by our kernels, and left out of a cache of latents.
        seq_lens: int32 ``[B]``: keys of each sequence, those of its queries included; 0 is allowed.
        scale: what scores are multiplied by; ``D ** -0.5`` by default.
        window: see only this many last keys, one's own included.
        softcap: bound scaled scores by ``softcap * tanh(score / softcap)``.
        sinks: ``[H]``: a logit of each head that adds to the softmax's denominator and has no value.
        alibi_slopes: ``[H]``: added to a score is the slope times the key's position less the query's.
        k_scale, v_scale: what the caches' values are multiplied by, fp32, of one-byte caches and required there: for
            int8 one a slot and head, of the cache's first three sizes; for 8-bit floats ``[H_kv]``, or one for all, of
            no dimension. ``append_kv`` and ``PagedKVCache`` write such caches.
        mean_context: a hint for picking the kernel: keys of a sequence on average, an integer from 1; the table's
            capacity by default, and at most. Rounded by up to 6 %, so that a mean that moves needs few picks.
        return_lse: also return the natural logarithm of the softmax's denominator, a sink included, fp32 ``[B, H]`` or
            ``[B, S_q, H]``; see ``merge_attention``.
        out: write the output here: contiguous, of the output's sizes and dtype, no memory shared with the inputs.
        check: also read lengths and page indices and refuse those that lead outside the cache; waits for the GPU.

    Returns:
        The output ``[B, H, D_v]`` or ``[B, S_q, H, D_v]`` in the dtype of ``q``; a query that sees no key gets 0, and
        the logarithm -inf or its sink. Of no sequences (``B`` 0) it is empty, and no kernel is picked.

    Raises:
        InputMismatchError: tensors that do not fit each other.
        InvalidShapeError: a problem that the kernel cannot compute.
        NotDifferentiableError: gradients are required.

    Example:
        >>> out = autotune.paged_decode(q, cache.k_cache, cache.v_cache, cache.page_table(ids), cache.seq_lens(ids))
    """
    compute: Callable[..., Result] = decode
    if is_traced(q, k_cache, v_cache, page_table, seq_lens):
        from autotune import torch_ops

        compute = torch_ops.PAGED_DECODE
    return compute(
        q, k_cache, v_cache, page_table, seq_lens,
        layout=layout, scale=scale, window=window, softcap=softcap, sinks=sinks, alibi_slopes=alibi_slopes,
        k_scale=k_scale, v_scale=v_scale, mean_context=mean_context, check=check, return_lse=return_lse, out=out,
    )  # fmt: skip


@overload
def paged_prefill(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    seq_lens: "torch.Tensor",
    cu_seqlens_q: "torch.Tensor",
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[PrefillOptions],
) -> "torch.Tensor": ...
@overload
def paged_prefill(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    seq_lens: "torch.Tensor",
    cu_seqlens_q: "torch.Tensor",
    *,
    return_lse: Literal[True],
    **options: Unpack[PrefillOptions],
) -> "tuple[torch.Tensor, torch.Tensor]": ...
@overload
def paged_prefill(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    seq_lens: "torch.Tensor",
    cu_seqlens_q: "torch.Tensor",
    *,
    return_lse: bool,
    **options: Unpack[PrefillOptions],
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]": ...
def paged_prefill(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    seq_lens: "torch.Tensor",
    cu_seqlens_q: "torch.Tensor",
    *,
    layout: Literal["NHD", "HND"] = "NHD",
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: "torch.Tensor | None" = None,
    alibi_slopes: "torch.Tensor | None" = None,
    k_scale: "torch.Tensor | None" = None,
    v_scale: "torch.Tensor | None" = None,
    causal: bool = True,
    mean_context: int | None = None,
    return_lse: bool = False,
    out: "torch.Tensor | None" = None,
    check: bool = False,
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]":
    """Compute softmax attention of any number of new queries of each sequence, packed one sequence after another into
    ``q [T, H, D]``, over a paged cache that holds their keys already: chunked prefill, and chunks mixed with decode
    steps in one launch.

    A sequence's queries are its last positions, and see the keys up to their own. Forward only; fp16, bf16 or fp32,
    ``H`` a multiple of ``H_kv``, unit last strides. Nothing on the GPU is read by the host, and the grid depends on no
    length: a CUDA graph may hold the call.

    Args:
        k_cache, v_cache, page_table: as in ``paged_decode``.
        seq_lens: int32 ``[B]``: keys of each sequence, those of its queries included. Queries before the first key, if
            there are more of them than keys, see none.
        cu_seqlens_q: int32 ``[B + 1]``: the queries of sequence ``i`` are ``q[cu_seqlens_q[i] : cu_seqlens_q[i + 1]]``;
            none is allowed, and then no page of the sequence is read. What lies past the last offset is neither read
            nor written.
        layout, scale, window, softcap, sinks, alibi_slopes, k_scale, v_scale: as in ``paged_decode``.
        causal: False: queries see all keys of their sequence, as in a decoder's cross attention to what an encoder has
            read and a cache holds. A ``window`` then leaves the keys closer than it on either side of a query, and an
            ALiBi slope is times the distance of the two, negated; positions are aligned at their ends.
        mean_context: as in ``paged_decode``.
        return_lse: also return the natural logarithm of the softmax's denominator, a sink included, fp32 ``[T, H]``;
            see ``merge_attention``.
        out: as in ``paged_decode``, ``[T, H, D_v]``; rows past the last offset are left as they are.
        check: also read lengths, page indices and ``cu_seqlens_q`` and refuse those that lead outside the cache or the
            queries; waits for the GPU.

    Returns:
        The output ``[T, H, D_v]`` in the dtype of ``q``; a query that sees no key gets 0, and the logarithm -inf or its
        sink. Of no sequences (``B`` 0) no kernel is picked.

    Raises:
        InputMismatchError: tensors that do not fit each other.
        InvalidShapeError: a problem that the kernel cannot compute, such as a quantized cache under fp32 queries.
        NotDifferentiableError: gradients are required.

    Example:
        >>> table, lengths = cache.page_table(ids), cache.seq_lens(ids)
        >>> out = autotune.paged_prefill(q, cache.k_cache, cache.v_cache, table, lengths, cu_seqlens_q)
    """
    compute: Callable[..., Result] = prefill
    if is_traced(q, k_cache, v_cache, page_table, seq_lens, cu_seqlens_q):
        from autotune import torch_ops

        compute = torch_ops.PAGED_PREFILL
    return compute(
        q, k_cache, v_cache, page_table, seq_lens, cu_seqlens_q,
        layout=layout, scale=scale, window=window, softcap=softcap, sinks=sinks, alibi_slopes=alibi_slopes,
        k_scale=k_scale, v_scale=v_scale, causal=causal, mean_context=mean_context, check=check,
        return_lse=return_lse, out=out,
    )  # fmt: skip


def append_kv(
    k: "torch.Tensor",
    v: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    slots: "torch.Tensor",
    *,
    layout: Literal["NHD", "HND"] = "NHD",
    k_scale: "torch.Tensor | None" = None,
    v_scale: "torch.Tensor | None" = None,
    check: bool = False,
) -> None:
    """Write new keys ``k [T, H_kv, D]`` and values ``v [T, H_kv, D_v]`` into the slots of a paged cache, in one launch
    that quantizes them on the way where the cache is.

    fp16, bf16 or fp32, any strides with a unit last one. Nothing on the GPU is read by the host: a CUDA graph may hold
    the call.

    Args:
        k_cache: ``[pages, page_size, H_kv, D]``, or ``[pages, H_kv, page_size, D]`` with ``layout="HND"``, of the dtype
            of ``k``, or int8, float8_e4m3fn or float8_e5m2; any strides with a unit last one.
        v_cache: the same with ``D_v`` for ``D``, of the same dtype.
        slots: int32 or int64 ``[T]``: ``page * page_size + slot`` for each token. One with a negative slot, or with one
            past the cache, is skipped. Give each slot once: of two tokens with one slot, what remains may be of both, a
            key of the one beside a value or a scale of the other. See ``check``.
        k_scale, v_scale: fp32. Of an int8 cache, of its first three sizes, written beside it: a token's and head's
            largest absolute value over 127. Of an 8-bit float's, ``[H_kv]`` or of no dimension, 1 by default: values
            are divided by it, rounded to the nearest, ties to even, and clamped.
        check: also read the slots and refuse those outside the cache or given twice; waits for the GPU.

    Raises:
        InputMismatchError: tensors that do not fit each other.
        InvalidShapeError: an unknown layout.
        NotDifferentiableError: gradients are required.

    Example:
        >>> last = seq_lens - 1  # the new token of each sequence counts already
        >>> pages = page_table.gather(1, (last // page_size).long()[:, None])[:, 0]
        >>> autotune.append_kv(k, v, k_cache, v_cache, pages * page_size + last % page_size)
    """
    compute: Callable[..., None] = append
    if is_traced(k, v, k_cache, v_cache, slots):
        from autotune import torch_ops

        compute = torch_ops.append_kv
    compute(k, v, k_cache, v_cache, slots, k_scale=k_scale, v_scale=v_scale, layout=layout, check=check)
