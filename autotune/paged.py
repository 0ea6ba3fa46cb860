"""Functions over a paged cache: attention, which picks a kernel by its tensors and caches the pick, and appending."""

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from autotune.dispatch import CACHED_PICKS, TunedKernel, pick_for_device
from autotune.errors import InputMismatchError, InvalidShapeError
from autotune.functional import check_tensors, gpu_of, require_packages
from autotune.rounding import power_of_two
from autotune.shape import MAX_CONTEXT, PagedShape, parse_layout

if TYPE_CHECKING:
    import torch


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
            past a sequence's length, or wholly outside its window, may be anything.
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
        check: also read lengths and page indices and refuse those that lead outside the cache; waits for the GPU.

    Returns:
        The output ``[B, H, D_v]`` or ``[B, S_q, H, D_v]`` in the dtype of ``q``; a query that sees no key gets 0, and
        the logarithm -inf or its sink.

    Raises:
        InputMismatchError: tensors that do not fit each other.
        InvalidShapeError: a problem that the kernel cannot compute.
        NotDifferentiableError: gradients are required.

    Example:
        >>> out = autotune.paged_decode(q, cache.k_cache, cache.v_cache, cache.page_table(ids), cache.seq_lens(ids))
    """
    _check_ranks(q, k_cache, v_cache, page_table, q_forms={3: "[B, H, D]", 4: "[B, S_q, H, D]"})
    sizes = (q.shape[0], 1, *q.shape[1:]) if q.ndim == 3 else tuple(q.shape)
    features = (window, softcap is not None, sinks is not None, alibi_slopes is not None)
    kernel = _pick("paged_decode", sizes, features, q, k_cache, v_cache, page_table, layout, mean_context)
    options = {"sinks": sinks, "alibi_slopes": alibi_slopes, "k_scale": k_scale, "v_scale": v_scale, "check": check}
    tensors = (q, k_cache, v_cache, page_table, seq_lens)
    return kernel(*tensors, scale=scale, softcap=softcap, return_lse=return_lse, **options)  # type: ignore[no-any-return]


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
    mean_context: int | None = None,
    return_lse: bool = False,
    check: bool = False,
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]":
    """Compute causal softmax attention of any number of new queries of each sequence, packed one sequence after another
    into ``q [T, H, D]``, over a paged cache that holds their keys already: chunked prefill, and chunks mixed with
    decode steps in one launch.

    A sequence's queries are its last positions, and see the keys up to their own. Forward only; fp16, bf16 or fp32,
    ``H`` a multiple of ``H_kv``, unit last strides. Nothing on the GPU is read by the host, and the grid depends on no
    length: a CUDA graph may hold the call.

    Args:
        k_cache, v_cache, page_table: as in ``paged_decode``, the caches of the dtype of ``q``.
        seq_lens: int32 ``[B]``: keys of each sequence, those of its queries included. Queries before the first key, if
            there are more of them than keys, see none.
        cu_seqlens_q: int32 ``[B + 1]``: the queries of sequence ``i`` are ``q[cu_seqlens_q[i] : cu_seqlens_q[i + 1]]``;
            none is allowed, and then no page of the sequence is read. What lies past the last offset is neither read
            nor written.
        layout, scale, window, softcap, sinks, alibi_slopes: as in ``paged_decode``.
        mean_context: as in ``paged_decode``.
        return_lse: also return the natural logarithm of the softmax's denominator, a sink included, fp32 ``[T, H]``;
            see ``merge_attention``.
        check: also read lengths, page indices and ``cu_seqlens_q`` and refuse those that lead outside the cache or the
            queries; waits for the GPU.

    Returns:
        The output ``[T, H, D_v]`` in the dtype of ``q``; a query that sees no key gets 0, and the logarithm -inf or its
        sink.

    Raises:
        InputMismatchError: tensors that do not fit each other.
        InvalidShapeError: a problem that the kernel cannot compute, such as a quantized cache.
        NotDifferentiableError: gradients are required.

    Example:
        >>> table, lengths = cache.page_table(ids), cache.seq_lens(ids)
        >>> out = autotune.paged_prefill(q, cache.k_cache, cache.v_cache, table, lengths, cu_seqlens_q)
    """
    _check_ranks(q, k_cache, v_cache, page_table, q_forms={3: "[T, H, D]"})
    batch = page_table.shape[0]
    # Serving packs another number of queries in every step: few picks, and shapes that are found in a table, need a
    # mean that is rounded.
    mean_queries = max(1, -(-q.shape[0] // max(1, batch)))
    sizes = (batch, power_of_two(mean_queries), *q.shape[1:])
    features = (window, softcap is not None, sinks is not None, alibi_slopes is not None)
    kernel = _pick("paged_prefill", sizes, features, q, k_cache, v_cache, page_table, layout, mean_context)
    options = {"sinks": sinks, "alibi_slopes": alibi_slopes, "return_lse": return_lse, "check": check}
    tensors = (q, k_cache, v_cache, page_table, seq_lens, cu_seqlens_q)
    return kernel(*tensors, scale=scale, softcap=softcap, **options)  # type: ignore[no-any-return]


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
        slots: int32 or int64 ``[T]``: ``page * page_size + slot`` for each token. One with a negative slot is skipped.
            Give each slot once: of two tokens with one slot, what remains may be of both, a key of the one beside a
            value or a scale of the other. A slot past the cache writes somewhere else. See ``check``.
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
    name = parse_layout(layout)
    require_packages("torch", "triton")
    from autotune.kernels.paged_cache.append import append  # loads torch and triton
    from autotune.kernels.paged_cache.call import check_append, check_slots
    from autotune.kernels.tensors import on_device_of

    check_append(k, v, k_cache, v_cache, slots, layout=name, k_scale=k_scale, v_scale=v_scale)
    if check:
        check_slots(slots, pages=k_cache.shape[0], page_size=k_cache.shape[1 if name == "NHD" else 2])
    with on_device_of(k):
        append(k, v, k_cache, v_cache, slots, layout=name, k_scale=k_scale, v_scale=v_scale)


def _check_ranks(
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    *,
    q_forms: dict[int, str],
) -> None:
    """Validate the numbers of dimensions; the kernel checks the sizes against the shape it was picked for."""
    import torch

    if not type(q) is type(k_cache) is type(v_cache) is type(page_table) is torch.Tensor:
        check_tensors(q=q, k_cache=k_cache, v_cache=v_cache, page_table=page_table)
    if q.ndim not in q_forms or k_cache.ndim != 4 or v_cache.ndim != 4 or page_table.ndim != 2:
        raise InputMismatchError(
            f"q, k_cache, v_cache and page_table have {q.ndim}, {k_cache.ndim}, {v_cache.ndim} and {page_table.ndim} "
            f"dimensions; expected {' or '.join(q_forms.values())}, two caches of 4, and [B, max_pages]"
        )


def _pick(
    operation: str,
    sizes: tuple[int, ...],
    features: tuple[int | None, bool, bool, bool],
    q: "torch.Tensor",
    k_cache: "torch.Tensor",
    v_cache: "torch.Tensor",
    page_table: "torch.Tensor",
    layout: str,
    mean_context: int | None,
) -> TunedKernel:
    """Pick a kernel for a call: ``sizes`` are batch, queries of a sequence, heads and width."""
    pages = (*k_cache.shape[1:3], v_cache.shape[3], page_table.shape[1])
    dtypes = (str(q.dtype)[6:], str(k_cache.dtype)[6:])
    shape = _paged_shape_of(sizes, pages, dtypes, features, parse_layout(layout), _round_mean(mean_context))
    return pick_for_device(shape, gpu_of(q), operation)


def _round_mean(mean_context: int | None) -> int | None:
    """Round to an eighth of the power of two below: a server's mean changes in every step, and each value is a pick."""
    if mean_context is None:
        return None
    if type(mean_context) is not int or mean_context < 1:
        raise InvalidShapeError(f"mean_context={mean_context!r} is not allowed; expected an integer from 1")
    shift = max(0, mean_context.bit_length() - 4)
    return ((mean_context + (1 << shift >> 1)) >> shift) << shift


@lru_cache(maxsize=CACHED_PICKS)
def _paged_shape_of(
    q: tuple[int, ...],
    pages: tuple[int, ...],
    dtypes: tuple[str, str],
    features: tuple[int | None, bool, bool, bool],
    layout: str,
    mean_context: int | None,
) -> PagedShape:
    """Make the shape of a call; the table's capacity, rounded up to a power of two, bounds the context and its mean."""
    page_size, kv_heads = pages[:2] if layout == "NHD" else (pages[1], pages[0])
    bound = min(MAX_CONTEXT, power_of_two(max(1, pages[3] * page_size)))
    sizes: dict[str, Any] = {"batch": q[0], "heads": q[2], "kv_heads": kv_heads, "seq_q": q[1], "page_size": page_size}
    sizes |= {"max_context": bound, "mean_context": bound if mean_context is None else min(mean_context, bound)}
    sizes |= {"head_dim": q[3], "head_dim_v": pages[2], "dtype": dtypes[0], "kv_dtype": dtypes[1], "layout": layout}
    sizes |= zip(("window", "softcap", "sinks", "alibi"), features, strict=True)
    return PagedShape(**sizes)
