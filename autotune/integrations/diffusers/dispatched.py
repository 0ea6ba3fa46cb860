"""The function that diffusers dispatches a layer's attention to: each argument is computed, or refused by name."""

from typing import Any

import torch

from autotune.errors import InputMismatchError, UnsupportedCallError
from autotune.functional import attention

ADVICE = "choose another backend for this model, such as 'native'"


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
    if attn_mask is not None:
        raise UnsupportedCallError(
            f"attn_mask is {tuple(attn_mask.shape)} {attn_mask.dtype}, and not computed by backend 'autotune'; {ADVICE}"
        )
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
    return attention(query, key, value, causal=is_causal, scale=scale, return_lse=return_lse)
