"""Flash attention of e4m3 in Gluon for Hopper: values transposed first, weights rounded to e4m3."""

from autotune.kernels.flash_attention.gluon_hopper_fp8.kernel import KERNEL

__all__ = ["KERNEL"]
