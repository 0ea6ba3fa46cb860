"""Flash attention with a mask operand, sinks, or wide heads in Triton."""

from autotune.kernels.flash_attention.triton_masked.kernel import KERNEL

__all__ = ["KERNEL"]
