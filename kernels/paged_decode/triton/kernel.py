"""Paged decode in Triton as the framework sees it: launch, compile-ahead and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.kernels.paged_cache.pool import allocate_caches
from autotune.kernels.paged_decode.definition import features_of, tensors_of
from autotune.kernels.paged_decode.inputs import SOFTCAP, Inputs, empty_scales
from autotune.kernels.paged_decode.triton.call import BoundDecode
from autotune.kernels.paged_decode.triton.launch import launch, launch_options
from autotune.shape import PagedShape
from autotune.space import Config


class PagedDecode:
    """Implements ``autotune.implementation.Kernel`` for ``PagedShape``."""

    def launch(self, config: Config, inputs: Inputs, outputs: tuple[torch.Tensor, ...]) -> None:
        launch(
            *tensors_of(inputs),
            outputs[0],
            outputs[1] if len(outputs) > 1 else None,
            **features_of(inputs),
            options=launch_options(config),
            sm_count=inputs.sm_count,
        )

    def warmup(self, config: Config, shape: PagedShape, *, every_output: bool = False) -> Sequence[Any]:
        """Compile the kernel, and the one that combines, over tensors of the meta device.

        Strides of caches and scales are those of ``make_inputs``, which ``PagedKVCache`` has too, and part of the
        binary: caches that lie otherwise are compiled for anew, at their first launch.
        """

        def empty(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(sizes, dtype=dtype, device="meta")

        dtype = getattr(torch, shape.dtype)
        per_head = empty(shape.heads, dtype=torch.float32)
        caches = allocate_caches(shape, 2, "meta")
        k_scale, v_scale = empty_scales(shape, caches)
        lse = empty(shape.batch, shape.seq_q, shape.heads, dtype=torch.float32) if every_output else None
        return launch(
            empty(shape.batch, shape.seq_q, shape.heads, shape.head_dim, dtype=dtype),
            *caches,
            empty(shape.batch, -(-shape.max_context // shape.page_size), dtype=torch.int32),
            empty(shape.batch, dtype=torch.int32),
            empty(shape.batch, shape.seq_q, shape.heads, shape.head_dim_v, dtype=dtype),
            lse,
            layout=shape.layout,
            scale=shape.head_dim**-0.5,
            window=shape.window,
            softcap=SOFTCAP if shape.softcap else None,
            sinks=per_head if shape.sinks else None,
            alibi_slopes=per_head if shape.alibi else None,
            k_scale=k_scale,
            v_scale=v_scale,
            options=launch_options(config),
            compile_only=True,
        )

    def bind(self, config: Config, shape: PagedShape) -> Callable[..., Any]:
        return BoundDecode(config, shape)


KERNEL: Final = PagedDecode()
