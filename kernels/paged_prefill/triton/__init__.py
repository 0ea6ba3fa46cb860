"""Paged prefill: chunks of new queries, and mixed batches, over a paged cache of keys and values."""

from autotune.kernels.paged_prefill.triton.kernel import KERNEL

__all__ = ["KERNEL"]
