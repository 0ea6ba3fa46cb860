"""Tune Triton attention kernels on your device, keep what was learned in Parquet, serve the best kernel for a shape.

``get_kernel(shape)`` reads the tables; ``attention`` and ``paged_decode`` pick by their tensors; ``autotune search`` on
the command line fills the tables.
"""

from autotune.dispatch import Provenance, TunedKernel, get_kernel, reload
from autotune.errors import AutotuneError
from autotune.functional import attention, merge_attention, paged_decode
from autotune.paged_cache import OutOfPagesError, PagedKVCache
from autotune.registry import register
from autotune.shape import AttentionShape, PagedShape
from autotune.version import VERSION as __version__  # noqa: N811 - the name that everyone asks for

__all__ = [
    "AttentionShape",
    "AutotuneError",
    "OutOfPagesError",
    "PagedKVCache",
    "PagedShape",
    "Provenance",
    "TunedKernel",
    "__version__",
    "attention",
    "get_kernel",
    "merge_attention",
    "paged_decode",
    "register",
    "reload",
]
