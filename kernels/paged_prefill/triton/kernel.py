"""Paged prefill in Triton as the framework sees it: launch, compile-ahead and the callable that users get."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch

from autotune.errors import InvalidShapeError
from autotune.kernels.known_calls import Result
from autotune.kernels.paged_cache.call import check_pages
from autotune.kernels.paged_cache.paged_kernel import BoundPaged, PagedKernel
from autotune.kernels.paged_prefill.inputs import Inputs, empty_inputs
from autotune.kernels.paged_prefill.triton.forward import paged_prefill_forward
from autotune.kernels.paged_prefill.triton.launch import launch
from autotune.kernels.paged_prefill.triton.repeat import NAMES, repeat_of
from autotune.kernels.relaunch import observe
from autotune.kernels.tensors import check_offsets, refuse_options
from autotune.search_spaces.paged_prefill.operation import unsupported
from autotune.shape import PagedShape
from autotune.space import Config

observe(paged_prefill_forward)


class BoundPrefill(BoundPaged):
    """Attention of packed queries for one shape with one config: what ``get_kernel`` hands out.

    ``shape.seq_q`` is a hint: a call may have any number of queries, and each sequence its own.

    Example (on a GPU):
        >>> shape = PagedShape(batch=4, seq_q=512, heads=32, kv_heads=8, max_context=8192, head_dim=128, page_size=16)
        >>> kernel = autotune.get_kernel(shape)
        >>> out = kernel(q, k_cache, v_cache, page_table, seq_lens, cu_seqlens_q)  # q [tokens, 32, 128]
    """

    _launch_prefill: Callable[..., Any] = staticmethod(launch)
    _repeat_of: Callable[..., Any] = staticmethod(repeat_of)

    def __init__(self, config: Config, shape: PagedShape) -> None:
        sizes, launch_prefill = (None, shape.heads, shape.head_dim), partial(self._launch_prefill, causal=shape.causal)
        super().__init__(config, shape, launch_prefill, sizes, NAMES, self._repeat_of)

    def __call__(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        page_table: torch.Tensor,
        seq_lens: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
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
        """Compute the output ``[T, H, D_v]`` in the dtype of ``q [T, H, D]``, or fill ``out``.

        With ``return_lse`` also return the natural logarithm of the softmax's denominator, fp32 ``[T, H]``. ``check``
        also reads lengths, pages and ``cu_seqlens_q``, which waits for the GPU. See ``autotune.paged_prefill`` for the
        rest. A call whose signature is known is not checked again.

        Raises:
            InputMismatchError: a tensor or an option does not fit the shape.
            NotDifferentiableError: gradients are required.
        """
        if unknown:
            refuse_options(self.__call__, self._shape, unknown)
        inputs = (q, k_cache, v_cache, page_table, seq_lens, cu_seqlens_q, sinks, alibi_slopes, k_scale, v_scale)
        if check:
            return self._compute(*inputs, scale, softcap, return_lse, out, check=True)
        return self._calls.call(inputs, (scale, softcap, return_lse), out)

    def _compute(self, *arguments: Any, check: bool = False) -> Result:
        q, k_cache, v_cache, page_table, seq_lens, cu_seqlens_q, *others = arguments
        sinks, alibi_slopes, k_scale, v_scale, scale, softcap, return_lse, out = others
        shape = self._shape
        paging = {"k_cache": k_cache, "v_cache": v_cache, "page_table": page_table}
        tensors = {"q": q, **paging, "seq_lens": seq_lens, "cu_seqlens_q": cu_seqlens_q}
        features = {"sinks": sinks, "alibi_slopes": alibi_slopes, "k_scale": k_scale, "v_scale": v_scale}
        self._check(tensors, features, scale, softcap)
        if check:
            check_offsets("cu_seqlens_q", cu_seqlens_q, q.shape[0], "queries")
            check_pages(shape, page_table, seq_lens, pages=k_cache.shape[0], queries=cu_seqlens_q.diff())
        self._check_out(out, tensors, features)
        out, lse = self._attend(tensors, features, scale, softcap, return_lse, out)
        return out if lse is None else (out, lse)


class PagedPrefillKernel(PagedKernel):
    """Implements ``autotune.implementation.Kernel`` for ``PagedShape``."""

    def _empty_inputs(self, shape: PagedShape) -> Inputs:
        return empty_inputs(shape, device="meta")

    def _launch(self, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor | None, **settings: Any) -> Sequence[Any]:
        return (launch(*(*inputs.tensors, out, lse), **(inputs.features | settings)),)

    def bind(self, config: Config, shape: PagedShape) -> Callable[..., Any]:
        if (problem := unsupported(shape)) is not None:
            raise InvalidShapeError(problem)
        return BoundPrefill(config, shape)


KERNEL: Final = PagedPrefillKernel()
