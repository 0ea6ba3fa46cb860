"""``autotune.tuned``: a kernel of the user's own, tuned by a decorator; a drop-in for ``triton.autotune``."""

from autotune.decorated.decorator import tuned
from autotune.decorated.kernel import DecoratedKernel

__all__ = ["DecoratedKernel", "tuned"]
