"""Calls of users: check that tensors fit, allocate the output, launch."""

from itertools import pairwise

import torch

from autotune.errors import InputMismatchError
from autotune.kernels.paged_decode.triton.call import BoundDecode, check_pages
from autotune.kernels.paged_prefill.triton.launch import launch
from autotune.kernels.tensors import check_device, check_together, on_device_of, refuse_options
from autotune.shape import PagedShape
from autotune.space import Config


class BoundPrefill(BoundDecode):
    """Attention of packed queries for one shape with one config: what ``get_kernel`` hands out.

    ``shape.seq_q`` is a hint: a call may have any number of queries, and each sequence its own.

    Example (on a GPU):
        >>> shape = PagedShape(batch=4, seq_q=512, heads=32, kv_heads=8, max_context=8192, head_dim=128, page_size=16)
        >>> kernel = autotune.get_kernel(shape)
        >>> out = kernel(q, k_cache, v_cache, page_table, seq_lens, cu_seqlens_q)  # q [tokens, 32, 128]
    """

    def __init__(self, config: Config, shape: PagedShape) -> None:
        super().__init__(config, shape)  # of its checks all but two are the same
        self._expected["q"] = ((None, shape.heads, shape.head_dim), getattr(torch, shape.dtype))
        self._expected["cu_seqlens_q"] = ((shape.batch + 1,), torch.int32)

    def __call__(  # type: ignore[override] # one more tensor
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
        return_lse: bool = False,
        check: bool = False,
        **unknown: object,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """The output ``[T, H, D_v]`` in the dtype of ``q [T, H, D]``; with ``return_lse`` also the natural logarithm of
        the softmax's denominator, fp32 ``[T, H]``.

        ``check`` also reads lengths, pages and ``cu_seqlens_q``, which waits for the GPU. See
        ``autotune.paged_prefill`` for the rest.

        Raises:
            InputMismatchError: a tensor or an option does not fit the shape.
            NotDifferentiableError: gradients are required.
        """
        shape = self._shape
        if unknown:
            refuse_options(self.__call__, shape, unknown)
        tensors = {
            "q": q,
            "k_cache": k_cache,
            "v_cache": v_cache,
            "page_table": page_table,
            "seq_lens": seq_lens,
            "cu_seqlens_q": cu_seqlens_q,
        }
        self._check_tensors(tensors, self._expected)
        self._check_features(scale, softcap, sinks, alibi_slopes)
        features = {"sinks": sinks, "alibi_slopes": alibi_slopes}
        check_together(tensors | {name: values for name, values in features.items() if values is not None})
        check_device(q.device, q.dtype)
        if check:
            check_offsets(cu_seqlens_q, tokens=q.shape[0])
            check_pages(shape, page_table, seq_lens, pages=k_cache.shape[0], queries=cu_seqlens_q.diff())
        out = torch.empty((*q.shape[:2], shape.head_dim_v), dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if return_lse else None
        with on_device_of(q):
            launch(
                *(q, k_cache, v_cache, page_table, seq_lens, cu_seqlens_q, out, lse),
                layout=shape.layout,
                scale=shape.head_dim**-0.5 if scale is None else scale,
                window=shape.window,
                softcap=softcap,
                sinks=sinks,
                alibi_slopes=alibi_slopes,
                options=self._options,
            )
        return out if lse is None else (out, lse)


def check_offsets(cu_seqlens_q: torch.Tensor, *, tokens: int) -> None:
    """Read the offsets of the packed queries, and refuse those that are none; waits for the GPU.

    Raises:
        InputMismatchError: they do not start with 0, fall, or do not end with ``tokens``.
    """
    offsets = cu_seqlens_q.tolist()
    if offsets[0] != 0 or offsets[-1] != tokens:
        raise InputMismatchError(
            f"cu_seqlens_q begins with {offsets[0]} and ends with {offsets[-1]}; expected 0 and the {tokens} queries"
        )
    for sequence, (begin, end) in enumerate(pairwise(offsets)):
        if end < begin:
            raise InputMismatchError(
                f"cu_seqlens_q[{sequence + 1}]={end} is less than {begin} before it; expected offsets that never fall"
            )
