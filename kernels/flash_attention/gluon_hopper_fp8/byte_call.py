"""Attention of e4m3 as users call it: scales beside the tensors, and an output of 16 bits."""

from collections.abc import Callable
from typing import Any

import torch

from autotune.kernels.flash_attention.checks import check_fit
from autotune.kernels.flash_attention.scales import OUTPUT_DTYPES, Scale, check_tensor_scale
from autotune.kernels.tensors import check_apart, check_out, on_device_of, refuse_options
from autotune.shape import AttentionShape


class BoundBytes:
    """Attention of e4m3 over one shape with one config: what ``get_kernel`` hands out.

    Example (on a GPU):
        >>> kernel = autotune.get_kernel(AttentionShape(batch=2, heads=16, seq_q=1024, head_dim=128, dtype="fp8"))
        >>> out = kernel(q, k, v, k_scale=k_scale)  # q, k and v float8_e4m3fn, out bfloat16
    """

    def __init__(
        self,
        launch: Callable[..., Any],
        prepare: Callable[[torch.Tensor], None],
        shape: AttentionShape,
        options: dict[str, Any],
    ) -> None:
        self._launch, self._prepare = launch, prepare
        self._shape, self._options = shape, options

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
        q_scale: Scale = None,
        k_scale: Scale = None,
        v_scale: Scale = None,
        **unknown: object,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Compute the output ``[B, S_q, H, D_v]`` in bfloat16, or fill ``out``, of bfloat16 or float16.

        An element of a tensor stands for its value times the tensor's scale: a positive number, 1 where there is none,
        or fp32 of one element, ``[H]`` or ``[B, H]``, H the heads of that tensor. With ``return_lse`` also return the
        natural log-sum-exp of the scaled scores, fp32 ``[B, H, S_q]``.

        Raises:
            InputMismatchError: a tensor or an option does not fit the shape.
            NotDifferentiableError: gradients are required.
            UnsupportedCallError: the address or the strides of a tensor are no multiples of 16 bytes.
        """
        shape = self._shape
        if unknown:
            refuse_options(self.__call__, shape, unknown)
        check_fit(shape, q, k, v, scale=scale, softcap=softcap)
        scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
        for (name, each), tensor in zip(scales.items(), (q, k, v), strict=True):
            check_tensor_scale(name, each, tensor)
        sizes = (*q.shape[:3], shape.head_dim_v)
        if out is not None:
            inputs = {"q": q, "k": k, "v": v}
            check_out(out, sizes, inputs, dtypes=OUTPUT_DTYPES)
            check_apart(out, inputs)
        scale = shape.head_dim**-0.5 if scale is None else scale
        features: dict[str, Any] = {"causal": shape.causal, "window": shape.window, "softcap": softcap, "scale": scale}
        with on_device_of(q):
            self._prepare(q)
            if out is None:
                out = torch.empty(sizes, dtype=OUTPUT_DTYPES[0], device=q.device)
            else:
                torch.autograd.graph.increment_version(out)  # written behind torch's back
            rows = (shape.batch, shape.heads, shape.seq_q)
            lse = torch.empty(rows, dtype=torch.float32, device=q.device) if return_lse else None
            self._launch(q, k, v, out, lse, **features, **scales, options=self._options)
        return out if lse is None else (out, lse)
