"""The function that diffusers dispatches a layer's attention to: each argument is computed, or refused by name."""

from typing import Any, Final

import torch

from autotune.errors import InputMismatchError, UnsupportedCallError
from autotune.functional import attention

ADVICE: Final = "choose another backend for this model, such as 'native'"


def dispatched_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    _parallel_config: object = None,
    **options: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Compute attention of ``query [B, S_q, H, D]`` over ``key [B, S_kv, H_kv, D]`` and ``value [B, S_kv, H_kv, D_v]``.

    Returns:
        The output ``[B, S_q, H, D_v]``; with ``return_lse`` also the natural log-sum-exp of the scores, fp32 ``[B, H,
        S_q]``.

    Raises:
        InputMismatchError: fewer heads of keys than of queries without ``enable_gqa``.
        NotDifferentiableError: gradients are required.
        UnsupportedCallError: an argument that is not computed; the message names it.
    """
    mask = None if attn_mask is None else _mask_over(attn_mask, query, key)
    if dropout_p:
        raise UnsupportedCallError(f"dropout_p={dropout_p} is not computed; expected 0.0, as after model.eval()")
    if _parallel_config is not None:
        raise UnsupportedCallError(f"parallel_config: contexts on several GPUs are not computed; {ADVICE}")
    for name, option in options.items():
        if option is not None:
            raise UnsupportedCallError(f"attention_kwargs has {name}, which is not computed; {ADVICE}")
    if is_causal and query.shape[1] != key.shape[1]:  # theirs are aligned at the first query and key, ours at the last
        raise UnsupportedCallError(
            f"is_causal=True with {query.shape[1]} queries and {key.shape[1]} keys is not computed; {ADVICE}"
        )
    if not enable_gqa and query.shape[2] != key.shape[2]:
        raise InputMismatchError(
            f"query has {query.shape[2]} heads and key {key.shape[2]}; expected as many, or enable_gqa=True"
        )
    return attention(query, key, value, attn_mask=mask, causal=is_causal, scale=scale, return_lse=return_lse)


def _mask_over(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return a mask as ``[B or 1, H or 1, S_q or 1, S_kv]``; of two dimensions it is of keys ``[B, S_kv]`` first, as
    the backend "native" has it, or ``[S_q, S_kv]``."""
    if mask.ndim == 4:
        return mask
    if mask.ndim == 2 and mask.shape[1] == key.shape[1]:
        if mask.shape[0] == query.shape[0]:
            return mask[:, None, None]
        if mask.shape[0] == query.shape[1]:
            return mask[None, None]
    raise UnsupportedCallError(
        f"attn_mask is {tuple(mask.shape)} {mask.dtype}, and not computed by backend 'autotune'; {ADVICE}"
    )
