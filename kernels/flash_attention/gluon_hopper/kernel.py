"""Flash attention in Gluon as the framework sees it: launch, compile-ahead and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.kernels.flash_attention.checks import BoundDense
from autotune.kernels.flash_attention.definition import SOFTCAP, Inputs, meta_tensors
from autotune.kernels.flash_attention.gluon_hopper.launch import launch
from autotune.kernels.tensors import on_device_of, require_context
from autotune.shape import AttentionShape
from autotune.space import Config


class BoundGluonAttention(BoundDense):
    """Attention over one shape with one config, as ``BoundDense`` says."""

    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        softcap: float | None,
        return_lse: bool,
        out: torch.Tensor | None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        shape = self._shape
        if out is None:
            out = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
        else:
            torch.autograd.graph.increment_version(out)  # written behind torch's back
        sizes = (shape.batch, shape.heads, shape.seq_q)
        lse = torch.empty(sizes, dtype=torch.float32, device=q.device) if return_lse else None
        features: dict[str, Any] = {"causal": shape.causal, "window": shape.window, "softcap": softcap, "scale": scale}
        with on_device_of(q):
            require_context(q.device)
            launch(q, k, v, out, lse, **features, options=self._options)
        return out if lse is None else (out, lse)


class GluonAttention:
    """Implements ``autotune.implementation.Kernel`` for ``AttentionShape``."""

    def launch(self, config: Config, inputs: Inputs, outputs: tuple[torch.Tensor, ...]) -> None:
        lse = outputs[1] if len(outputs) > 1 else None
        features = {name: getattr(inputs, name) for name in ("causal", "window", "softcap", "scale")}
        launch(inputs.q, inputs.k, inputs.v, outputs[0], lse, **features, options=config)

    def warmup(self, config: Config, shape: AttentionShape, *, every_output: bool = False) -> Sequence[Any]:
        """Compile over tensors of the meta device; strides are those of contiguous tensors."""
        q, k, v, out, lse = meta_tensors(shape)
        compiled = launch(
            q,
            k,
            v,
            out,
            lse if every_output else None,
            causal=shape.causal,
            window=shape.window,
            softcap=SOFTCAP if shape.softcap else None,
            scale=shape.head_dim**-0.5,
            options=config,
            compile_only=True,
        )
        return (compiled,)

    def bind(self, config: Config, shape: AttentionShape) -> Callable[..., Any]:
        return BoundGluonAttention(shape, dict(config))


KERNEL: Final = GluonAttention()
