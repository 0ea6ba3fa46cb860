"""Paged decode: a few queries of each sequence over a paged cache of keys and values."""

from autotune.kernels.paged_decode.triton.kernel import KERNEL

__all__ = ["KERNEL"]
