"""NVIDIA's cuDNN through its Python frontend: attention over dense tensors and over paged caches, not tuned by us.

Two baselines: what cuDNN's heuristics propose first, and the fastest of all the plans that it has.
"""

from autotune.kernels.baselines.cudnn.calls import CUDNN, Cudnn, dense, paged

__all__ = ["CUDNN", "Cudnn", "dense", "paged"]
