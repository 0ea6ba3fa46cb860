"""Flash attention in Gluon for Hopper: a warp that loads beside groups of warps that compute.

It was compiled and simulated, and no GPU has run it: it is not registered with the package, so that nothing searches or
serves it unasked.
"""

from autotune.kernels.flash_attention.gluon_hopper.kernel import KERNEL

__all__ = ["KERNEL"]
