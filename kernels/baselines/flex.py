"""torch's FlexAttention as a baseline."""

import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from autotune.kernels.baselines.baseline import DTYPES, refusals_of, refuse_unless_ready, wrong_shape
from autotune.shape import AttentionShape

if TYPE_CHECKING:
    import torch


class Flex:
    """FlexAttention over ``AttentionShape``, compiled once a shape; causal masks and windows are block masks.

    The options of its Triton kernel are torch's own choice; ``flex_attention`` tunes them.
    """

    name: Final = "flex"
    is_usual: Final = False  # it compiles for seconds
    verified_on_hardware: Final = True

    def available(self) -> str | None:
        try:
            import torch
            from torch.nn.attention import flex_attention  # noqa: F401
        except Exception as error:  # a broken install raises more than ImportError
            return f"flex needs torch 2.5 or newer ({error}): pip install 'torch>=2.5'"
        try:
            import triton  # noqa: F401
        except Exception as error:
            return (
                f'flex is compiled beside our kernels, by triton on a GPU ({error}): pip install ".[gpu]" in the clone'
            )
        return None if torch.cuda.is_available() else _missing_on_cpu()

    def unsupported(self, shape: Any) -> str | None:
        return wrong_shape(self.name, shape, (AttentionShape,), DTYPES)

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        """Bind a call over flash attention's ``Inputs`` that returns ``[B, S_q, H, D_v]``; compiles, and runs once."""
        refuse_unless_ready(self, shape)
        with refusals_of(self.name):
            from autotune.kernels.flash_attention.flex.compiled import bind  # loads torch and triton

            return bind(inputs, {})  # of one problem with several sets of inputs, the first compiles


def _missing_on_cpu() -> str | None:
    """Return what inductor's C++ backend lacks, vector instructions or a compiler, or None."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith("AVX"):
        return f"flex on the CPU needs AVX2, which this processor lacks ({capability})"
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"flex on the CPU is compiled by {compiler}, which is not found: install g++, or name another in CXX"
    return None
