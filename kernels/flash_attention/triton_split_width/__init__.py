"""Flash attention in Triton of heads whose width is no power of two: two pieces of their columns."""

from autotune.kernels.flash_attention.triton_split_width.kernel import KERNEL

__all__ = ["KERNEL"]
