"""Tune Triton attention kernels on your device, keep what was learned in Parquet, serve the best kernel for a shape.

``get_kernel(shape)`` reads the tables; ``attention``, ``paged_decode`` and ``paged_prefill`` pick by their tensors;
``append_kv`` and ``PagedKVCache`` fill paged caches; ``autotune search`` on the command line fills the tables.
"""

from autotune.dispatch import Provenance, TunedKernel, get_kernel, reload
from autotune.errors import AutotuneError, OutOfPagesError
from autotune.functional import attention, merge_attention
from autotune.paged import append_kv, paged_decode, paged_prefill
from autotune.paged_cache import PagedKVCache
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
    "append_kv",
    "attention",
    "get_kernel",
    "merge_attention",
    "paged_decode",
    "paged_prefill",
    "register",
    "reload",
]
