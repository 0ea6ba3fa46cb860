"""Tune Triton attention kernels on your device, keep what was learned in Parquet, serve the best kernel for a shape."""

from autotune.errors import AutotuneError
from autotune.shape import AttentionShape

__version__ = "0.1.0"
__all__ = ["AttentionShape", "AutotuneError", "__version__"]
