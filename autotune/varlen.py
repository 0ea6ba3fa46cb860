"""Attention over packed sequences of different lengths, which picks a kernel by its tensors and caches the pick."""

from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, overload

from autotune.eager_calls import attend_varlen, is_traced

if TYPE_CHECKING:
    import torch

    Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class VarlenOptions(TypedDict, total=False):
    """The options of ``attention_varlen`` that do not change its result's type."""

    causal: bool
    window: int | None
    softcap: float | None
    sinks: "torch.Tensor | None"
    seqused_q: "torch.Tensor | None"
    seqused_k: "torch.Tensor | None"
    scale: float | None
    out: "torch.Tensor | None"
    check: bool


@overload
def attention_varlen(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    cu_seqlens_q: "torch.Tensor",
    cu_seqlens_k: "torch.Tensor",
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[VarlenOptions],
) -> "torch.Tensor": ...
@overload
def attention_varlen(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    cu_seqlens_q: "torch.Tensor",
    cu_seqlens_k: "torch.Tensor",
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    return_lse: Literal[True],
    **options: Unpack[VarlenOptions],
) -> "tuple[torch.Tensor, torch.Tensor]": ...
@overload
def attention_varlen(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    cu_seqlens_q: "torch.Tensor",
    cu_seqlens_k: "torch.Tensor",
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    return_lse: bool,
    **options: Unpack[VarlenOptions],
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]": ...
def attention_varlen(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    cu_seqlens_q: "torch.Tensor",
    cu_seqlens_k: "torch.Tensor",
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    sinks: "torch.Tensor | None" = None,
    seqused_q: "torch.Tensor | None" = None,
    seqused_k: "torch.Tensor | None" = None,
    scale: float | None = None,
    return_lse: bool = False,
    out: "torch.Tensor | None" = None,
    check: bool = False,
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]":
    """Compute softmax attention of each of several sequences over its own keys, packed one after another: ``q [T_q, H,
    D]`` over ``k [T_kv, H_kv, D]`` and ``v [T_kv, H_kv, D_v]``.

    Forward only; fp16, bf16 or fp32, any strides with a unit last one, ``H`` a multiple of ``H_kv``. Nothing on the GPU
    is read by the host, and the grid depends on no length: a CUDA graph may hold the call. On the CPU it needs
    ``TRITON_INTERPRET=1``, and computes fp16 and fp32, to check numbers.

    Args:
        cu_seqlens_q: int32 ``[sequences + 1]``: the queries of sequence ``i`` are from ``cu_seqlens_q[i]`` to
            ``cu_seqlens_q[i + 1]``; there may be none. It begins with 0 and ends with ``T_q``.
        cu_seqlens_k: the same of keys and values; a sequence may have more queries than keys, or no keys.
        max_seqlen_q, max_seqlen_k: the lengths of the longest, for picking the kernel; no number depends on them.
            Rows that do not count are part of a length here.
        causal: bottom-right aligned in each sequence: its query i sees keys up to ``i + keys - queries``.
        window: see only keys closer than this many positions, one's own included.
        softcap: bound scaled scores by ``softcap * tanh(score / softcap)``.
        sinks: ``[H]``: a logit of each head that adds to the softmax's denominator and has no value.
        seqused_q, seqused_k: int32 ``[sequences]``: so many of a sequence's first queries count, or of its keys; all by
            default. The others are not read, and it is as if its offsets ended there: its last query that counts sees
            its last key that does. A query that does not count gets what one gets that sees no key.
        scale: what scores are multiplied by; ``D ** -0.5`` by default.
        return_lse: also return the natural logarithm of the softmax's denominator, a sink included, fp32 ``[T_q, H]``;
            see ``merge_attention``.
        out: write the output here: contiguous, of the output's sizes and dtype, no memory shared with the inputs.
        check: also read the offsets, and refuse those that fall, end elsewhere, or are of longer sequences than
            ``max_seqlen_q`` and ``max_seqlen_k``, and likewise numbers beyond a sequence's rows; waits for the GPU.

    Returns:
        The output ``[T_q, H, D_v]`` in the dtype of ``q``; a query that sees no key gets 0, and the logarithm -inf or
        its sink.

    Raises:
        InputMismatchError: tensors that do not fit each other.
        InvalidShapeError: a problem that the kernel cannot compute.
        NotDifferentiableError: gradients are required.

    Example:
        >>> out = autotune.attention_varlen(q, k, v, offsets, offsets, longest, longest, causal=True)
    """
    options = {"causal": causal, "window": window, "softcap": softcap, "scale": scale, "check": check}
    if is_traced(q, k, v, cu_seqlens_q, cu_seqlens_k):
        from autotune import torch_ops

        return torch_ops.ATTENTION_VARLEN(
            *(q, k, v, cu_seqlens_q, cu_seqlens_k),
            sinks=sinks,
            seqused_q=seqused_q,
            seqused_k=seqused_k,
            max_seqlen_q=max_seqlen_q,
            max_seqlen_k=max_seqlen_k,
            **options,
            return_lse=return_lse,
            out=out,
        )
    result: Result = attend_varlen(
        *(q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, seqused_q, seqused_k, max_seqlen_q, max_seqlen_k),
        *(causal, window, softcap, scale, check),
        return_lse=return_lse,
        out=out,
    )
    return result
