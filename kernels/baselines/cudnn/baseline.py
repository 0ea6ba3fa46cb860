"""cuDNN's attention as the baselines that a search and the bench compare with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from autotune.errors import BaselineUnavailableError
from autotune.kernels.baselines.baseline import OverCopies, refuse_unless_ready
from autotune.kernels.baselines.cudnn.calls import BEST, FIRST, dense, find_missing, paged
from autotune.kernels.baselines.cudnn.problem import Problem, unsupported
from autotune.shape import AttentionShape, PagedShape


@dataclass(frozen=True, slots=True)
class Cudnn:
    """cuDNN over ``AttentionShape`` and ``PagedShape``: the plan that its heuristics propose first, or its fastest.

    Example (on an NVIDIA GPU):
        >>> inputs = KERNEL.make_inputs(shape, seed=0, device="cuda")  # of paged decode
        >>> out = Cudnn("cudnn").prepare(shape, inputs)()
    """

    name: str
    is_usual: bool = True
    verified_on_hardware: bool = True

    def available(self) -> str | None:
        return find_missing()

    def unsupported(self, shape: Any) -> str | None:
        if isinstance(shape, AttentionShape):
            return unsupported(_dense(shape))
        if isinstance(shape, PagedShape):
            return unsupported(_paged(shape))
        return f"{type(shape).__name__}: {self.name} computes an AttentionShape or a PagedShape"

    def prepare(self, shape: Any, inputs: Any) -> Callable[[], torch.Tensor]:
        """Return a call that returns the same tensor each time; plans are built and, for the fastest, timed here.

        Raises:
            MissingDependencyError: ``available`` says why.
            BaselineUnavailableError: ``unsupported`` says why, or cuDNN refuses the problem on this GPU.
        """
        refuse_unless_ready(self, shape)
        features = {"scale": inputs.scale, "window": inputs.window, "softcap": inputs.softcap}
        copies: tuple[torch.Tensor, ...] = ()
        if isinstance(shape, AttentionShape):
            calls = dense(inputs.q, inputs.k, inputs.v, causal=inputs.causal, **features)
        else:
            offsets = getattr(inputs, "cu_seqlens_q", None)
            copies = (_without_nan(inputs.k_cache), _without_nan(inputs.v_cache))
            calls = paged(
                inputs.q,
                *copies,
                inputs.page_table,
                inputs.seq_lens,
                layout=inputs.layout,
                sinks=inputs.sinks,
                alibi_slopes=inputs.alibi_slopes,
                cu_seqlens_q=offsets,
                max_seqlen_q=None if offsets is None else int(offsets.diff().max()),
                **features,
            )
        call = calls[self.name]
        call()
        return OverCopies(call, copies)

    def serve(self, shape: Any, inputs: Any) -> torch.Tensor:
        """Compute dense attention, ``[B, S_q, H, D_v]``; a paged cache would have to be copied without its NaN.

        Raises:
            BaselineUnavailableError: the shape is paged, or cuDNN refuses these tensors.
        """
        if not isinstance(shape, AttentionShape):
            raise BaselineUnavailableError(f"{self.name} serves no paged cache: slots without a token may hold NaN")
        features = {"scale": inputs.scale, "window": inputs.window, "softcap": inputs.softcap}
        return dense(inputs.q, inputs.k, inputs.v, causal=inputs.causal, **features)[self.name]()


CUDNN: Final = (Cudnn(FIRST), Cudnn(BEST, is_usual=False))  # who builds and times all plans is not ready at once


def _dense(shape: AttentionShape) -> Problem:
    """Return the problem of contiguous tensors of that shape."""

    def strides(length: int, heads: int, width: int) -> tuple[int, int, int]:
        return length * heads * width, width, heads * width

    return Problem(
        batch=shape.batch,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        seq_q=shape.seq_q,
        seq_kv=shape.seq_kv,
        head_dim=shape.head_dim,
        head_dim_v=shape.head_dim_v,
        dtype=shape.dtype,
        scale=1.0,
        causal=shape.causal,
        window=shape.window,
        softcap=shape.softcap,
        q_strides=strides(shape.seq_q, shape.heads, shape.head_dim),
        k_strides=strides(shape.seq_kv, shape.kv_heads, shape.head_dim),
        v_strides=strides(shape.seq_kv, shape.kv_heads, shape.head_dim_v),
    )


def _paged(shape: PagedShape) -> Problem:
    """Return the problem of a contiguous pool of that shape."""

    def strides(width: int) -> tuple[int, int, int]:
        page = shape.page_size * shape.kv_heads * width
        if shape.layout == "NHD":
            return page, width, shape.kv_heads * width
        return page, shape.page_size * width, width

    row = shape.heads * shape.head_dim
    return Problem(
        batch=shape.batch,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        seq_q=shape.seq_q,
        seq_kv=shape.max_context,
        head_dim=shape.head_dim,
        head_dim_v=shape.head_dim_v,
        dtype=shape.dtype,
        kv_dtype=shape.kv_dtype,
        scale=1.0,
        causal=True,
        window=shape.window,
        softcap=shape.softcap,
        alibi=shape.alibi,
        sinks=shape.sinks,
        page_size=shape.page_size,
        q_strides=(shape.seq_q * row, shape.head_dim, row),
        k_strides=strides(shape.head_dim),
        v_strides=strides(shape.head_dim_v),
    )


def _without_nan(cache: torch.Tensor) -> torch.Tensor:
    """Copy a cache, strides too: cuDNN defines no result where slots without a token hold NaN."""
    return torch.nan_to_num(cache, out=cache.new_empty_strided(cache.shape, cache.stride()))
