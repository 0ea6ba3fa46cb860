"""Paged decode on tensors: random inputs, outputs, and the reference that defines what is correct."""

from collections.abc import Sequence
from typing import Any, Final

import torch

from autotune.kernels.paged_decode.inputs import Inputs, check_shapes, make_inputs
from autotune.kernels.paged_decode.reference import paged_decode_reference
from autotune.shape import PagedShape

QUERY_STEPS: Final = 127 * 256 + 127  # of two int8 parts, up to the largest element of a query


class PagedDecode:
    """Implements ``autotune.operation.Definition`` for ``PagedShape``."""

    def make_inputs(self, shape: PagedShape, *, seed: int, device: str, data: str = "normal") -> Inputs:
        return make_inputs(shape, seed=seed, device=device, data=data)

    def check_shapes(self, shape: PagedShape) -> Sequence[PagedShape]:
        return check_shapes(shape)

    def empty_outputs(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        """Allocate the output ``[B, S_q, H, D_v]`` and the fp32 log-sum-exp ``[B, S_q, H]``."""
        q = inputs.q
        out = q.new_full((*q.shape[:3], inputs.v_cache.shape[3]), float("nan"))
        return out, q.new_full(q.shape[:3], float("nan"), dtype=torch.float32)

    def statistic_slack(self, inputs: Inputs) -> float:
        """Bound the error of the log-sum-exp by that of one score: half a step an element of a query, over int8 keys.

        docs/paged-attention.md documents that precision; a log-sum-exp moves by at most what its scores do.
        """
        if inputs.k_scale is None or inputs.k_cache.dtype is not torch.int8:
            return 0.0
        half_step = inputs.q.double().abs().max() / (2 * QUERY_STEPS)
        keys = inputs.k_cache.double().abs().sum(-1) * inputs.k_scale.double().nan_to_num().abs()
        return float(half_step * keys.max() * inputs.scale)

    def reference(self, inputs: Inputs, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        return paged_decode_reference(*tensors_of(inputs), **features_of(inputs), dtype=dtype)


def tensors_of(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the tensors that launch and reference take by position."""
    return inputs.q, inputs.k_cache, inputs.v_cache, inputs.page_table, inputs.seq_lens


def features_of(inputs: Inputs) -> dict[str, Any]:
    """Return the options that they take by name."""
    names = ("layout", "scale", "window", "softcap", "sinks", "alibi_slopes", "k_scale", "v_scale")
    return {name: getattr(inputs, name) for name in names}


DEFINITION: Final = PagedDecode()
