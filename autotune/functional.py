"""Functions over dense tensors that pick a kernel by them and cache the pick: what most users call."""

import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from autotune.dispatch import CACHED_PICKS, pick_for_device
from autotune.errors import InputMismatchError
from autotune.registry import missing_package
from autotune.shape import AttentionShape

if TYPE_CHECKING:
    import torch


def attention(
    q: "torch.Tensor",
    k: "torch.Tensor",
    v: "torch.Tensor",
    *,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> "torch.Tensor | tuple[torch.Tensor, torch.Tensor]":
    """Compute softmax attention of ``q [B, S_q, H, D]`` over ``k [B, S_kv, H_kv, D]`` and ``v [B, S_kv, H_kv, D_v]``.

    Forward only; fp16, bf16 or fp32, any strides with a unit last one, ``H`` a multiple of ``H_kv``. On the
    CPU it needs ``TRITON_INTERPRET=1``, and computes fp16 and fp32, to check numbers.

    Args:
        causal: bottom-right aligned: query i sees keys up to ``i + S_kv - S_q``.
        window: see only keys closer than this many positions, one's own included.
        softcap: bound scaled scores by ``softcap * tanh(score / softcap)``.
        scale: what scores are multiplied by; ``D ** -0.5`` by default.
        return_lse: also return the natural log-sum-exp of the scores, fp32 ``[B, H, S_q]``.

    Returns:
        The output ``[B, S_q, H, D_v]`` in the dtype of ``q``; a query that sees no key gets 0, its log-sum-exp is -inf.

    Raises:
        InputMismatchError: tensors that do not fit each other.
        NotDifferentiableError: gradients are required.

    Example:
        >>> out = autotune.attention(q, k, v, causal=True)
    """
    import torch

    if not type(q) is type(k) is type(v) is torch.Tensor:
        check_tensors(q=q, k=k, v=v)
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise InputMismatchError(f"q, k and v have {q.ndim}, {k.ndim} and {v.ndim} dimensions; expected [B, S, H, D]")
    if 0 in (q.shape[0], q.shape[1], k.shape[1]):  # without queries or keys no kernel is picked
        from autotune.kernels.flash_attention.checks import check_call

        if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
            sizes = f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)}"
            raise InputMismatchError(f"{sizes} do not fit each other")
        check_call(q, k, v, scale=scale, softcap=softcap)
        out = q.new_zeros((*q.shape[:3], v.shape[3]))
        lse = q.new_full((q.shape[0], q.shape[2], q.shape[1]), -math.inf).float()
        return (out, lse) if return_lse else out
    shape = _shape_of(tuple(q.shape), tuple(k.shape), v.shape[3], str(q.dtype)[6:], causal, window, softcap is not None)
    kernel = pick_for_device(shape, gpu_of(q), "flash_attention")  # keeps its picks, until reload()
    return kernel(q, k, v, scale=scale, softcap=softcap, return_lse=return_lse)  # type: ignore[no-any-return]


def gpu_of(tensor: "torch.Tensor") -> int | None:
    """Return the index of the GPU that holds a tensor; None for one on the CPU, which Triton's interpreter computes."""
    if not tensor.is_cpu:
        return tensor.device.index
    require_packages("triton")
    return None


def check_tensors(**values: object) -> None:
    """Raise InputMismatchError, by its name, for a value that is no tensor."""
    from autotune.kernels import tensors  # loads torch

    tensors.check_tensors(values)


def require_packages(*names: str) -> None:
    """Raise MissingDependencyError for the first of these packages that is absent."""
    for name in names:
        if sys.modules.get(name) is None and find_spec(name) is None:
            raise missing_package(name)


def merge_attention(
    outs: "torch.Tensor | Sequence[torch.Tensor]", lses: "torch.Tensor | Sequence[torch.Tensor]"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Merge attention over disjoint sets of keys into attention over their union: a shared prefix and its suffixes.

    Args:
        outs: ``[n, ..., D]`` stacked or as a sequence: the output over each set.
        lses: ``[n, ...]``: the natural logarithm of each softmax's denominator. A sink belongs into one of them only.

    Returns:
        The output ``[..., D]`` in the dtype of ``outs``, computed in fp32 at least, and its ``lse [...]``. A query that
        saw no key in any set gets 0 and -inf.

    Raises:
        InputMismatchError: as many outputs as logarithms, one at least, of the same sizes, were expected.

    Example:
        >>> out, lse = autotune.merge_attention([prefix_out, suffix_out], [prefix_lse, suffix_lse])
    """
    require_packages("torch")
    import torch

    outs, lses = _stack("outs", outs), _stack("lses", lses)
    if outs.shape[:-1] != lses.shape or outs.ndim < 2:
        raise InputMismatchError(
            f"outs is {tuple(outs.shape)} and lses {tuple(lses.shape)}; expected [n, ..., D] and [n, ...]"
        )
    dtype = torch.promote_types(torch.promote_types(outs.dtype, lses.dtype), torch.float32)
    lse = lses.to(dtype).logsumexp(0)
    weights = (lses.to(dtype) - lse.masked_fill(lse == -math.inf, 0.0)).exp()[..., None]
    parts = (weights * outs.to(dtype)).masked_fill(weights == 0.0, 0.0)
    return parts.sum(0).to(outs.dtype), lse


def _stack(name: str, parts: "torch.Tensor | Sequence[torch.Tensor]") -> "torch.Tensor":
    import torch

    parts = parts if isinstance(parts, torch.Tensor) else tuple(parts)
    if len(parts) == 0:
        raise InputMismatchError(f"{name} is empty; expected one result at least")
    if isinstance(parts, torch.Tensor):
        return parts
    check_tensors(**{f"{name}[{index}]": part for index, part in enumerate(parts)})
    places = [f"{tuple(part.shape)} on {part.device}" for part in parts]
    for index, place in enumerate(places):
        if place != places[0]:
            differs = f"{name}[{index}] is {place}, {name}[0] {places[0]}"
            raise InputMismatchError(f"{differs}; expected one size and one device")
    return torch.stack(parts)


@lru_cache(maxsize=CACHED_PICKS)
def _shape_of(
    q: tuple[int, ...], k: tuple[int, ...], width: int, dtype: str, causal: bool, window: int | None, softcap: bool
) -> AttentionShape:
    sizes = {"batch": q[0], "heads": q[2], "kv_heads": k[2], "seq_q": q[1], "seq_kv": k[1]}
    widths = {"head_dim": q[3], "head_dim_v": width}
    return AttentionShape(**sizes, **widths, dtype=dtype, causal=causal, window=window, softcap=softcap)
