"""What a user's call does: checks that tensors fit, allocates the output, launches."""

from typing import Any

import torch

from autotune.errors import InputMismatchError
from autotune.kernels.flash_attention.launch import launch
from autotune.kernels.tensors import (
    check_device,
    check_positive,
    check_softcap,
    check_together,
    describe,
    refuse_options,
)
from autotune.shape import AttentionShape
from autotune.space import Config


class BoundAttention:
    """Attention over one shape with one config: what ``get_kernel`` hands out.

    Example (on a GPU):
        >>> kernel = autotune.get_kernel(AttentionShape(batch=2, heads=16, seq_q=1024, head_dim=128, causal=True))
        >>> out = kernel(q, k, v)  # all [2, 1024, 16, 128], bfloat16
    """

    def __init__(self, config: Config, shape: AttentionShape) -> None:
        self._shape = shape
        self._options = launch_options(config)
        self._dtype = getattr(torch, shape.dtype)
        self._expected = {
            "q": (shape.batch, shape.seq_q, shape.heads, shape.head_dim),
            "k": (shape.batch, shape.seq_kv, shape.kv_heads, shape.head_dim),
            "v": (shape.batch, shape.seq_kv, shape.kv_heads, shape.head_dim_v),
        }

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        return_lse: bool = False,
        **unknown: object,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """The output ``[B, S_q, H, D_v]`` in the inputs' dtype; with ``return_lse`` also the natural log-sum-exp of the
        scaled scores, fp32 ``[B, H, S_q]``. ``scale`` is ``head_dim ** -0.5`` by default.

        Raises:
            InputMismatchError: a tensor or an option does not fit the shape.
            NotDifferentiableError: gradients are required.
        """
        if unknown:
            refuse_options(self.__call__, self._shape, unknown)
        for name, tensor in (("q", q), ("k", k), ("v", v)):
            is_tensor = isinstance(tensor, torch.Tensor)
            if not is_tensor or tuple(tensor.shape) != self._expected[name] or tensor.dtype != self._dtype:
                raise InputMismatchError(
                    f"{name} is {describe(tensor)}; this kernel takes {self._expected[name]} {self._shape.dtype}"
                )
        check_call(q, k, v, scale=scale, softcap=softcap)
        check_softcap(softcap, self._shape.softcap)
        return attend(
            q,
            k,
            v,
            causal=self._shape.causal,
            window=self._shape.window,
            softcap=softcap,
            scale=scale,
            options=self._options,
            return_lse=return_lse,
        )


def check_call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float | None, softcap: float | None
) -> None:
    """Refuse what no shape says: devices, gradients, strides, and numbers that make no softmax."""
    if q.device != k.device or q.device != v.device or q.requires_grad or k.requires_grad or v.requires_grad:
        check_together({"q": q, "k": k, "v": v})
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.numel() and tensor.stride(3) != 1:
            raise InputMismatchError(f"{name} has the strides {tensor.stride()}; expected 1 in the last dimension")
    check_positive("scale", scale)
    check_positive("softcap", softcap)


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    options: dict[str, Any],
    return_lse: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Allocate and launch over tensors that were checked."""
    check_device(q.device, q.dtype)
    out = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype, device=q.device)
    lse = None
    if return_lse:
        lse = torch.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32, device=q.device)
    launch(
        q,
        k,
        v,
        out,
        lse,
        causal=causal,
        window=window,
        softcap=softcap,
        scale=q.shape[3] ** -0.5 if scale is None else scale,
        options=options,
    )
    return out if lse is None else (out, lse)


def launch_options(config: Config) -> dict[str, Any]:
    """A config as keyword arguments of the launch, without the parameters of other backends."""
    return {name: value for name, value in config.items() if value is not None}
