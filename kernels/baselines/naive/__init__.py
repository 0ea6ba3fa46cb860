"""Naive attention, the "before" of fusion: scores, softmax and weighted sum, three Triton kernels with memory between.

It is the standard implementation that FlashAttention begins with (Dao et al., arXiv 2205.14135, algorithm 0).
"""

from autotune.kernels.baselines.naive.call import Naive, kernel_traffic, memory_traffic

__all__ = ["Naive", "kernel_traffic", "memory_traffic"]
