"""The operand of scores that a layer is given: a mask of the caller's own, and a bias of positions, as T5's."""

import math

import torch

from autotune.errors import UnsupportedCallError
from autotune.integrations.transformers.mask_function import MaskPlan, plan_of
from autotune.integrations.transformers.packed_rows import Packing


def is_own_mask(mask: torch.Tensor) -> bool:
    """Return if a mask is no plan of ours, nor what a model has cut from one, which has no memory."""
    return plan_of(mask) is None and mask.ndim == 4 and not mask.is_meta


def plan_of_all(q: torch.Tensor, k: torch.Tensor) -> MaskPlan:
    """Plan queries ``[B, S_q, H, D]`` that see all keys, but for an operand."""
    (batch, q_length), kv_length = q.shape[:2], k.shape[1]
    return MaskPlan(batch=batch, q_length=q_length, kv_length=kv_length, keys=kv_length, causal=False, window=None)


def refuse_packed(plan: MaskPlan, packing: Packing | None) -> None:
    """Refuse an operand over several sequences in a row.

    Raises:
        UnsupportedCallError: there are some.
    """
    if packing is not None and (plan.is_shared or not plan.is_padded):
        raise UnsupportedCallError(
            "position_bias, a mask of your own, blocks, or heads wider than 256, over sequences that are packed in "
            "rows is not computed"
        )


def combine_masks(
    mask: torch.Tensor | None, bias: torch.Tensor | None, plan: MaskPlan, dtype: torch.dtype
) -> torch.Tensor | None:
    """Return the operand that stands for a mask of the caller's own, a bias, and what a plan leaves out as padding.

    A bias is in fp32 or in ``dtype``, that of the queries; None where there is nothing of these.
    """
    seen = _padding_of(plan)
    if mask is not None and mask.dtype == torch.bool:
        seen = mask if seen is None else seen & mask
        mask = None
    added = None if bias is None else bias[..., : plan.keys]
    if mask is not None:
        added = mask if added is None else added + mask
    if added is None:
        return seen
    added = added if added.dtype in (torch.float32, dtype) else added.to(dtype)
    return added if seen is None else added.masked_fill(~seen, -math.inf)


def _padding_of(plan: MaskPlan) -> torch.Tensor | None:
    """Return which keys of a padded batch count, ``[B, 1, 1, keys]``; None without padding."""
    if plan.packing is None or plan.packing.keys is None:
        return None
    rows, places = plan.packing.keys
    seen = torch.zeros(plan.batch, plan.keys, dtype=torch.bool, device=rows.device)
    seen[rows, places] = True
    return seen[:, None, None]
