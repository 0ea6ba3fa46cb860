"""cuDNN's attention over given tensors, ready to be timed and to be captured, and as baselines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import torch

from autotune.errors import AutotuneError, BaselineUnavailableError, InputMismatchError, MissingDependencyError
from autotune.kernels.baselines.baseline import (
    OverCopies,
    missing_full_mask,
    missing_operand,
    refuse_pages,
    refuse_unless_ready,
    without_nan,
)
from autotune.kernels.baselines.cudnn.plans import ExecutionPlan, Operands, planned
from autotune.kernels.baselines.cudnn.problem import INSTALL, MAX_OFFSET, VECTOR, Operand, Problem, Strides, unsupported
from autotune.kernels.tensors import dtype_name
from autotune.shape import AttentionShape, PagedShape

if TYPE_CHECKING:
    from autotune.kernels.flash_attention.definition import Inputs as DenseInputs
    from autotune.kernels.paged_decode.inputs import Inputs as PagedInputs

FIRST: Final = "cudnn"
BEST: Final = "cudnn best plan"

Call = Callable[[], torch.Tensor]  # returns the output


def dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> dict[str, Call]:
    """Return cuDNN's calls, by name, of ``q [B, S_q, H, D]`` over ``k [B, S_kv, H_kv, D]``, ``v [B, S_kv, H_kv, D_v]``.

    fp16 or bf16, any strides with a unit last one; masks are bottom-right aligned. Each call returns the output
    ``[B, S_q, H, D_v]``, the same tensor each time. What cannot be had raises when it is called:

    Raises:
        MissingDependencyError: the frontend, cuDNN or an NVIDIA GPU is absent.
        BaselineUnavailableError: cuDNN cannot do this problem, or not on this GPU.
    """
    features = {"scale": scale, "causal": causal, "window": window, "softcap": softcap is not None}
    problem = _problem(q, k, v, (0, 2, 1), batch=q.shape[0], seq_q=q.shape[1], seq_kv=k.shape[1], **features)
    return _calls(problem, q, k, v, dict)


def paged(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    layout: str,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
) -> dict[str, Call]:
    """Return calls of cuDNN's attention over a paged cache, by name: each sequence's last positions over all its keys.

    ``q`` is ``[B, S_q, H, D]``, or packed ``[T, H, D]`` with ``cu_seqlens_q`` int32 ``[B + 1]`` and ``max_seqlen_q``;
    the caches have the layout ``NHD`` or ``HND``; ``page_table`` is int32 ``[B, max_pages]``, with any number where a
    sequence has no page; ``seq_lens`` int32 ``[B]``, of which cuDNN defines no result for 0. What a page holds behind
    its sequence's end must be finite. The table, ``cu_seqlens_q`` and sinks are copied here, all else is read at each
    call, which returns the output of ``q``'s sizes with ``D_v`` last. Dtypes, strides, errors are those of ``dense``.

    Example (on a GPU):
        >>> calls = paged(q, k_cache, v_cache, page_table, seq_lens, layout="NHD", scale=head_dim**-0.5)
        >>> out = calls["cudnn"]()
    """
    axes = (0, 2, 1) if layout == "NHD" else (0, 1, 2)  # of page, head and slot
    is_packed = cu_seqlens_q is not None
    if is_packed != (max_seqlen_q is not None):
        raise InputMismatchError(f"max_seqlen_q={max_seqlen_q}; expected a number with cu_seqlens_q, None without")
    seq_q = q.shape[1] if max_seqlen_q is None else max_seqlen_q
    page_size = k_cache.shape[axes[2]]
    problem = _problem(
        *(q, k_cache, v_cache, axes),
        batch=seq_lens.shape[0],
        seq_q=seq_q,
        seq_kv=page_table.shape[1] * page_size,
        scale=scale,
        causal=True,
        window=window,
        softcap=softcap is not None,
        alibi=alibi_slopes is not None,
        sinks=sinks is not None,
        page_size=page_size,
        # Rounded up, so that pools of about one size share a graph; no page of the table lies beyond the pool.
        pages=1 << (k_cache.shape[0] - 1).bit_length(),
        packed=is_packed,
    )

    def more_operands() -> dict[int, torch.Tensor]:
        table = page_table.clamp(0, k_cache.shape[0] - 1).contiguous()  # cuDNN may load what it does not use
        operands = {Operand.PAGES_K: table, Operand.PAGES_V: table, Operand.LENGTHS_KV: seq_lens.contiguous()}
        if cu_seqlens_q is None:
            operands[Operand.LENGTHS_Q] = torch.full_like(seq_lens, seq_q)
        else:
            operands[Operand.LENGTHS_Q] = cu_seqlens_q.diff().contiguous()
            operands[Operand.OFFSETS_Q] = cu_seqlens_q * q.stride(0)
            operands[Operand.OFFSETS_OUT] = cu_seqlens_q * (q.shape[1] * v_cache.shape[3])
        if sinks is not None:
            operands[Operand.SINKS] = sinks.float().contiguous()
        return {int(operand): tensor for operand, tensor in operands.items()}

    return _calls(problem, q, k_cache, v_cache, more_operands)


def _problem(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, axes: tuple[int, int, int], *, seq_q: int, **features: Any
) -> Problem:
    """Return the problem of these tensors; ``axes`` of keys and values are batch or page, head and position."""

    def strides(tensor: torch.Tensor, axes: tuple[int, int, int]) -> Strides:
        batch, head, position = (tensor.stride(axis) for axis in axes)
        return batch, head, position

    is_packed = q.ndim == 3
    return Problem(
        heads=q.shape[-2],
        kv_heads=k.shape[axes[1]],
        seq_q=seq_q,
        head_dim=q.shape[-1],
        head_dim_v=v.shape[3],
        dtype=dtype_name(q.dtype),
        kv_dtype=dtype_name(k.dtype),
        q_strides=(seq_q * q.stride(0), q.stride(1), q.stride(0)) if is_packed else strides(q, (0, 2, 1)),
        k_strides=strides(k, axes),
        v_strides=strides(v, axes),
        **features,
    )


def find_refusal(problem: Problem, tensors: Sequence[torch.Tensor]) -> AutotuneError | None:
    """Return why cuDNN cannot take a problem over these tensors (queries, keys, values), or None."""
    reason = unsupported(problem)
    if reason is None and any(tensor.data_ptr() % (2 * VECTOR) for tensor in tensors):
        reason = "a tensor does not begin at a multiple of 16 bytes, which cuDNN reads at once"
    if reason is None and problem.packed and tensors[0].shape[0] * tensors[0].stride(0) > MAX_OFFSET:
        reason = f"{tensors[0].shape[0]} packed queries: their offsets exceed 32 bits"
    if reason is not None:
        return BaselineUnavailableError(reason)
    if (missing := find_missing(tensors[0].device)) is not None:
        return MissingDependencyError(missing)
    import cudnn

    reason = unsupported(problem, int(cudnn.backend_version()))
    return None if reason is None else BaselineUnavailableError(reason)


def find_missing(device: torch.device | None = None) -> str | None:
    """Return what cuDNN lacks on this machine, or for tensors of that device, or None."""
    try:
        import cudnn
    except ImportError as error:
        return f"cuDNN's Python frontend is missing ({error}): {INSTALL}"
    if device is not None and (device.type != "cuda" or torch.version.cuda is None):
        return f"the tensors are on {device}: cuDNN needs an NVIDIA GPU"
    if torch.version.cuda is None or not torch.cuda.is_available():
        return "cuDNN needs an NVIDIA GPU, and none is here"
    try:
        cudnn.backend_version()
    except RuntimeError as error:
        return f"the frontend finds no cuDNN, which comes with torch's CUDA builds: {error}"
    return None


def _calls(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, more: Callable[[], dict[int, torch.Tensor]]
) -> dict[str, Call]:
    """Return both baselines' calls. Operands are prepared here: only a problem's first call does more than launch."""
    if (refusal := find_refusal(problem, (q, k, v))) is not None:
        return {name: _refuse(refusal) for name in (FIRST, BEST)}
    out = q.new_empty((*q.shape[:-1], problem.head_dim_v))
    operands = {int(Operand.Q): q, int(Operand.K): k, int(Operand.V): v, int(Operand.OUT): out} | more()

    def call(name: str) -> Call:
        # Kept as long as the call: a CUDA graph that holds it writes to them.
        workspaces: dict[ExecutionPlan, torch.Tensor] = {}

        def run() -> torch.Tensor:
            plan = _plan(name, problem, operands, q.device)
            if plan not in workspaces:
                workspaces[plan] = plan.workspace()
            plan.run(operands, workspaces[plan])
            return out

        return run

    return {name: call(name) for name in (FIRST, BEST)}


def _plan(name: str, problem: Problem, operands: Operands, device: torch.device) -> ExecutionPlan:
    plans = planned(problem, device)
    return plans.first() if name == FIRST else plans.best(operands)


def _refuse(error: AutotuneError) -> Call:
    def run() -> torch.Tensor:
        raise type(error)(*error.args)

    return run


@dataclass(frozen=True, slots=True)
class Cudnn:
    """cuDNN over ``AttentionShape`` and ``PagedShape``: the plan that its heuristics propose first, or its fastest."""

    name: str
    is_usual: bool = True
    verified_on_hardware: bool = True

    def available(self) -> str | None:
        return find_missing()

    def unsupported(self, shape: Any) -> str | None:
        if not isinstance(shape, AttentionShape | PagedShape):
            return f"{type(shape).__name__}: {self.name} computes an AttentionShape or a PagedShape"
        for name in type(shape).ABSENT.keys() - FIELDS:
            if getattr(shape, name) != type(shape).ABSENT[name]:
                return f"{name}={getattr(shape, name)!r} is not supported by {self.name}"
        missing = missing_operand(self.name, shape) or missing_full_mask(self.name, shape)
        return missing or unsupported(_problem_of(shape))

    def prepare(self, shape: Any, inputs: Any) -> Callable[[], torch.Tensor]:
        """Return a call that returns the same tensor each time; plans are built and, for the fastest, timed here."""
        refuse_unless_ready(self, shape)
        if isinstance(shape, AttentionShape):
            call = OverCopies(self._bind_dense(inputs), ())
        else:
            call = self._bind_paged(inputs)
        call()
        return call

    def serve(self, shape: Any, inputs: Any) -> torch.Tensor:
        """Compute dense attention, ``[B, S_q, H, D_v]``; a paged cache would have to be copied without its NaN."""
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


FIELDS: Final = {field.name for field in fields(Problem)}


def _features(inputs: Any) -> dict[str, Any]:
    return {name: getattr(inputs, name) for name in ("scale", "window", "softcap")}


def _problem_of(shape: AttentionShape | PagedShape) -> Problem:
    """Return the problem of contiguous tensors, all of whose strides are multiples of a head's width."""
    values: dict[str, Any] = shape.as_dict() | {"scale": 1.0}
    if isinstance(shape, PagedShape):
        values |= {"causal": True, "seq_kv": shape.max_context}
    for name, width in (("q", shape.head_dim), ("k", shape.head_dim), ("v", shape.head_dim_v)):
        values[f"{name}_strides"] = (width,) * 3
    return Problem(**{name: value for name, value in values.items() if name in FIELDS})
