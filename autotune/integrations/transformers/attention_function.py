"""The attention function that transformers calls in each layer: dense, or packed where the mask function found padding
or several sequences in a row."""

from dataclasses import dataclass
from typing import Any

import torch

from autotune.errors import InputMismatchError, UnsupportedCallError
from autotune.functional import attention
from autotune.integrations.transformers.call_options import refuse_options, refuse_training
from autotune.integrations.transformers.mask_function import MaskPlan, mask_function, plan_of
from autotune.integrations.transformers.packed_rows import Packing
from autotune.integrations.transformers.score_operand import combine_masks, is_own_mask, plan_of_all, refuse_packed
from autotune.varlen import attention_varlen
from autotune.varlen_shape import MAX_WIDTH


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions:
    """Changes of the scores: ``softcap``, ``scale``, and ``sinks [H]``, logits without a value."""

    softcap: float | None
    scale: float | None
    sinks: torch.Tensor | None


@torch.compiler.disable  # type: ignore[untyped-decorator]  # graphs break here: plans are no tensors
def attention_function(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k: torch.Tensor | None = None,
    max_length_q: int | None = None,
    max_length_k: int | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention of ``query [B, H, S_q, D]`` over ``key [B, H_kv, S_kv, D]`` and ``value [B, H_kv, S_kv, D_v]``.

    ``attention_mask`` is what our mask function returned, or a mask ``[B, 1 or H, S_q, S_kv]`` of the caller's own,
    boolean or added to the scores, or None where every query sees every key. It decides what is causal and how wide a
    window is, as it does for transformers' own "eager". ``position_bias [B or 1, H or 1, S_q, S_kv]`` is added, too.

    Returns:
        The output ``[B, S_q, H, D_v]``, and no weights.

    Raises:
        InputMismatchError: the mask is of other sizes than the tensors, or sequences of other than one row.
        NotDifferentiableError: gradients are required.
        UnsupportedCallError: a keyword or a mask that is not computed; the message names it.
    """
    refuse_options(options)
    refuse_training(dropout, query, key, value)
    _require_mask_function(module)
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    is_own = attention_mask is not None and is_own_mask(attention_mask)
    if is_own:
        plan = plan_of_all(q, k)
    elif attention_mask is None:
        plan = _plan_unmasked(module, q, k, is_causal, sliding_window)
    else:
        plan = _plan_masked(q, k, attention_mask, is_causal, sliding_window)
    scores = ScoreOptions(softcap=softcap, scale=scaling, sinks=_sinks(s_aux, q.shape[2]))
    lengths = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    packing = plan.packing if lengths == (None,) * 4 else _given_packing(plan, q, k, *lengths)
    is_wide = max(q.shape[3], v.shape[3]) > MAX_WIDTH  # than packed rows may be: padding is a mask of theirs
    if is_own or position_bias is not None or plan.kv_ends is not None or is_wide:
        refuse_packed(plan, packing)
        operand = combine_masks(attention_mask if is_own else None, position_bias, plan, q.dtype)
        return _attend_rows(q, k[:, : plan.keys], v[:, : plan.keys], plan, scores, operand), None
    if packing is None:
        return _attend_rows(q, k[:, : plan.keys], v[:, : plan.keys], plan, scores), None
    return _attend_packed(q, k, v, plan, packing, scores), None


def _require_mask_function(module: torch.nn.Module) -> None:
    """Refuse to compute where transformers makes no masks for this implementation: it would drop padding."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    name = getattr(getattr(module, "config", None), "_attn_implementation", None) or "autotune"
    if ALL_MASK_ATTENTION_FUNCTIONS._global_mapping.get(name) is not mask_function:
        raise UnsupportedCallError(
            f"no mask function of ours is registered as {name!r}, and padding would be ignored; "
            "call autotune.integrations.transformers.register()"
        )


def _plan_unmasked(
    module: torch.nn.Module, q: torch.Tensor, k: torch.Tensor, is_causal: bool | None, window: int | None
) -> MaskPlan:
    """Plan a layer that was given no mask, as those of encoders are: every query sees every key."""
    q_length, kv_length = q.shape[1], k.shape[1]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if causal and q_length > 1:
        raise UnsupportedCallError(
            f"attention_mask=None with is_causal=True and {q_length} queries is not computed: where padding lies is "
            "not known; expected the mask of transformers' create_causal_mask"
        )
    if window is not None and kv_length > window:
        raise UnsupportedCallError(f"sliding_window={window} over {kv_length} keys without a mask is not computed")
    return plan_of_all(q, k)


def _plan_masked(
    q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor, is_causal: bool | None, window: int | None
) -> MaskPlan:
    plan = plan_of(mask)
    if plan is None:
        raise UnsupportedCallError(
            f"attention_mask is a {type(mask).__name__} {tuple(mask.shape)} of {mask.dtype} that our mask function did "
            "not make, and is not computed; expected padding as [batch, tokens], or [batch, 1 or heads, queries, keys]"
        )
    if (plan.batch, plan.q_length, plan.kv_length) != (q.shape[0], q.shape[1], k.shape[1]):
        found = f"batch {q.shape[0]}, {q.shape[1]} queries and {k.shape[1]} keys"
        made = f"batch {plan.batch}, {plan.q_length} queries and {plan.kv_length} keys"
        raise InputMismatchError(f"attention_mask was made for {made}; the layer has {found}")
    if is_causal and not plan.causal and plan.q_length > 1:
        raise UnsupportedCallError("is_causal=True with a mask that is not causal is not computed")
    if window is not None and plan.window is None and plan.keys > window:
        raise UnsupportedCallError(f"sliding_window={window} with a mask that has no window is not computed")
    return plan


def _sinks(s_aux: torch.Tensor | None, heads: int) -> torch.Tensor | None:
    if s_aux is None:
        return None
    if s_aux.numel() != heads:
        raise InputMismatchError(f"s_aux is {tuple(s_aux.shape)}; expected one logit a head, [{heads}]")
    return s_aux.detach().flatten()


def _given_packing(
    plan: MaskPlan,
    q: torch.Tensor,
    k: torch.Tensor,
    offsets_q: torch.Tensor | None,
    offsets_k: torch.Tensor | None,
    longest_q: int | None,
    longest_k: int | None,
) -> Packing:
    """Return the sequences that the caller says lie in the one row."""
    if offsets_q is None or offsets_k is None:
        raise InputMismatchError(
            "cu_seq_lens_q and cu_seq_lens_k are given together, or neither, nor max_length_q and _k"
        )
    if q.shape[0] != 1 or plan.is_padded or plan.keys != k.shape[1]:
        raise InputMismatchError(
            f"cu_seq_lens_q with batch {q.shape[0]}, padding={plan.is_padded} and {k.shape[1]} keys, {plan.keys} seen; "
            "expected batch 1 without padding, and no slots of a cache that are empty"
        )
    return Packing(
        queries=None,
        keys=None,
        offsets_q=offsets_q.int(),
        offsets_k=offsets_k.int(),
        longest_q=int(offsets_q.diff().max()) if longest_q is None else int(longest_q),
        longest_k=int(offsets_k.diff().max()) if longest_k is None else int(longest_k),
    )


def _attend_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: MaskPlan,
    scores: ScoreOptions,
    operand: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute rows that are all alike, but for operands; without any a sink takes its share of each after the fact.

    It has no value, and other kernels are faster than those that have operands.
    """
    causal = plan.causal and q.shape[1] > 1
    window = plan.window
    if operand is not None or plan.kv_ends is not None:
        return attention(
            *(q, k, v),
            causal=causal,
            window=window,
            softcap=scores.softcap,
            scale=scores.scale,
            attn_mask=operand,
            sinks=scores.sinks,
            kv_ends=plan.kv_ends,
        )
    if window is not None and q.shape[1] == 1:  # one query sees the last keys, which lie together
        k, v, window = k[:, -window:], v[:, -window:], None
    if scores.sinks is None:
        return attention(q, k, v, causal=causal, window=window, softcap=scores.softcap, scale=scores.scale)
    out, lse = attention(
        q, k, v, causal=causal, window=window, softcap=scores.softcap, scale=scores.scale, return_lse=True
    )
    share = torch.sigmoid(lse - scores.sinks.float()[:, None])  # of the keys in the denominator, [B, H, S_q]
    return (out * share.transpose(1, 2)[..., None]).to(out.dtype)


def _attend_packed(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: MaskPlan, packing: Packing, scores: ScoreOptions
) -> torch.Tensor:
    """Compute the tokens that count; the others, padding, get 0."""
    rows_k, rows_v = (x.flatten(0, 1) if packing.keys is None else x[packing.keys] for x in (k, v))
    result = attention_varlen(
        q.flatten(0, 1) if packing.queries is None else q[packing.queries],
        *(rows_k, rows_v, packing.offsets_q, packing.offsets_k, packing.longest_q, packing.longest_k),
        causal=plan.causal,
        window=plan.window,
        softcap=scores.softcap,
        scale=scores.scale,
        sinks=scores.sinks,
    )
    if packing.queries is None:
        return result.view(*q.shape[:2], *result.shape[1:])
    out = result.new_zeros(*q.shape[:3], v.shape[3])
    out[packing.queries] = result
    return out
