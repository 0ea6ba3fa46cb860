"""Paged prefill by the kernel of packed sequences in Gluon for Hopper: pages are laid side by side before it."""

from autotune.kernels.paged_prefill.gluon_hopper.kernel import KERNEL

__all__ = ["KERNEL"]
