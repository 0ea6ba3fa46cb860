"""Attention over packed sequences on tensors: random inputs, outputs, and the reference that defines correct."""

from typing import Final

import torch

from autotune.kernels.flash_attention_varlen.inputs import Inputs, check_shapes, make_inputs
from autotune.kernels.flash_attention_varlen.reference import varlen_reference


class VarlenAttention:
    """Implements ``autotune.operation.Definition`` for ``VarlenShape``."""

    make_inputs = staticmethod(make_inputs)
    check_shapes = staticmethod(check_shapes)

    def empty_outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Allocate the output ``[T, H, D_v]`` and the fp32 log-sum-exp ``[T, H]``."""
        sizes = inputs.q.shape[:2]
        out = inputs.q.new_full((*sizes, inputs.v.shape[2]), float("nan"))
        return out, inputs.q.new_full(sizes, float("nan"), dtype=torch.float32)

    def statistic_slack(self, inputs: Inputs) -> float:
        return 0.0

    def reference(self, inputs: Inputs, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        return varlen_reference(*inputs.tensors, **inputs.features, dtype=dtype)


DEFINITION: Final = VarlenAttention()
