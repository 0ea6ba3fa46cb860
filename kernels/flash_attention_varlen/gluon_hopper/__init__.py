"""Attention over packed sequences in Gluon for Hopper: dense attention, by copies that end with a sequence."""

from autotune.kernels.flash_attention_varlen.gluon_hopper.kernel import KERNEL

__all__ = ["KERNEL"]
