"""Paged decode on tensors: random inputs, outputs, and the reference that defines what is correct."""

from collections.abc import Callable
from typing import ClassVar, Final

import torch

from autotune.kernels.paged_decode.inputs import Inputs, check_shapes, make_inputs
from autotune.kernels.paged_decode.reference import paged_decode_reference
from autotune.kernels.product_precision import truncation_error

QUERY_STEPS: Final = 127 * 256 + 127  # of two int8 parts, up to the largest element of a query


class PagedDecode:
    """Implements ``autotune.operation.Definition`` for ``PagedShape``."""

    make_inputs = staticmethod(make_inputs)
    check_shapes = staticmethod(check_shapes)
    _attend: ClassVar[Callable[..., tuple[torch.Tensor, torch.Tensor]]] = staticmethod(paged_decode_reference)

    def empty_outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Allocate the output ``[B, S_q, H, D_v]`` and the fp32 log-sum-exp ``[B, S_q, H]``."""
        q, sizes = inputs.q, inputs.q.shape[:-1]
        out = q.new_full((*sizes, inputs.v_cache.shape[3]), float("nan"))
        return out, q.new_full(sizes, float("nan"), dtype=torch.float32)

    def statistic_slack(self, inputs: Inputs) -> float:
        """Bound the error of the log-sum-exp by that of one score: half a step an element of a query, over int8 keys.

        docs/paged-attention.md documents that precision; a log-sum-exp moves by at most what its scores do. Over keys
        of 16 bits, as over latents, it is what a wide product loses.
        """
        if inputs.k_cache.dtype == inputs.q.dtype:
            return truncation_error(inputs.q, inputs.k_cache, inputs.scale)
        if inputs.k_scale is None or inputs.k_cache.dtype is not torch.int8:
            return 0.0
        half_step = inputs.q.double().abs().max() / (2 * QUERY_STEPS)
        keys = inputs.k_cache.double().abs().sum(-1) * inputs.k_scale.double().nan_to_num().abs()
        return float(half_step * keys.max() * inputs.scale)

    def reference(self, inputs: Inputs, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        return self._attend(*inputs.tensors, **inputs.features, dtype=dtype)


DEFINITION: Final = PagedDecode()
