"""The mask function that transformers calls once a forward and kind of layer: it plans what the layers compute.

What it returns goes through their models to the attention function: a tensor of a mask's sizes on the meta device that
has the plan as an attribute. No memory is behind it, so that whatever reads it, adds to it or cuts it ends in an error:
a cut tensor has no plan, and the attention function refuses it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch.nn.functional import pad

from autotune.errors import InputMismatchError, UnsupportedCallError
from autotune.integrations.transformers.mask_pattern import MaskPattern, read_pattern
from autotune.integrations.transformers.packed_rows import (
    Packing,
    ends_of_blocks,
    has_holes,
    pack_padded,
    pack_sequences,
)

ATTRIBUTE: Final = "_autotune_plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskPlan:
    """The mask of all layers of a kind: ``causal`` and ``window`` over the first ``keys`` of ``kv_length`` keys.

    Without a ``packing`` all rows are alike, and causal is bottom-right aligned over those keys. It leaves padding out
    where the batch ``is_padded``, and keeps sequences apart where rows have several, ``is_shared``. ``kv_ends`` is that
    of ``autotune.attention``.
    """

    batch: int
    q_length: int
    kv_length: int
    keys: int
    causal: bool
    window: int | None
    packing: Packing | None = None
    is_padded: bool = False
    is_shared: bool = False
    kv_ends: torch.Tensor | None = None


def plan_of(mask: torch.Tensor) -> MaskPlan | None:
    """Return the plan that a mask stands for, None for any other tensor."""
    plan: MaskPlan | None = getattr(mask, ATTRIBUTE, None)
    return plan


@torch.compiler.disable  # type: ignore[untyped-decorator]  # it reads lengths from the device
def mask_function(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int | torch.Tensor = 0,
    *,
    mask_function: Callable[..., Any],
    attention_mask: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Plan attention of queries from ``q_offset`` on over keys from ``kv_offset`` on, as ``mask_function`` says.

    Args:
        attention_mask: ``[B, seen]``, false at padding.
        options: what masks of others need: dtype, device, whether they may be left out.

    Raises:
        InputMismatchError: ``attention_mask`` ends before the queries do.
        UnsupportedCallError: no kernel computes the pattern.
    """
    pattern = read_pattern(mask_function)
    first_q, first_k = int(q_offset), int(kv_offset)
    plan = _plan_dense(batch_size, (first_q, q_length), (first_k, kv_length), pattern)
    if pattern.sequences is not None:
        plan = replace(plan, packing=pack_sequences(pattern.sequences), is_shared=True)
    if pattern.blocks is not None and q_length > 1:  # a single query is the last token of all
        plan = replace(plan, kv_ends=ends_of_blocks(pattern.blocks)[:, first_q : first_q + q_length] - first_k)
    if attention_mask is not None:
        plan = _plan_padded(plan, attention_mask, first_q, first_k, pattern.sequences)
    mask = torch.empty(batch_size, 1, q_length, kv_length, dtype=torch.bool, device="meta")
    setattr(mask, ATTRIBUTE, plan)
    return mask


def _plan_dense(batch: int, queries: tuple[int, int], keys: tuple[int, int], pattern: MaskPattern) -> MaskPlan:
    """Plan rows without padding; ``queries`` and ``keys`` are where they begin, and how many there are."""
    (first_q, q_length), (first_k, kv_length) = queries, keys
    end = first_q + q_length
    if pattern.chunk_size is not None and end > pattern.chunk_size:
        raise UnsupportedCallError(
            f"attention_chunk_size={pattern.chunk_size} is not computed for {end} tokens; expected so many at most"
        )
    seen = end - first_k if pattern.causal else kv_length  # an empty static cache has slots behind the last query
    if not 0 < seen <= kv_length:
        raise InputMismatchError(f"queries end at {end}, and keys are from {first_k} to {first_k + kv_length}")
    window = pattern.window
    if window is not None and seen <= window:
        window = None  # it hides nothing
    if window is not None and not pattern.causal and (first_q, q_length) != (first_k, kv_length):
        raise UnsupportedCallError(f"sliding_window={window - 1} both ways over keys of other tokens is not computed")
    return MaskPlan(
        batch=batch, q_length=q_length, kv_length=kv_length, keys=seen, causal=pattern.causal, window=window
    )


def _plan_padded(
    plan: MaskPlan, attention_mask: torch.Tensor, first_q: int, first_k: int, sequences: torch.Tensor | None
) -> MaskPlan:
    """Leave padding out: it is packed away, and its queries get 0 where they cannot see as all others do."""
    end_q, end_k = first_q + plan.q_length, first_k + plan.keys
    sizes = tuple(attention_mask.shape)
    if len(sizes) != 2 or sizes[0] != plan.batch or (plan.causal and sizes[1] < end_q):
        raise InputMismatchError(f"attention_mask is {sizes}; expected [{plan.batch}, {end_q}], or a longer one")
    valid = pad(attention_mask, (0, max(0, end_k - sizes[1])))
    keys = valid[:, first_k:end_k]
    if bool(keys.all()):  # causal: queries are among the keys
        return plan
    if plan.window is not None and has_holes(keys):
        raise UnsupportedCallError(
            "attention_mask has padding between tokens, over which a sliding window is not computed; pad on one side"
        )
    if sequences is not None and ((first_q, plan.q_length) != (first_k, plan.keys) or sequences.shape != keys.shape):
        tokens = f"{plan.q_length} queries from {first_q} on and {plan.keys} keys from {first_k} on"
        raise UnsupportedCallError(
            f"attention_mask with padding beside packed sequences {tuple(sequences.shape)} is not computed "
            f"for {tokens}; expected the same tokens"
        )
    if plan.causal:
        queries: torch.Tensor | None = valid[:, first_q:end_q]
    else:
        queries = keys if plan.window is not None else None  # all see the same: padding, too, as with a mask
    return replace(plan, packing=pack_padded(queries, keys, plan.q_length, sequences), is_padded=True)
