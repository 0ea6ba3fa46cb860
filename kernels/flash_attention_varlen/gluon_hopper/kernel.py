"""Attention over packed sequences in Gluon as the framework sees it, and the callable that users get."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from autotune.kernels.flash_attention_varlen.gluon_hopper.forward import varlen_attention_forward
from autotune.kernels.flash_attention_varlen.gluon_hopper.launch import launch_packed
from autotune.kernels.flash_attention_varlen.gluon_hopper.padded_rows import number_rows
from autotune.kernels.flash_attention_varlen.gluon_hopper.repeat import repeat_of
from autotune.kernels.flash_attention_varlen.gluon_hopper.tile_table import write_tiles
from autotune.kernels.flash_attention_varlen.triton.forward import Padding
from autotune.kernels.flash_attention_varlen.triton.kernel import BoundVarlen, VarlenKernel
from autotune.kernels.relaunch import observe
from autotune.space import Config
from autotune.varlen_shape import VarlenShape

observe(number_rows)
observe(write_tiles)
observe(varlen_attention_forward)


class BoundPacked(BoundVarlen):
    """Attention over packed sequences or a padded batch, as ``BoundVarlen`` says.

    Raises:
        UnsupportedCallError: TMA cannot copy tiles of a tensor.
    """

    _repeat_of = staticmethod(repeat_of)

    def _takes_descriptors(self) -> bool:
        return True

    def _launch(self, operands: Sequence[Any], features: dict[str, Any], padding: Padding) -> None:
        launch_packed(
            *operands,
            **features,
            seqused_q=padding.q_lens,
            seqused_k=padding.kv_lens,
            kv_starts=padding.kv_starts,
            options=self._options,
        )


class PackedKernel(VarlenKernel):
    """Implements ``autotune.implementation.Kernel`` for ``VarlenShape``."""

    def bind(self, config: Config, shape: VarlenShape) -> Callable[..., Any]:
        return BoundPacked(config, shape)

    def _launch(self, *operands: Any, **named: Any) -> Sequence[Any]:
        return launch_packed(*operands, **named)


KERNEL: Final = PackedKernel()
