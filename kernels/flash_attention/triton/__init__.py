"""Flash attention in Triton."""

from autotune.kernels.flash_attention.triton.kernel import KERNEL

__all__ = ["KERNEL"]
