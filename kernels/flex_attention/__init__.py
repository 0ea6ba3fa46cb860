"""torch's FlexAttention, tuned by its kernel options: dense forward over ``[B, S, H, D]``."""

from autotune.kernels.flex_attention.kernel import KERNEL

__all__ = ["KERNEL"]
