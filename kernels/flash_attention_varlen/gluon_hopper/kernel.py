"""Attention over packed sequences in Gluon as the framework sees it, and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from autotune.errors import UnsupportedCallError
from autotune.kernels.flash_attention_varlen.gluon_hopper.forward import varlen_attention_forward
from autotune.kernels.flash_attention_varlen.gluon_hopper.launch import launch_packed
from autotune.kernels.flash_attention_varlen.gluon_hopper.repeat import repeat_of
from autotune.kernels.flash_attention_varlen.gluon_hopper.tile_table import write_tiles
from autotune.kernels.flash_attention_varlen.packed_call import TENSORS
from autotune.kernels.flash_attention_varlen.triton.forward import Padding
from autotune.kernels.flash_attention_varlen.triton.kernel import BoundVarlen, VarlenKernel
from autotune.kernels.known_calls import Result
from autotune.kernels.relaunch import observe
from autotune.space import Config
from autotune.varlen_shape import VarlenShape

observe(write_tiles)
observe(varlen_attention_forward)


class BoundPacked(BoundVarlen):
    """Attention over packed sequences, as ``BoundVarlen`` says; it declines padded batches.

    Raises:
        UnsupportedCallError: the offsets are None, or TMA cannot copy tiles of a tensor.
    """

    _repeat_of = staticmethod(repeat_of)

    def _compute(self, *arguments: Any, check: bool = False) -> Result:
        tensors = dict(zip(TENSORS, arguments, strict=False))  # the first of them
        if tensors["cu_seqlens_q"] is None and tensors["cu_seqlens_k"] is None:
            raise UnsupportedCallError("cu_seqlens_q and cu_seqlens_k are None, and this kernel takes packed sequences")
        return super()._compute(*arguments, check=check)

    def _takes_descriptors(self) -> bool:
        return True

    def _launch(self, operands: Sequence[Any], features: dict[str, Any], padding: Padding) -> None:
        launch_packed(*operands, **features, seqused_q=padding.q_lens, seqused_k=padding.kv_lens, options=self._options)


class PackedKernel(VarlenKernel):
    """Implements ``autotune.implementation.Kernel`` for ``VarlenShape``."""

    def bind(self, config: Config, shape: VarlenShape) -> Callable[..., Any]:
        return BoundPacked(config, shape)

    def _launch(self, *operands: Any, **named: Any) -> Sequence[Any]:
        return launch_packed(*operands, **named)


KERNEL: Final = PackedKernel()
