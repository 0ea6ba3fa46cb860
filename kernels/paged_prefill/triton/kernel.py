"""Paged prefill in Triton as the framework sees it: launch, compile-ahead and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.errors import InvalidShapeError
from autotune.kernels.paged_cache.pool import allocate_caches
from autotune.kernels.paged_decode.inputs import SOFTCAP
from autotune.kernels.paged_decode.triton.launch import launch_options
from autotune.kernels.paged_prefill.definition import features_of, tensors_of
from autotune.kernels.paged_prefill.inputs import Inputs
from autotune.kernels.paged_prefill.triton.call import BoundPrefill
from autotune.kernels.paged_prefill.triton.launch import launch
from autotune.search_spaces.paged_prefill.operation import unsupported
from autotune.shape import PagedShape
from autotune.space import Config


class PagedPrefill:
    """Implements ``autotune.implementation.Kernel`` for ``PagedShape``."""

    def launch(self, config: Config, inputs: Inputs, outputs: tuple[torch.Tensor, ...]) -> None:
        launch(
            *tensors_of(inputs),
            outputs[0],
            outputs[1] if len(outputs) > 1 else None,
            **features_of(inputs),
            options=launch_options(config),
        )

    def warmup(self, config: Config, shape: PagedShape, *, every_output: bool = False) -> Sequence[Any]:
        """Compile over tensors of the meta device; strides are those that ``make_inputs`` gives."""

        def empty(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(sizes, dtype=dtype, device="meta")

        tokens, dtype = shape.batch * shape.seq_q, getattr(torch, shape.dtype)
        per_head = empty(shape.heads, dtype=torch.float32)
        lse = empty(tokens, shape.heads, dtype=torch.float32) if every_output else None
        compiled = launch(
            empty(tokens, shape.heads, shape.head_dim, dtype=dtype),
            *allocate_caches(shape, 2, "meta"),
            empty(shape.batch, -(-shape.max_context // shape.page_size), dtype=torch.int32),
            empty(shape.batch, dtype=torch.int32),
            empty(shape.batch + 1, dtype=torch.int32),
            empty(tokens, shape.heads, shape.head_dim_v, dtype=dtype),
            lse,
            layout=shape.layout,
            scale=shape.head_dim**-0.5,
            window=shape.window,
            softcap=SOFTCAP if shape.softcap else None,
            sinks=per_head if shape.sinks else None,
            alibi_slopes=per_head if shape.alibi else None,
            options=launch_options(config),
            compile_only=True,
        )
        return (compiled,)

    def bind(self, config: Config, shape: PagedShape) -> Callable[..., Any]:
        if (problem := unsupported(shape)) is not None:
            raise InvalidShapeError(problem)
        return BoundPrefill(config, shape)


KERNEL: Final = PagedPrefill()
