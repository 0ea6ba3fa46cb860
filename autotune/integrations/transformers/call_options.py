"""The keywords that transformers' models hand to attention functions: each is computed, without effect, or refused."""

from collections.abc import Mapping
from typing import Any, Final

import torch

from autotune.errors import NotDifferentiableError, UnsupportedCallError

# Of other parts of a model, or already in the mask: no attention function of transformers computes by them.
WITHOUT_EFFECT: Final = frozenset(
    {
        *("position_ids", "cache_position", "use_cache", "return_dict", "num_items_in_batch", "seq_idx"),
        *("output_hidden_states", "output_router_logits", "deterministic", "logits_to_keep", "layer_idx"),
    }
)
REFUSED: Final = frozenset(
    {
        *("cache", "block_table", "indices", "block_indices", "sinks", "output_attentions"),
        *("k_cache", "v_cache", "cache_seqlens"),
    }
)


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse each keyword that is not computed, known or not; None and False mean that it is not used.

    Raises:
        UnsupportedCallError: the message names it.
    """
    for name, value in options.items():
        if name in WITHOUT_EFFECT or value is None or value is False:
            continue
        known = "is not computed" if name in REFUSED else "is not known, and may change the result"
        raise UnsupportedCallError(
            f"{name}={_shown(value)}: it {known} with attn_implementation='autotune'; leave it out, or choose 'eager'"
        )


def refuse_training(dropout: float, *tensors: torch.Tensor) -> None:
    """Refuse what only training asks for.

    Raises:
        NotDifferentiableError: gradients are required.
        UnsupportedCallError: dropout is on.
    """
    if dropout:
        raise UnsupportedCallError(f"dropout={dropout} is not computed; expected 0.0, as after model.eval()")
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise NotDifferentiableError(
            "attn_implementation='autotune' computes no gradients; call the model under torch.no_grad()"
        )


def _shown(value: object) -> str:
    return (
        f"tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"{type(value).__name__} {value!r:.40}"
    )
