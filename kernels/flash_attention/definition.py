"""Dense attention on tensors: random inputs, outputs, and the reference that defines what is correct."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from autotune.kernels.flash_attention.checks import check_fit
from autotune.kernels.flash_attention.reference import attention_reference
from autotune.shape import AttentionShape

SOFTCAP: Final = 20.0  # a typical cap, for inputs of shapes that have one (Gemma-2 uses 50, Grok-1 30)
MetaTensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
CHECK_SEQ: Final = 512  # two tiles of the longest block
ODD_SEQ: Final = (333, 457)  # multiples of no block size


@dataclass(frozen=True, slots=True)
class Inputs:
    """Queries, keys and values ``[B, S, H, D]`` and what the call says about them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    causal: bool
    window: int | None
    softcap: float | None
    scale: float


class Attention:
    """Implements ``autotune.operation.Definition`` for ``AttentionShape``."""

    def make_inputs(self, shape: AttentionShape, *, seed: int, device: str, data: str = "normal") -> Inputs:
        """Draw random tensors.

        ``large``: scores far apart; ``tails``: the scores grow along the keys, so that the running maximum moves with
        every block and the last keys carry the weight.
        """
        generator = torch.Generator(device=device).manual_seed(seed)

        def draw(length: int, heads: int, width: int) -> torch.Tensor:
            return torch.randn(shape.batch, length, heads, width, generator=generator, device=device)

        q = draw(shape.seq_q, shape.heads, shape.head_dim)
        k = draw(shape.seq_kv, shape.kv_heads, shape.head_dim)
        v = draw(shape.seq_kv, shape.kv_heads, shape.head_dim_v)
        if data == "large":
            q, k = 6.0 * q, 2.0 * k
        elif data == "tails":
            ramp = torch.linspace(-2.0, 2.0, shape.seq_kv, device=device)[None, :, None, None]
            q, k = 0.5 * q + 1.0, 0.3 * k + ramp
        dtype = getattr(torch, shape.dtype)
        return Inputs(
            *(q.to(dtype), k.to(dtype), v.to(dtype)),
            causal=shape.causal,
            window=shape.window,
            softcap=SOFTCAP if shape.softcap else None,
            scale=shape.head_dim**-0.5,
        )

    def check_shapes(self, shape: AttentionShape) -> Sequence[AttentionShape]:
        """Return two small problems of the heads' layout that run the same binaries: no length is specialized.

        The second has odd lengths, in the shape's order: where queries outnumber keys, causal rows see no key.
        """
        kv_heads = min(shape.kv_heads, 2)
        small = replace(shape, batch=min(shape.batch, 2), heads=kv_heads * shape.group, kv_heads=kv_heads)
        seq_q, seq_kv = min(shape.seq_q, CHECK_SEQ), min(shape.seq_kv, CHECK_SEQ)
        most_q, most_kv = ODD_SEQ if shape.seq_q <= shape.seq_kv else ODD_SEQ[::-1]
        odd_q, odd_kv = max(1, min(shape.seq_q - 1, most_q)), max(1, min(shape.seq_kv - 1, most_kv))
        return (replace(small, seq_q=seq_q, seq_kv=seq_kv), replace(small, seq_q=odd_q, seq_kv=odd_kv))

    def empty_outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Allocate the output ``[B, S_q, H, D_v]`` and the fp32 log-sum-exp ``[B, H, S_q]``."""
        batch, seq_q, heads, _ = inputs.q.shape
        out = inputs.q.new_full((batch, seq_q, heads, inputs.v.shape[3]), float("nan"))
        return out, inputs.q.new_full((batch, heads, seq_q), float("nan"), dtype=torch.float32)

    def statistic_slack(self, inputs: Inputs) -> float:
        return 0.0

    def reference(self, inputs: Inputs, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        features = {name: getattr(inputs, name) for name in ("causal", "window", "softcap", "scale")}
        return attention_reference(inputs.q, inputs.k, inputs.v, **features, dtype=dtype)

    def bind_inputs(self, shape: AttentionShape, tensors: Sequence[torch.Tensor], options: dict[str, Any]) -> Inputs:
        q, k, v = tensors
        scale, softcap = options.get("scale"), options.get("softcap")
        check_fit(shape, q, k, v, scale=scale, softcap=softcap)
        scale = shape.head_dim**-0.5 if scale is None else scale
        return Inputs(q, k, v, causal=shape.causal, window=shape.window, softcap=softcap, scale=scale)


def meta_tensors(shape: AttentionShape) -> MetaTensors:
    """Return queries, keys, values, output and log-sum-exp of a shape on the meta device, to compile for."""

    def empty(length: int, heads: int, width: int) -> torch.Tensor:
        return torch.empty(shape.batch, length, heads, width, dtype=getattr(torch, shape.dtype), device="meta")

    return (
        empty(shape.seq_q, shape.heads, shape.head_dim),
        empty(shape.seq_kv, shape.kv_heads, shape.head_dim),
        empty(shape.seq_kv, shape.kv_heads, shape.head_dim_v),
        empty(shape.seq_q, shape.heads, shape.head_dim_v),
        torch.empty(shape.batch, shape.heads, shape.seq_q, device="meta"),
    )


DEFINITION: Final = Attention()
