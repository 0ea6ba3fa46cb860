"""Flash attention in Gluon for Hopper: a warp that loads beside groups of warps that compute."""

from autotune.kernels.flash_attention.gluon_hopper.kernel import KERNEL

__all__ = ["KERNEL"]
