"""Attention in plain torch, so many queries at once: a kernel that is none of ours."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.kernels.flash_attention.definition import Inputs
from autotune.shape import AttentionShape
from autotune.space import Config


class NaiveAttention:
    """Implements ``autotune.implementation.Kernel`` for ``AttentionShape``."""

    def launch(self, config: Config, inputs: Inputs, outputs: tuple[torch.Tensor, ...]) -> None:
        out, *lse = outputs
        q, k, v = (tensor.transpose(1, 2).float() for tensor in (inputs.q, inputs.k, inputs.v))
        k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for tensor in (k, v))
        ahead = torch.arange(k.shape[2], device=q.device) - (k.shape[2] - q.shape[2])
        for start in range(0, q.shape[2], config.integer("CHUNK")):
            rows = slice(start, start + config.integer("CHUNK"))
            scores = q[:, :, rows] @ k.transpose(2, 3) * inputs.scale
            if inputs.causal:
                queries = torch.arange(q.shape[2], device=q.device)[rows, None]
                scores = scores.masked_fill(ahead[None, :] > queries, -math.inf)
            sums = scores.logsumexp(dim=-1)
            weights = (scores - sums.nan_to_num(neginf=0.0)[..., None]).exp()
            out[:, rows] = (weights @ v).transpose(1, 2).to(out.dtype)
            for each in lse:
                each[:, :, rows] = sums

    def warmup(self, config: Config, shape: AttentionShape, *, every_output: bool = False) -> Sequence[Any]:
        return ()

    def bind(self, config: Config, shape: AttentionShape) -> Callable[..., Any]:
        def attend(
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            *,
            scale: float | None = None,
            softcap: None = None,  # shapes with one are refused
            return_lse: bool = False,
        ) -> Any:
            out = q.new_empty((*q.shape[:3], v.shape[3]))
            lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
            scale = shape.head_dim**-0.5 if scale is None else scale
            outputs = (out, lse) if return_lse else (out,)
            self.launch(config, Inputs(q, k, v, shape.causal, None, softcap, scale), outputs)
            return outputs if return_lse else out

        return attend


KERNEL: Final = NaiveAttention()
