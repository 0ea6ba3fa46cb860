"""Paged decode over latents in Gluon for Hopper: two groups of warps share the columns of values, a third loads."""

from autotune.kernels.paged_decode.gluon_hopper_latent.kernel import KERNEL

__all__ = ["KERNEL"]
