"""Flash attention in Triton of heads wider than 256: programs compute some of the values' columns each."""

from autotune.kernels.flash_attention.triton_split_values.kernel import KERNEL

__all__ = ["KERNEL"]
