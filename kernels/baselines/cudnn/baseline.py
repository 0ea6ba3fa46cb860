"""cuDNN's attention as the baselines that a search and the bench compare with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from autotune.kernels.baselines.baseline import OverCopies, refuse_pages, refuse_unless_ready, without_nan
from autotune.kernels.baselines.cudnn.calls import BEST, FIRST, Call, dense, find_missing, paged
from autotune.kernels.baselines.cudnn.problem import Problem, unsupported
from autotune.shape import AttentionShape, PagedShape

if TYPE_CHECKING:
    from autotune.kernels.flash_attention.definition import Inputs as DenseInputs
    from autotune.kernels.paged_decode.inputs import Inputs as PagedInputs


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
        if isinstance(shape, AttentionShape | PagedShape):
            return unsupported(_problem(shape))
        return f"{type(shape).__name__}: {self.name} computes an AttentionShape or a PagedShape"

    def prepare(self, shape: Any, inputs: Any) -> Callable[[], torch.Tensor]:
        """Return a call that returns the same tensor each time; plans are built and, for the fastest, timed here.

        Raises:
            MissingDependencyError: ``available`` says why.
            BaselineUnavailableError: ``unsupported`` says why, or cuDNN refuses the problem on this GPU.
        """
        refuse_unless_ready(self, shape)
        if isinstance(shape, AttentionShape):
            call = OverCopies(self._bind_dense(inputs), ())
        else:
            call = self._bind_paged(inputs)
        call()
        return call

    def serve(self, shape: Any, inputs: Any) -> torch.Tensor:
        """Compute dense attention, ``[B, S_q, H, D_v]``; a paged cache would have to be copied without its NaN.

        Raises:
            BaselineUnavailableError: the shape is paged, or cuDNN refuses these tensors.
        """
        refuse_pages(self.name, shape)
        return self._bind_dense(inputs)()

    def _bind_dense(self, inputs: "DenseInputs") -> Call:
        return dense(inputs.q, inputs.k, inputs.v, causal=inputs.causal, **_features(inputs))[self.name]

    def _bind_paged(self, inputs: "PagedInputs") -> OverCopies:
        copies = without_nan(inputs.k_cache), without_nan(inputs.v_cache)
        offsets = getattr(inputs, "cu_seqlens_q", None)
        calls = paged(
            *(inputs.q, *copies, inputs.page_table, inputs.seq_lens),
            layout=inputs.layout,
            sinks=inputs.sinks,
            alibi_slopes=inputs.alibi_slopes,
            cu_seqlens_q=offsets,
            max_seqlen_q=None if offsets is None else int(offsets.diff().max()),
            **_features(inputs),
        )
        return OverCopies(calls[self.name], copies)


CUDNN: Final = (Cudnn(FIRST), Cudnn(BEST, is_usual=False))  # who builds and times all plans is not ready at once


def _features(inputs: Any) -> dict[str, Any]:
    return {name: getattr(inputs, name) for name in ("scale", "window", "softcap")}


def _problem(shape: AttentionShape | PagedShape) -> Problem:
    """Return the problem of contiguous tensors, all of whose strides are multiples of a head's width."""
    values: dict[str, Any] = shape.as_dict() | {"scale": 1.0}
    if isinstance(shape, PagedShape):
        values |= {"causal": True, "seq_kv": values.pop("max_context")}
        del values["mean_context"], values["layout"]
    for name, width in (("q", shape.head_dim), ("k", shape.head_dim), ("v", shape.head_dim_v)):
        values[f"{name}_strides"] = (width,) * 3
    return Problem(**values)
