"""Dense attention with a mask, sinks or ends of keys by a kernel of ours: as the framework and users see it."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.kernels.flash_attention.checks import check_fit
from autotune.kernels.flash_attention.definition import SOFTCAP, Inputs, empty_operands, meta_tensors
from autotune.kernels.flash_attention.operand_repeat import NAMES, repeat_of
from autotune.kernels.flash_attention.operands import Operand, check_operands, check_picked
from autotune.kernels.known_calls import KnownCalls, Result
from autotune.kernels.tensors import (
    check_apart,
    check_device,
    check_out,
    launch_options,
    on_device_of,
    refuse_options,
    require_context,
)
from autotune.shape import AttentionShape
from autotune.space import Config

FEATURES: Final = ("causal", "window", "softcap", "scale", "attn_mask", "sinks", "kv_ends")


class BoundOperands:
    """Attention with operands over one shape with one config: what ``get_kernel`` hands out.

    Example (on a GPU):
        >>> shape = AttentionShape(batch=2, heads=16, seq_q=1024, head_dim=128, attn_mask="boolean")
        >>> kernel = autotune.get_kernel(shape)
        >>> out = kernel(q, k, v, attn_mask=mask)  # mask bool [2 or 1, 16 or 1, 1024 or 1, 1024]
    """

    def __init__(self, launch: Callable[..., Any], config: Config, shape: AttentionShape) -> None:
        self._launch = launch
        self._shape = shape
        self._options = launch_options(config)
        self._calls = KnownCalls(NAMES, self._compute, repeat_of)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        attn_mask: Operand = None,
        sinks: Operand = None,
        kv_ends: Operand = None,
        scale: float | None = None,
        softcap: float | None = None,
        return_lse: bool = False,
        out: torch.Tensor | None = None,
        **unknown: object,
    ) -> Result:
        """Compute the output ``[B, S_q, H, D_v]`` in the inputs' dtype, or fill ``out``.

        With ``return_lse`` also return the natural logarithm of the softmax's denominator, sinks included, fp32
        ``[B, H, S_q]``. See ``autotune.attention`` for the operands. A call whose signature is known is not checked
        again.

        Raises:
            InputMismatchError: a tensor or an option does not fit the shape.
            NotDifferentiableError: gradients are required.
        """
        if unknown:
            refuse_options(self.__call__, self._shape, unknown)
        return self._calls.call((q, k, v, attn_mask, sinks, kv_ends), (scale, softcap, return_lse), out)

    def _compute(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        attn_mask: Operand,
        sinks: Operand,
        kv_ends: Operand,
        scale: float | None,
        softcap: float | None,
        return_lse: bool,
        out: torch.Tensor | None,
    ) -> Result:
        shape = self._shape
        check_fit(shape, q, k, v, scale=scale, softcap=softcap)
        check_picked(shape, attn_mask, sinks, kv_ends)
        check_operands(q, shape.seq_kv, attn_mask, sinks, kv_ends)
        check_device(q.device, q.dtype)
        sizes = (*q.shape[:3], shape.head_dim_v)
        if out is None:
            out = torch.empty(sizes, dtype=q.dtype, device=q.device)
        else:
            pairs = zip(NAMES, (q, k, v, attn_mask, sinks, kv_ends), strict=True)
            check_out(out, sizes, {"q": q})
            check_apart(out, {name: each for name, each in pairs if each is not None})
            torch.autograd.graph.increment_version(out)  # written behind torch's back
        lse_sizes = (shape.batch, shape.heads, shape.seq_q)
        lse = torch.empty(lse_sizes, dtype=torch.float32, device=q.device) if return_lse else None
        with on_device_of(q):
            if self._options["loads"] == "descriptor":
                require_context(q.device)
            self._launch(
                *(q, k, v, out, lse),
                causal=shape.causal,
                window=shape.window,
                softcap=softcap,
                scale=shape.head_dim**-0.5 if scale is None else scale,
                attn_mask=attn_mask,
                sinks=sinks,
                kv_ends=kv_ends,
                options=self._options,
            )
        return out if lse is None else (out, lse)


class OperandKernel:
    """Implements ``autotune.implementation.Kernel`` for ``AttentionShape``."""

    def __init__(self, launch: Callable[..., Any]) -> None:
        """Take what launches one kernel over checked tensors.

        ``launch`` takes the queries, keys, values, output and log-sum-exp or None, the features of the problem, a
        config as ``options`` and ``compile_only``, with which it returns the compiled kernel of meta tensors. The
        kernel's first arguments are the queries, keys and values, by pointer or descriptor, then a tuple of the
        operands, ``NAMES`` beside them, and one of the outputs.
        """
        self.launch_checked = launch

    def launch(self, config: Config, inputs: Inputs, outputs: tuple[torch.Tensor, ...]) -> None:
        lse = outputs[1] if len(outputs) > 1 else None
        features = {name: getattr(inputs, name) for name in FEATURES}
        tensors = (inputs.q, inputs.k, inputs.v, outputs[0], lse)
        self.launch_checked(*tensors, **features, options=launch_options(config))

    def warmup(self, config: Config, shape: AttentionShape, *, every_output: bool = False) -> Sequence[Any]:
        """Compile over tensors of the meta device; strides are those of contiguous tensors, as random inputs have."""
        q, k, v, out, lse = meta_tensors(shape)
        features: dict[str, Any] = {"causal": shape.causal, "window": shape.window, "scale": shape.head_dim**-0.5}
        features |= {"softcap": SOFTCAP if shape.softcap else None, **empty_operands(shape, "meta")}
        options = launch_options(config)
        tensors = (q, k, v, out, lse if every_output else None)
        return (self.launch_checked(*tensors, **features, options=options, compile_only=True),)

    def bind(self, config: Config, shape: AttentionShape) -> Callable[..., Any]:
        return BoundOperands(self.launch_checked, config, shape)
