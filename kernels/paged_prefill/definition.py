"""Paged prefill on tensors: random inputs, outputs, and the reference that defines what is correct."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from autotune.kernels.paged_prefill.inputs import Inputs, check_shapes, make_inputs
from autotune.kernels.paged_prefill.reference import paged_prefill_reference
from autotune.shape import PagedShape

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


class PagedPrefill:
    """Implements ``autotune.operation.Definition`` for ``PagedShape``."""

    def make_inputs(self, shape: PagedShape, *, seed: int, device: str, data: str = "normal") -> Inputs:
        return make_inputs(shape, seed=seed, device=device, data=data)

    def check_shapes(self, shape: PagedShape) -> Sequence[PagedShape]:
        return check_shapes(shape)

    def empty_outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Allocate the output ``[T, H, D_v]`` and the fp32 log-sum-exp ``[T, H]``."""
        q = inputs.q
        out = q.new_full((*q.shape[:2], inputs.v_cache.shape[3]), float("nan"))
        return out, q.new_full(q.shape[:2], float("nan"), dtype=torch.float32)

    def statistic_slack(self, inputs: Inputs) -> float:
        return 0.0

    def reference(self, inputs: Inputs, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        return paged_prefill_reference(*tensors_of(inputs), **features_of(inputs), dtype=dtype)


def tensors_of(inputs: Inputs) -> Tensors:
    """Return the tensors that launch and reference take by position."""
    caches = inputs.k_cache, inputs.v_cache
    return (inputs.q, *caches, inputs.page_table, inputs.seq_lens, inputs.cu_seqlens_q)


def features_of(inputs: Inputs) -> dict[str, Any]:
    """Return the options that they take by name."""
    names = ("layout", "scale", "window", "softcap", "sinks", "alibi_slopes")
    return {name: getattr(inputs, name) for name in names}


DEFINITION: Final = PagedPrefill()
