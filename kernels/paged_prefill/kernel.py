"""Paged prefill as the framework sees it: inputs, launch, reference, compile-ahead and the callable a user gets."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.errors import InvalidShapeError
from autotune.kernels.paged_cache.pool import allocate_caches
from autotune.kernels.paged_decode.inputs import SOFTCAP
from autotune.kernels.paged_decode.launch import launch_options
from autotune.kernels.paged_prefill.call import BoundPrefill
from autotune.kernels.paged_prefill.inputs import Inputs, check_shapes, make_inputs
from autotune.kernels.paged_prefill.launch import launch
from autotune.kernels.paged_prefill.reference import paged_prefill_reference
from autotune.operation import Baseline
from autotune.search_spaces.paged_prefill import unsupported
from autotune.shape import PagedShape
from autotune.space import Config


class PagedPrefill:
    """Implements ``autotune.operation.Kernel`` for ``PagedShape``."""

    def make_inputs(self, shape: PagedShape, *, seed: int, device: str, data: str = "normal") -> Inputs:
        return make_inputs(shape, seed=seed, device=device, data=data)

    def check_shapes(self, shape: PagedShape) -> Sequence[PagedShape]:
        return check_shapes(shape)

    def empty_output(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        q = inputs.q
        return (q.new_full((*q.shape[:2], inputs.v_cache.shape[3]), float("nan")),)

    def launch(self, config: Config, inputs: Inputs, out: tuple[torch.Tensor, ...]) -> None:
        launch(
            *_tensors(inputs),
            out[0],
            out[1] if len(out) > 1 else None,
            **_features(inputs),
            options=launch_options(config),
        )

    def reference(self, inputs: Inputs, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        return paged_prefill_reference(*_tensors(inputs), **_features(inputs), dtype=dtype)[:1]

    def warmup(self, config: Config, shape: PagedShape) -> Any:
        """Compile over tensors of the meta device; strides are those that ``make_inputs`` gives."""

        def empty(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(sizes, dtype=dtype, device="meta")

        tokens, dtype = shape.batch * shape.seq_q, getattr(torch, shape.dtype)
        per_head = empty(shape.heads, dtype=torch.float32)
        return launch(
            empty(tokens, shape.heads, shape.head_dim, dtype=dtype),
            *allocate_caches(shape, 2, "meta"),
            empty(shape.batch, -(-shape.max_context // shape.page_size), dtype=torch.int32),
            empty(shape.batch, dtype=torch.int32),
            empty(shape.batch + 1, dtype=torch.int32),
            empty(tokens, shape.heads, shape.head_dim_v, dtype=dtype),
            None,
            layout=shape.layout,
            scale=shape.head_dim**-0.5,
            window=shape.window,
            softcap=SOFTCAP if shape.softcap else None,
            sinks=per_head if shape.sinks else None,
            alibi_slopes=per_head if shape.alibi else None,
            options=launch_options(config),
            compile_only=True,
        )

    def bind(self, config: Config, shape: PagedShape) -> Callable[..., Any]:
        if (problem := unsupported(shape)) is not None:
            raise InvalidShapeError(problem)
        return BoundPrefill(config, shape)

    def baselines(self) -> Sequence[Baseline]:
        from autotune.kernels.baselines.lists import OF_PAGED_PREFILL  # a serving process needs none

        return OF_PAGED_PREFILL


Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _tensors(inputs: Inputs) -> Tensors:
    """What launch and reference take by position."""
    caches = inputs.k_cache, inputs.v_cache
    return (inputs.q, *caches, inputs.page_table, inputs.seq_lens, inputs.cu_seqlens_q)


def _features(inputs: Inputs) -> dict[str, Any]:
    """What they take by name."""
    names = ("layout", "scale", "window", "softcap", "sinks", "alibi_slopes")
    return {name: getattr(inputs, name) for name in names}


KERNEL: Final = PagedPrefill()
