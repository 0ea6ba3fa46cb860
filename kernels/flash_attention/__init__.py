"""Flash attention: dense forward over ``[B, S, H, D]``."""

from autotune.kernels.flash_attention.kernel import KERNEL

__all__ = ["KERNEL"]
