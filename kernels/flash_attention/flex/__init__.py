"""torch's FlexAttention, tuned by its kernel options: dense forward over ``[B, S, H, D]``."""

from autotune.kernels.flash_attention.flex.kernel import KERNEL

__all__ = ["KERNEL"]
