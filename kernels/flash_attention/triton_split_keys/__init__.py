"""Flash attention of few queries in Triton: the keys of a sequence are split over programs."""

from autotune.kernels.flash_attention.triton_split_keys.kernel import KERNEL

__all__ = ["KERNEL"]
