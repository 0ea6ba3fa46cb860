"""Masks and score functions as torch's FlexAttention takes them, and the masks that flash attention's inputs ask for.

Each makes a function of tensors of places: of a sequence, a head, a query and a key, and of a score before them.
"""

from collections.abc import Callable
from typing import Any

import torch

ScoreMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def causal_mask(offset: int = 0) -> MaskMod:
    """Let query i see the keys up to ``i + offset``: bottom-right aligned where the offset is ``seq_kv - seq_q``."""

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return key <= query + offset

    return visible


def window_mask(window: int, offset: int = 0) -> MaskMod:
    """Let a query see the keys closer than ``window`` positions to its own, on both sides."""

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key - query - offset).abs() < window

    return visible


def document_mask(q_documents: torch.Tensor, kv_documents: torch.Tensor) -> MaskMod:
    """Let a query see the keys of its own document, given documents' numbers, integers ``[S_q]`` and ``[S_kv]``."""

    def visible(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return q_documents[query] == kv_documents[key]

    return visible


def alibi(slopes: torch.Tensor, offset: int = 0) -> ScoreMod:
    """Add ``slopes[head] * (key - query - offset)`` with fp32 slopes ``[H]`` (Press et al., arXiv 2108.12409)."""

    def add_bias(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return score + slopes[head] * (key - query - offset)

    return add_bias


def softcap(cap: float) -> ScoreMod:
    """Return ``cap * tanh(score / cap)``, as in Gemma 2 (arXiv 2408.00118)."""

    def bound(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
        return cap * torch.tanh(score / cap)

    return bound


def mask_of(inputs: Any) -> MaskMod | None:
    """Return the mask that inputs ask for, or None where it would hide nothing: a block mask costs time."""
    from torch.nn.attention.flex_attention import and_masks

    seq_q, seq_kv = inputs.q.shape[1], inputs.k.shape[1]
    offset = seq_kv - seq_q
    masks: list[Any] = []
    if inputs.causal and seq_q > 1:
        masks.append(causal_mask(offset))
    if inputs.window is not None and inputs.window < max(seq_q, seq_kv):
        masks.append(window_mask(inputs.window, offset))
    return and_masks(*masks) if len(masks) > 1 else next(iter(masks), None)
