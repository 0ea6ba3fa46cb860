"""Functions over dense tensors that pick a kernel by them and cache the pick: what most users call."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, TypedDict, Unpack, overload

from autotune.eager_calls import attend, is_traced
from autotune.errors import InputMismatchError, UnknownNameError
from autotune.references import missing_package

if TYPE_CHECKING:
    import torch

    Result = torch.Tensor | tuple[torch.Tensor, torch.Tensor]

LSE_LAYOUTS: Final = ("BSH", "BHS")


class DenseOptions(TypedDict, total=False):
    """The options of ``attention`` that do not change its result's type."""

    causal: bool
    window: int | None
    softcap: float | None
    scale: float | None
    out: "torch.Tensor | None"
    attn_mask: "torch.Tensor | None"
    sinks: "torch.Tensor | None"
    kv_ends: "torch.Tensor | None"
    q_lens: "torch.Tensor | None"
    kv_lens: "torch.Tensor | None"
    kv_starts: "torch.Tensor | None"
    q_scale: "torch.Tensor | float | None"
    k_scale: "torch.Tensor | float | None"
    v_scale: "torch.Tensor | float | None"
    check: bool


@overload
def attention(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[DenseOptions],
) -> "torch.Tensor": ...
@overload
def attention(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    *,
    return_lse: Literal[True],
    **options: Unpack[DenseOptions],
) -> "tuple[torch.Tensor, torch.Tensor]": ...
@overload
def attention(
    q: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor", *, return_lse: bool, **options: Unpack[DenseOptions]
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]": ...
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
    out: "torch.Tensor | None" = None,
    attn_mask: "torch.Tensor | None" = None,
    sinks: "torch.Tensor | None" = None,
    kv_ends: "torch.Tensor | None" = None,
    q_lens: "torch.Tensor | None" = None,
    kv_lens: "torch.Tensor | None" = None,
    kv_starts: "torch.Tensor | None" = None,
    q_scale: "torch.Tensor | float | None" = None,
    k_scale: "torch.Tensor | float | None" = None,
    v_scale: "torch.Tensor | float | None" = None,
    check: bool = False,
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]":
    """Compute softmax attention of ``q [B, S_q, H, D]`` over ``k [B, S_kv, H_kv, D]`` and ``v [B, S_kv, H_kv, D_v]``.

    Forward only; fp16, bf16 or fp32, any strides with a unit last one, ``H`` a multiple of ``H_kv``; float8_e4m3fn on
    Hopper. ``D`` and ``D_v`` are multiples of 8 up to 512, of a padded batch and of float8_e4m3fn up to 256. On the CPU
    it needs ``TRITON_INTERPRET=1``, and computes fp16 and fp32, to check numbers.

    Args:
        causal: bottom-right aligned: query i sees keys up to ``i + S_kv - S_q``.
        window: see only keys closer than this many positions, one's own included.
        softcap: bound scaled scores by ``softcap * tanh(score / softcap)``.
        scale: what scores are multiplied by; ``D ** -0.5`` by default.
        return_lse: also return the natural log-sum-exp of the scores, sinks included, fp32 ``[B, H, S_q]``: heads
            before queries, which ``merge_attention`` takes with ``lse_layout="BHS"``.
        attn_mask: ``[B or 1, H or 1, S_q or 1, S_kv]`` of any strides, beside ``causal`` and ``window``. A boolean one
            is True where a key may be seen. Another, of the dtype of ``q`` or fp32, is added to the scaled, and capped,
            scores: a bias, such as T5's, in which -inf, or what is below -2e38, hides a key. Not for a padded batch: it
            can hide padding, too. 16 or 32 bits an element of ``q``.
        sinks: ``[H]`` of floating point: one more logit of each head's denominator, without a value. 16 or 32 bits an
            element of ``q``.
        kv_ends: with ``causal``, int32 ``[B or 1, S_q]``: a query sees keys before this one, too, as the tokens of an
            image see each other in Gemma 3: key j where ``j < max(i + S_kv - S_q + 1, kv_ends[b, i])``, and of those
            with ``window`` the keys closer than so many positions in its past. 0 changes nothing. Not for a padded
            batch. 16 or 32 bits an element of ``q``.
        out: write the output here, ``[B, S_q, H, D_v]`` of the dtype of ``q``, any strides with a unit last one; it
            shares no memory with the inputs. Of float8_e4m3fn it is bfloat16, or float16. Of a padded batch it is
            contiguous.
        kv_lens, kv_starts: of a padded batch, int32 ``[B]``: of sequence b the keys ``kv_starts[b] <= j < kv_lens[b]``
            count, padded on the right, the left, or both; from the first, and to the last, by default. Query i sees key
            j where it would without padding and j counts: with ``causal`` where ``j <= i + S_kv - S_q``, too. The other
            keys and values are not used, whatever they hold. 16 or 32 bits an element.
        q_lens: likewise: only the queries ``i < q_lens[b]`` count, and others cost nothing: each gets what a query gets
            that sees no key. Without it those of padding are computed, too; pass ``q_lens=kv_lens`` in self-attention
            that is padded on the right.
        q_scale, k_scale, v_scale: of float8_e4m3fn alone, whose elements stand for themselves times this: a positive
            number, or fp32 of one element, ``[H]`` or ``[B, H]``, for ``k`` and ``v`` ``[H_kv]`` or ``[B, H_kv]``.
        check: also read ``q_lens``, ``kv_lens`` and ``kv_starts``, and refuse numbers out of range, which are otherwise
            taken for the nearest in it; waits for the GPU.

    Returns:
        The output ``[B, S_q, H, D_v]`` in the dtype of ``q``, bfloat16 of float8_e4m3fn, or ``out`` itself where it is
        given; a query that sees no key gets 0, its log-sum-exp is -inf, or its sink.

    Raises:
        InputMismatchError: tensors that do not fit each other.
        NotDifferentiableError: gradients are required.

    Example:
        >>> out = autotune.attention(q, k, v, causal=True)
        >>> out = autotune.attention(q, k, v, attn_mask=is_token[:, None, None])  # bool [B, S_kv]: hides padding
    """
    scales: dict[str, torch.Tensor | float | None] = {}
    if q_scale is not None or k_scale is not None or v_scale is not None:
        scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    if is_traced(q, k, v):
        from autotune import torch_ops

        torch_ops.refuse_quantized(q, scales)
        return torch_ops.ATTENTION(
            *(q, k, v),
            causal=causal,
            window=window,
            softcap=softcap,
            scale=scale,
            q_lens=q_lens,
            kv_lens=kv_lens,
            kv_starts=kv_starts,
            check=check,
            attn_mask=attn_mask,
            sinks=sinks,
            kv_ends=kv_ends,
            return_lse=return_lse,
            out=out,
        )
    # In a row: a starred tuple before ``scales`` leaves their types open.
    # fmt: off
    result: Result = attend(
        q, k, v, causal, window, softcap, scale, q_lens, kv_lens, kv_starts, check, attn_mask, sinks, kv_ends,
        return_lse=return_lse, out=out, **scales,
    )
    # fmt: on
    return result


def merge_attention(
    outs: "torch.Tensor | Sequence[torch.Tensor]",
    lses: "torch.Tensor | Sequence[torch.Tensor]",
    *,
    lse_layout: Literal["BSH", "BHS"] = "BSH",
    out: "torch.Tensor | None" = None,
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Merge attention over disjoint sets of keys into attention over their union: a shared prefix and its suffixes.

    Args:
        outs: ``[n, ..., D]`` stacked or as a sequence: the output over each set.
        lses: ``[n, ...]``: the natural logarithm of each softmax's denominator. A sink belongs into one of them only.
        lse_layout: ``"BSH"``: ``lses`` has the sizes of ``outs`` without the last, as ``paged_decode``,
            ``paged_prefill`` and ``attention_varlen`` return them. ``"BHS"``: its last two sizes are the other way
            round, heads before queries, as ``attention`` returns it: ``[n, B, H, S]`` beside ``[n, B, S, H, D]``. Where
            there are as many heads as queries, no size tells the two apart.
        out: write the output here, ``[..., D]`` of the dtype of ``outs``.

    Returns:
        The output ``[..., D]`` in the dtype of ``outs``, computed in fp32 at least, and its ``lse``, laid out as
        ``lses`` without the first size. A query that saw no key in any set gets 0 and -inf.

    Raises:
        InputMismatchError: as many outputs as logarithms, one at least, of the same sizes, were expected.
        UnknownNameError: ``lse_layout`` is another.

    Example:
        >>> out, lse = autotune.merge_attention([prefix_out, suffix_out], [prefix_lse, suffix_lse])  # decode, prefill
        >>> out, lse = autotune.merge_attention(outs, lses, lse_layout="BHS")  # those of autotune.attention
    """
    if lse_layout not in LSE_LAYOUTS:
        allowed = " or ".join(map(repr, LSE_LAYOUTS))
        raise UnknownNameError(f"lse_layout={lse_layout!r} is not allowed; expected {allowed}")
    try:
        import torch
    except ImportError:
        raise missing_package("torch") from None
    from autotune.kernels.tensors import check_out

    outs, lses = _stack("outs", outs), _stack("lses", lses)
    heads_first = lse_layout == "BHS"
    by_rows = lses.transpose(-1, -2) if heads_first and lses.ndim > 2 else lses
    if outs.shape[:-1] != by_rows.shape or outs.ndim < (4 if heads_first else 2):
        expected = "[n, ..., S, H, D] and [n, ..., H, S]" if heads_first else "[n, ..., D] and [n, ...]"
        sizes = f"outs is {tuple(outs.shape)} and lses {tuple(lses.shape)}"
        raise InputMismatchError(f"{sizes}; expected {expected} of lse_layout={lse_layout!r}")
    dtype = torch.promote_types(torch.promote_types(outs.dtype, lses.dtype), torch.float32)
    merged, lse = _merge(outs.to(dtype), by_rows.to(dtype))
    lse = lse.transpose(-1, -2) if heads_first else lse
    if out is None:
        return merged.to(outs.dtype), lse
    check_out(out, tuple(merged.shape), {"outs": outs})
    return out.copy_(merged), lse


def _merge(outs: "torch.Tensor", lses: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
    lse = lses.logsumexp(0)
    weights = (lses - lse.masked_fill(lse == -math.inf, 0.0)).exp()[..., None]
    return (weights * outs).masked_fill(weights == 0.0, 0.0).sum(0), lse


def _stack(name: str, parts: "torch.Tensor | Sequence[torch.Tensor]") -> "torch.Tensor":
    import torch

    from autotune.kernels.tensors import check_tensors

    parts = parts if isinstance(parts, torch.Tensor) else tuple(parts)
    if len(parts) == 0:
        raise InputMismatchError(f"{name} is empty; expected one result at least")
    if isinstance(parts, torch.Tensor):
        return parts
    check_tensors({f"{name}[{index}]": part for index, part in enumerate(parts)})
    first = parts[0]
    for index, part in enumerate(parts):
        if part.shape != first.shape or part.device != first.device:
            differs = f"{name}[{index}] is {tuple(part.shape)} on {part.device}"
            as_first = f"{name}[0] {tuple(first.shape)} on {first.device}"
            raise InputMismatchError(f"{differs}, {as_first}; expected one size and one device")
    return torch.stack(parts)
