"""Calls of dense attention and the checks of their arguments, which all its implementations share."""

from abc import ABC, abstractmethod
from typing import Any

import torch

from autotune.errors import InputMismatchError
from autotune.kernels.tensors import (
    check_apart,
    check_out,
    check_positive,
    check_softcap,
    check_together,
    describe,
    dtype_name,
    refuse_options,
)
from autotune.shape import AttentionShape


class BoundDense(ABC):
    """Attention over one shape with one config: the call that users make."""

    def __init__(self, shape: AttentionShape, options: dict[str, Any]) -> None:
        self._shape = shape
        self._options = options

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        return_lse: bool = False,
        out: torch.Tensor | None = None,
        **unknown: object,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Compute the output ``[B, S_q, H, D_v]`` in the inputs' dtype, or fill ``out``.

        With ``return_lse`` also return the natural log-sum-exp of the scaled scores, fp32 ``[B, H, S_q]``. ``scale`` is
        ``head_dim ** -0.5`` by default.

        Raises:
            InputMismatchError: a tensor or an option does not fit the shape.
            NotDifferentiableError: gradients are required.
        """
        shape = self._shape
        if unknown:
            refuse_options(self.__call__, shape, unknown)
        check_fit(shape, q, k, v, scale=scale, softcap=softcap)
        if out is not None:
            inputs = {"q": q, "k": k, "v": v}
            check_out(out, (*q.shape[:3], shape.head_dim_v), inputs)
            check_apart(out, inputs)
        scale = shape.head_dim**-0.5 if scale is None else scale
        return self._attend(q, k, v, scale, softcap, return_lse, out)

    @abstractmethod
    def _attend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        scale: float,
        softcap: float | None,
        return_lse: bool,
        out: torch.Tensor | None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Compute over checked tensors, into ``out`` or a tensor of its own."""


def check_fit(
    shape: AttentionShape,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None,
    softcap: float | None,
) -> None:
    """Check a call's tensors and options by the shape its kernel was picked for; raise as ``BoundDense`` does."""
    expected = (
        ("q", q, (shape.batch, shape.seq_q, shape.heads, shape.head_dim)),
        ("k", k, (shape.batch, shape.seq_kv, shape.kv_heads, shape.head_dim)),
        ("v", v, (shape.batch, shape.seq_kv, shape.kv_heads, shape.head_dim_v)),
    )
    for name, tensor, sizes in expected:
        is_tensor = isinstance(tensor, torch.Tensor)
        if not is_tensor or tuple(tensor.shape) != sizes or dtype_name(tensor.dtype) != shape.dtype:
            raise InputMismatchError(f"{name} is {describe(tensor)}; this kernel takes {sizes} {shape.dtype}")
    check_call(q, k, v, scale=scale, softcap=softcap)
    check_softcap(softcap, shape.softcap)


def check_call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None, softcap: float | None
) -> None:
    """Validate what no shape says: devices, gradients, strides, and the numbers that a softmax takes."""
    if q.device != k.device or q.device != v.device or q.requires_grad or k.requires_grad or v.requires_grad:
        check_together({"q": q, "k": k, "v": v})
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.numel() and tensor.stride(3) != 1:
            raise InputMismatchError(f"{name} has the strides {tensor.stride()}; expected 1 in the last dimension")
    check_positive("scale", scale)
    check_positive("softcap", softcap)
