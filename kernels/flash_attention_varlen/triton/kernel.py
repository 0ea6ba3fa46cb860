"""Attention over packed sequences in Triton as the framework sees it, and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.kernels.flash_attention_varlen.inputs import Inputs, empty_inputs
from autotune.kernels.flash_attention_varlen.packed_call import TENSORS, check_fit, check_lengths
from autotune.kernels.flash_attention_varlen.padding import PACKED, PADDED
from autotune.kernels.flash_attention_varlen.triton.forward import Padding, flash_attention_varlen_forward
from autotune.kernels.flash_attention_varlen.triton.launch import launch
from autotune.kernels.flash_attention_varlen.triton.repeat import NAMES, repeat_of
from autotune.kernels.known_calls import KnownCalls, Result
from autotune.kernels.relaunch import observe
from autotune.kernels.tensors import (
    check_apart,
    check_device,
    check_out,
    launch_options,
    on_device_of,
    refuse_options,
    require_context,
)
from autotune.space import Config
from autotune.varlen_shape import VarlenShape

observe(flash_attention_varlen_forward)


class BoundVarlen:
    """Attention over packed sequences for one shape with one config: what ``get_kernel`` hands out.

    ``shape``'s number of sequences and its lengths are hints: a call may have any.

    Example (on a GPU):
        >>> shape = VarlenShape(batch=16, heads=32, kv_heads=8, max_seq_q=4096, mean_seq_q=900, head_dim=128)
        >>> kernel = autotune.get_kernel(shape)
        >>> out = kernel(q, k, v, cu_seqlens, cu_seqlens)  # q [tokens, 32, 128]
    """

    _repeat_of: Callable[..., Any] = staticmethod(repeat_of)

    def __init__(self, config: Config, shape: VarlenShape) -> None:
        self._shape = shape
        self._options = launch_options(config)
        self._calls = KnownCalls(NAMES, self._compute, self._repeat_of)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor | None,
        cu_seqlens_k: torch.Tensor | None,
        *,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
        seqused_q: torch.Tensor | None = None,
        seqused_k: torch.Tensor | None = None,
        kv_starts: torch.Tensor | None = None,
        return_lse: bool = False,
        out: torch.Tensor | None = None,
        check: bool = False,
        **unknown: object,
    ) -> Result:
        """Compute the output ``[T, H, D_v]`` in the dtype of ``q [T, H, D]``, or fill ``out``.

        With ``return_lse`` also return the natural logarithm of the softmax's denominator, fp32 ``[T, H]``. ``check``
        also reads the offsets, which waits for the GPU. See ``autotune.attention_varlen`` for the rest. A call whose
        signature is known is not checked again.

        Offsets of None are those of a padded batch: ``B, S`` stands for ``T`` in all sizes, ``seqused_q`` and
        ``seqused_k`` are the ``q_lens`` and ``kv_lens`` of ``autotune.attention``, by whose formula keys are hidden.

        Raises:
            InputMismatchError: a tensor or an option does not fit the shape.
            NotDifferentiableError: gradients are required.
        """
        if unknown:
            refuse_options(self.__call__, self._shape, unknown)
        inputs = (q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, seqused_q, seqused_k, kv_starts)
        if check:
            return self._compute(*inputs, scale, softcap, return_lse, out, check=True)
        return self._calls.call(inputs, (scale, softcap, return_lse), out)

    def _compute(self, *arguments: Any, check: bool = False) -> Result:
        *given, sinks, seqused_q, seqused_k, kv_starts, scale, softcap, return_lse, out = arguments
        shape, tensors = self._shape, dict(zip(TENSORS, given, strict=True))
        if is_padded := tensors["cu_seqlens_q"] is None and tensors["cu_seqlens_k"] is None:
            tensors = {name: tensors[name] for name in ("q", "k", "v")}
        padding = Padding(seqused_q, seqused_k, kv_starts)
        numbers = dict(zip(PADDED if is_padded else PACKED, padding, strict=True))
        check_fit(shape, tensors, sinks, numbers, scale=scale, softcap=softcap)
        q = tensors["q"]
        check_device(q.device, q.dtype)
        if check:
            check_lengths(tensors, numbers)
        if out is None:
            out = torch.empty((*q.shape[:-1], shape.head_dim_v), dtype=q.dtype, device=q.device)
        else:
            check_out(out, (*q.shape[:-1], shape.head_dim_v), tensors, contiguous=True)
            check_apart(out, tensors | ({} if sinks is None else {"sinks": sinks}))
            torch.autograd.graph.increment_version(out)  # written behind torch's back
        lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device) if return_lse else None
        features: dict[str, Any] = {"causal": shape.causal, "window": shape.window, "softcap": softcap, "sinks": sinks}
        features["scale"] = shape.head_dim**-0.5 if scale is None else scale
        with on_device_of(q):
            if self._takes_descriptors():
                require_context(q.device)
            self._launch((*given, out, lse), features, padding)
        return out if lse is None else (out, lse)

    def _takes_descriptors(self) -> bool:
        return bool(self._options["loads"] == "descriptor")

    def _launch(self, operands: Sequence[Any], features: dict[str, Any], padding: Padding) -> None:
        """Launch over checked tensors: those of ``TENSORS``, the output, and the logarithms or None."""
        launch(*operands, **features, padding=padding, options=self._options)


class VarlenKernel:
    """Implements ``autotune.implementation.Kernel`` for ``VarlenShape``."""

    def launch(self, config: Config, inputs: Inputs, outputs: tuple[torch.Tensor, ...]) -> None:
        lse = outputs[1] if len(outputs) > 1 else None
        self._launch(*(*inputs.tensors, outputs[0], lse), **inputs.features, options=launch_options(config))

    def warmup(self, config: Config, shape: VarlenShape, *, every_output: bool = False) -> Sequence[Any]:
        """Compile over tensors of the meta device; strides are those of contiguous tensors."""
        inputs = empty_inputs(shape, shape.max_seq_q, shape.max_seq_kv, shape.batch, device="meta")
        sizes = inputs.q.shape[:2]
        out = inputs.q.new_empty((*sizes, shape.head_dim_v))
        lse = inputs.q.new_empty(sizes, dtype=torch.float32) if every_output else None
        options = launch_options(config)
        return self._launch(*(*inputs.tensors, out, lse), **inputs.features, options=options, compile_only=True)

    def bind(self, config: Config, shape: VarlenShape) -> Callable[..., Any]:
        return BoundVarlen(config, shape)

    def _launch(self, *operands: Any, **named: Any) -> Sequence[Any]:
        """Launch, or compile, and return the compiled kernels."""
        return (launch(*operands, **named),)


KERNEL: Final = VarlenKernel()
