"""Paged decode in Triton as the framework sees it: launch, compile-ahead and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.kernels.known_calls import Result
from autotune.kernels.paged_cache.call import check_pages
from autotune.kernels.paged_cache.paged_kernel import BoundPaged, PagedKernel
from autotune.kernels.paged_decode.inputs import Inputs, empty_inputs
from autotune.kernels.paged_decode.triton.combine import combine_partials
from autotune.kernels.paged_decode.triton.forward import paged_decode_flat, paged_decode_split
from autotune.kernels.paged_decode.triton.launch import launch
from autotune.kernels.paged_decode.triton.repeat import NAMES, repeat_of
from autotune.kernels.relaunch import observe
from autotune.kernels.tensors import refuse_options
from autotune.shape import PagedShape
from autotune.space import Config

for _function in (paged_decode_split, paged_decode_flat, combine_partials):
    observe(_function)


class BoundDecode(BoundPaged):
    """Decode attention for one shape with one config: what ``get_kernel`` hands out.

    Example (on a GPU):
        >>> shape = PagedShape(batch=64, heads=32, kv_heads=8, max_context=8192, head_dim=128, page_size=16)
        >>> kernel = autotune.get_kernel(shape)
        >>> out = kernel(q, k_cache, v_cache, page_table, seq_lens)  # q [64, 32, 128] or [64, 1, 32, 128]
    """

    def __init__(self, config: Config, shape: PagedShape, launch: Callable[..., Any] = launch) -> None:
        sizes = (shape.batch, shape.seq_q, shape.heads, shape.head_dim)
        super().__init__(config, shape, launch, sizes, NAMES, repeat_of)
        short = ((shape.batch, shape.heads, shape.head_dim), getattr(torch, shape.dtype))
        self._expected_short = self._expected | {"q": short}

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        page_table: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        alibi_slopes: torch.Tensor | None = None,
        k_scale: torch.Tensor | None = None,
        v_scale: torch.Tensor | None = None,
        return_lse: bool = False,
        out: torch.Tensor | None = None,
        check: bool = False,
        **unknown: object,
    ) -> Result:
        """Compute the output ``[B, H, D_v]`` or ``[B, S_q, H, D_v]``, as ``q`` is, in its dtype, or fill ``out``.

        With ``return_lse`` also return the natural logarithm of the softmax's denominator, fp32, of the output's shape
        without the last axis. ``check`` also reads lengths and pages, which waits for the GPU. See
        ``autotune.paged_decode`` for the rest. A call whose signature is known is not checked again.

        Raises:
            InputMismatchError: a tensor or an option does not fit the shape.
            NotDifferentiableError: gradients are required.
        """
        if unknown:
            refuse_options(self.__call__, self._shape, unknown)
        inputs = (q, k_cache, v_cache, page_table, seq_lens, sinks, alibi_slopes, k_scale, v_scale)
        if check:
            return self._compute(*inputs, scale, softcap, return_lse, out, check=True)
        return self._calls.call(inputs, (scale, softcap, return_lse), out)

    def _compute(self, *arguments: Any, check: bool = False) -> Result:
        q, k_cache, v_cache, page_table, seq_lens, sinks, alibi_slopes, k_scale, v_scale, *options = arguments
        scale, softcap, return_lse, out = options
        shape = self._shape
        tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "page_table": page_table, "seq_lens": seq_lens}
        has_no_axis = shape.seq_q == 1 and getattr(q, "ndim", 0) == 3  # of queries
        features = {"sinks": sinks, "alibi_slopes": alibi_slopes, "k_scale": k_scale, "v_scale": v_scale}
        self._check(tensors, features, scale, softcap, self._expected_short if has_no_axis else None)
        if check:
            check_pages(shape, page_table, seq_lens, pages=k_cache.shape[0], queries=shape.seq_q)
        self._check_out(out, tensors, features)
        buffer = out
        if has_no_axis:
            tensors["q"] = q[:, None]
            buffer = None if out is None else out[:, None]
        found, lse = self._attend(tensors, features, scale, softcap, return_lse, buffer)
        if has_no_axis:
            found, lse = found[:, 0], None if lse is None else lse[:, 0]
        found = found if out is None else out
        return found if lse is None else (found, lse)


class PagedDecodeKernel(PagedKernel):
    """Implements ``autotune.implementation.Kernel`` for ``PagedShape``."""

    def _empty_inputs(self, shape: PagedShape) -> Inputs:
        return empty_inputs(shape, pages=2, device="meta")

    def _launch(self, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor | None, **settings: Any) -> Sequence[Any]:
        features: dict[str, Any] = {**inputs.features, "sm_count": inputs.sm_count, **settings}
        return launch(*(*inputs.tensors, out, lse), **features)

    def bind(self, config: Config, shape: PagedShape) -> Callable[..., Any]:
        return BoundDecode(config, shape)


KERNEL: Final = PagedDecodeKernel()
