"""torch's FlexAttention as a baseline."""

import os
import shutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from autotune.errors import BaselineUnavailableError, UnknownNameError, one_line
from autotune.kernels.baselines.baseline import refuse_unless_ready
from autotune.shape import AttentionShape

if TYPE_CHECKING:
    import torch

DTYPES: Final = ("float16", "bfloat16", "float32")
KERNEL_OPTIONS: Final = (
    *("BLOCK_M", "BLOCK_N", "num_warps", "num_stages"),
    *("PRESCALE_QK", "BLOCKS_ARE_CONTIGUOUS", "USE_TMA"),
)


class Flex:
    """FlexAttention over ``AttentionShape``, compiled once a shape; causal masks and windows are block masks.

    ``kernel_options`` are those of its Triton kernel that ``flex_attention`` tunes, torch's own where they are not
    given; on the CPU they change nothing, and under 128 queries torch derives BLOCK_M itself.

    Example:
        >>> Flex({"BLOCK_M": 64, "num_warps": 4}).name
        'flex BLOCK_M=64 num_warps=4'

    Raises:
        UnknownNameError: an option is none of these; torch would ignore it.
    """

    is_usual: Final = False  # it compiles for seconds
    verified_on_hardware: Final = True

    def __init__(self, kernel_options: Mapping[str, int] | None = None) -> None:
        self._options = dict(kernel_options or {})
        for name, value in self._options.items():
            if name not in KERNEL_OPTIONS:
                allowed = ", ".join(KERNEL_OPTIONS)
                raise UnknownNameError(f"kernel_options has {name}={value}, which is unknown; allowed: {allowed}")

    @property
    def name(self) -> str:
        return " ".join(["flex", *(f"{name}={value}" for name, value in self._options.items())])

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
        if not isinstance(shape, AttentionShape):
            return f"{type(shape).__name__}: flex computes an AttentionShape"
        if shape.dtype not in DTYPES:
            return f"dtype={shape.dtype}: flex takes {', '.join(DTYPES)}"
        if shape.varlen:
            return "varlen=True: flex takes packed sequences by a document mask only, which a shape does not hold"
        return None

    def prepare(self, shape: Any, inputs: Any) -> "Callable[[], torch.Tensor]":
        """A call over flash attention's ``Inputs`` that returns ``[B, S_q, H, D_v]``; compiled and run once here.

        Raises:
            MissingDependencyError: ``available`` says why.
            BaselineUnavailableError: ``unsupported`` says why, or torch cannot compile or run it on this device.
        """
        refuse_unless_ready(self, shape)
        try:
            from autotune.kernels.flex_attention.compiled import bind  # loads torch and triton

            return bind(inputs, self._options)  # of one problem with several sets of inputs, the first compiles
        except Exception as error:  # dynamo, inductor and the compilers have no exception in common
            message = one_line(error)
            raise BaselineUnavailableError(f"{self.name} does not run here: {message}") from error


def _missing_on_cpu() -> str | None:
    """What inductor's C++ backend lacks: its vector instructions, or the compiler that it looks for."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    if not capability.startswith("AVX"):
        return f"flex on the CPU needs AVX2, which this processor lacks ({capability})"
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"flex on the CPU is compiled by {compiler}, which is not found: install g++, or name another in CXX"
    return None
