"""Paged decode as the framework sees it: inputs, launch, reference, compile-ahead and the callable a user gets."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.kernels.paged_cache.pool import allocate_caches
from autotune.kernels.paged_decode.call import BoundDecode
from autotune.kernels.paged_decode.inputs import SOFTCAP, Inputs, check_shapes, empty_scales, make_inputs
from autotune.kernels.paged_decode.launch import launch, launch_options
from autotune.kernels.paged_decode.reference import paged_decode_reference
from autotune.operation import Baseline
from autotune.shape import PagedShape
from autotune.space import Config


class PagedDecode:
    """Implements ``autotune.operation.Kernel`` for ``PagedShape``."""

    def make_inputs(self, shape: PagedShape, *, seed: int, device: str, data: str = "normal") -> Inputs:
        return make_inputs(shape, seed=seed, device=device, data=data)

    def check_shapes(self, shape: PagedShape) -> Sequence[PagedShape]:
        return check_shapes(shape)

    def empty_output(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        q = inputs.q
        return (q.new_full((*q.shape[:3], inputs.v_cache.shape[3]), float("nan")),)

    def launch(self, config: Config, inputs: Inputs, out: tuple[torch.Tensor, ...]) -> None:
        launch(
            *_tensors(inputs),
            out[0],
            out[1] if len(out) > 1 else None,
            **_features(inputs),
            options=launch_options(config),
            sm_count=inputs.sm_count,
        )

    def reference(self, inputs: Inputs, *, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
        return paged_decode_reference(*_tensors(inputs), **_features(inputs), dtype=dtype)[:1]

    def warmup(self, config: Config, shape: PagedShape) -> Any:
        """Compile the kernel, and the one that combines, over tensors of the meta device; returns the first.

        Strides of caches and scales are those of ``make_inputs``, which ``PagedKVCache`` has too, and part of the
        binary: caches that lie otherwise are compiled for anew, at their first launch.
        """

        def empty(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(sizes, dtype=dtype, device="meta")

        dtype = getattr(torch, shape.dtype)
        per_head = empty(shape.heads, dtype=torch.float32)
        caches = allocate_caches(shape, 2, "meta")
        k_scale, v_scale = empty_scales(shape, caches)
        return launch(
            empty(shape.batch, shape.seq_q, shape.heads, shape.head_dim, dtype=dtype),
            *caches,
            empty(shape.batch, -(-shape.max_context // shape.page_size), dtype=torch.int32),
            empty(shape.batch, dtype=torch.int32),
            empty(shape.batch, shape.seq_q, shape.heads, shape.head_dim_v, dtype=dtype),
            None,
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

    def baselines(self) -> Sequence[Baseline]:
        from autotune.kernels.baselines.lists import OF_PAGED_DECODE  # a serving process needs none

        return OF_PAGED_DECODE


def _tensors(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """What launch and reference take by position."""
    return inputs.q, inputs.k_cache, inputs.v_cache, inputs.page_table, inputs.seq_lens


def _features(inputs: Inputs) -> dict[str, Any]:
    """What they take by name."""
    names = ("layout", "scale", "window", "softcap", "sinks", "alibi_slopes", "k_scale", "v_scale")
    return {name: getattr(inputs, name) for name in names}


KERNEL: Final = PagedDecode()
