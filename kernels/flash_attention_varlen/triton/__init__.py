"""Attention over packed sequences in Triton."""

from autotune.kernels.flash_attention_varlen.triton.kernel import KERNEL

__all__ = ["KERNEL"]
