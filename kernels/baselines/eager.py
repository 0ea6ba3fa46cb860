"""Attention as separate torch operations, each from memory to memory, as GPT-2's code runs it."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from autotune.kernels.baselines.baseline import DTYPES, missing_torch, refuse_unless_ready, wrong_shape
from autotune.shape import AttentionShape

if TYPE_CHECKING:
    import torch

    Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # over [B, H, S, D]


class Eager:
    """Product, scale, mask, softmax, product over ``AttentionShape``, every result in the tensors' dtype.

    The order and the operations are those of GPT-2's attention (``modeling_gpt2.py`` of Hugging Face transformers),
    with -inf for what it hides by the dtype's most negative number. A softcap comes between scale and mask, a window
    joins the mask, and grouped keys and values are expanded to the queries' heads at each call, as ``repeat_kv`` does.
    A query that sees no key has the output 0; where there is one, that is an operation more.
    """

    name: Final = "eager"
    is_usual: Final = False
    verified_on_hardware: Final = True

    def available(self) -> str | None:
        return missing_torch(self.name)

    def unsupported(self, shape: Any) -> str | None:
        return wrong_shape(self.name, shape, (AttentionShape,), DTYPES, has=("attn_mask",))

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        """Bind a call over flash attention's ``Inputs`` that returns ``[B, S_q, H, D_v]``; builds the mask, once.

        The call allocates its results ``[B, H, S_q, S_kv]``, and raises torch's ``OutOfMemoryError`` where they do not
        fit.
        """
        refuse_unless_ready(self, shape)
        q, k, v = (tensor.transpose(1, 2) for tensor in (inputs.q, inputs.k, inputs.v))
        options = {name: getattr(inputs, name) for name in ("scale", "window", "softcap", "attn_mask")}
        attend = make_attention(q.shape[2], k.shape[2], device=q.device, causal=inputs.causal, **options)
        return lambda: attend(q, k, v).transpose(1, 2)


def make_attention(
    seq_q: int,
    seq_kv: int,
    *,
    device: "torch.device | str",
    causal: bool = False,
    window: int | None = None,
    scale: float,
    softcap: float | None = None,
    attn_mask: "torch.Tensor | None" = None,
) -> "Attend":
    """Return eager attention of these lengths, over any ``[B, H, S, D]`` of them; builds the mask, once.

    ``attn_mask`` broadcasts to ``[B, H, S_q, S_kv]``: a boolean one joins the mask, another is added to the scores.

    Example:
        >>> attend = make_attention(128, 128, device="cpu", causal=True, scale=0.125)
        >>> out = attend(q, k, v)
    """
    import torch

    from autotune.kernels.flash_attention.reference import visible_keys

    hidden = None
    if causal or window is not None:
        places: dict[str, Any] = {"causal": causal, "window": window, "device": device}
        hidden = ~visible_keys(0, seq_q, seq_q, seq_kv, **places)
    bias = None if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask
    if attn_mask is not None:
        unseen = attn_mask == -math.inf if bias is not None else ~attn_mask
        hidden = unseen if hidden is None else hidden | unseen
    blind = None if hidden is None or not bool(hidden.all(-1).any()) else hidden.all(-1)[..., None]

    def attend(q: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor") -> "torch.Tensor":
        group = q.shape[1] // k.shape[1]
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.matmul(q, k.transpose(2, 3))
        scores = scores * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if bias is not None:
            scores = scores + bias
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        out = torch.matmul(torch.softmax(scores, -1), v)
        return out if blind is None else out.masked_fill(blind, 0.0)

    return attend
