"""Paged decode over latents: keys and values are one row a token, shared by all heads."""

from autotune.kernels.paged_decode.triton_latent.kernel import KERNEL

__all__ = ["KERNEL"]
