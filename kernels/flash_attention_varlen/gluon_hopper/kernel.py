"""Attention over packed sequences in Gluon as the framework sees it, and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention_varlen.gluon_hopper.forward import varlen_attention_forward
from autotune.kernels.flash_attention_varlen.gluon_hopper.launch import launch_packed
from autotune.kernels.flash_attention_varlen.gluon_hopper.repeat import repeat_of
from autotune.kernels.flash_attention_varlen.gluon_hopper.tile_table import write_tiles
from autotune.kernels.flash_attention_varlen.inputs import Inputs, empty_inputs
from autotune.kernels.flash_attention_varlen.packed_call import TENSORS, check_fit, check_lengths
from autotune.kernels.flash_attention_varlen.padding import PACKED
from autotune.kernels.flash_attention_varlen.triton.kernel import BoundVarlen
from autotune.kernels.flash_attention_varlen.triton.repeat import NAMES
from autotune.kernels.known_calls import KnownCalls, Result
from autotune.kernels.relaunch import observe
from autotune.kernels.tensors import (
    check_apart,
    check_device,
    check_out,
    launch_options,
    on_device_of,
    require_context,
)
from autotune.space import Config
from autotune.varlen_shape import VarlenShape

observe(write_tiles)
observe(varlen_attention_forward)


class BoundPacked(BoundVarlen):
    """Attention over packed sequences, as ``BoundVarlen`` says; it declines padded batches.

    Raises:
        UnsupportedCallError: the offsets are None, or TMA cannot copy tiles of a tensor.
    """

    def __init__(self, config: Config, shape: VarlenShape) -> None:
        super().__init__(config, shape)
        self._calls = KnownCalls(NAMES, self._compute, repeat_of)

    def _compute(self, *arguments: Any, check: bool = False) -> Result:
        *given, sinks, seqused_q, seqused_k, kv_starts, scale, softcap, return_lse, out = arguments
        shape, tensors = self._shape, dict(zip(TENSORS, given, strict=True))
        if tensors["cu_seqlens_q"] is None and tensors["cu_seqlens_k"] is None:
            raise UnsupportedCallError("cu_seqlens_q and cu_seqlens_k are None, and this kernel takes packed sequences")
        numbers = dict(zip(PACKED, (seqused_q, seqused_k, kv_starts), strict=True))
        check_fit(shape, tensors, sinks, numbers, scale=scale, softcap=softcap)
        q = tensors["q"]
        check_device(q.device, q.dtype)
        if check:
            check_lengths(tensors, numbers)
        sizes = (*q.shape[:2], shape.head_dim_v)
        if out is None:
            out = torch.empty(sizes, dtype=q.dtype, device=q.device)
        else:
            check_out(out, sizes, tensors, contiguous=True)
            check_apart(out, tensors | ({} if sinks is None else {"sinks": sinks}))
            torch.autograd.graph.increment_version(out)  # written behind torch's back
        lse = torch.empty(q.shape[:2], dtype=torch.float32, device=q.device) if return_lse else None
        with on_device_of(q):
            require_context(q.device)
            launch_packed(
                *(*given, out, lse),
                seqused_q=seqused_q,
                seqused_k=seqused_k,
                causal=shape.causal,
                scale=shape.head_dim**-0.5 if scale is None else scale,
                window=shape.window,
                softcap=softcap,
                sinks=sinks,
                options=self._options,
            )
        return out if lse is None else (out, lse)


class PackedKernel:
    """Implements ``autotune.implementation.Kernel`` for ``VarlenShape``."""

    def launch(self, config: Config, inputs: Inputs, outputs: tuple[torch.Tensor, ...]) -> None:
        lse = outputs[1] if len(outputs) > 1 else None
        launch_packed(*(*inputs.tensors, outputs[0], lse), **inputs.features, options=launch_options(config))

    def warmup(self, config: Config, shape: VarlenShape, *, every_output: bool = False) -> Sequence[Any]:
        """Compile over tensors of the meta device; strides are those of contiguous tensors."""
        inputs = empty_inputs(shape, shape.max_seq_q, shape.max_seq_kv, shape.batch, device="meta")
        sizes = inputs.q.shape[:2]
        out = inputs.q.new_empty((*sizes, shape.head_dim_v))
        lse = inputs.q.new_empty(sizes, dtype=torch.float32) if every_output else None
        options = launch_options(config)
        return launch_packed(*(*inputs.tensors, out, lse), **inputs.features, options=options, compile_only=True)

    def bind(self, config: Config, shape: VarlenShape) -> Callable[..., Any]:
        return BoundPacked(config, shape)


KERNEL: Final = PackedKernel()
