"""Calls of users: check that tensors fit, allocate the output, launch."""

from typing import Any

import torch

from autotune.kernels.flash_attention.checks import check_fit
from autotune.kernels.flash_attention.triton.launch import launch
from autotune.kernels.tensors import (
    check_device,
    on_device_of,
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
        check_fit(self._shape, q, k, v, scale=scale, softcap=softcap)
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
    with on_device_of(q):
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
