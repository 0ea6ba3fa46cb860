"""Flash attention with a mask operand or sinks in Triton."""

from autotune.kernels.flash_attention.triton_masked.kernel import KERNEL

__all__ = ["KERNEL"]
