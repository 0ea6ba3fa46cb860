"""Flash attention in Triton as the framework sees it: launch, compile-ahead and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.kernels.flash_attention.definition import SOFTCAP, Inputs
from autotune.kernels.flash_attention.triton.call import BoundAttention, launch_options
from autotune.kernels.flash_attention.triton.launch import launch
from autotune.shape import AttentionShape
from autotune.space import Config


class FlashAttention:
    """Implements ``autotune.implementation.Kernel`` for ``AttentionShape``."""

    def launch(self, config: Config, inputs: Inputs, outputs: tuple[torch.Tensor, ...]) -> None:
        launch(
            inputs.q,
            inputs.k,
            inputs.v,
            outputs[0],
            outputs[1] if len(outputs) > 1 else None,
            causal=inputs.causal,
            window=inputs.window,
            softcap=inputs.softcap,
            scale=inputs.scale,
            options=launch_options(config),
        )

    def warmup(self, config: Config, shape: AttentionShape, *, every_output: bool = False) -> Sequence[Any]:
        """Compile over tensors of the meta device; strides are those of contiguous tensors."""

        def empty(length: int, heads: int, width: int) -> torch.Tensor:
            return torch.empty(shape.batch, length, heads, width, dtype=getattr(torch, shape.dtype), device="meta")

        lse = torch.empty(shape.batch, shape.heads, shape.seq_q, device="meta") if every_output else None
        compiled = launch(
            empty(shape.seq_q, shape.heads, shape.head_dim),
            empty(shape.seq_kv, shape.kv_heads, shape.head_dim),
            empty(shape.seq_kv, shape.kv_heads, shape.head_dim_v),
            empty(shape.seq_q, shape.heads, shape.head_dim_v),
            lse,
            causal=shape.causal,
            window=shape.window,
            softcap=SOFTCAP if shape.softcap else None,
            scale=shape.head_dim**-0.5,
            options=launch_options(config),
            compile_only=True,
        )
        return (compiled,)

    def bind(self, config: Config, shape: AttentionShape) -> Callable[..., Any]:
        return BoundAttention(config, shape)


KERNEL: Final = FlashAttention()
