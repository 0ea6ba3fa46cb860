"""Attention as Intel Gaudi runs it: its fused kernel, and vLLM's two PagedAttentions, which run anywhere torch does.

No Gaudi was at hand: nothing here has run on one, and no figure of one is shipped. What needs it is tested against
stand-ins of the documented interface; the two PagedAttentions are plain torch, tested against fp64 on CPU and CUDA.
"""

from autotune.kernels.baselines.gaudi.fused_sdpa import FusedSdpa
from autotune.kernels.baselines.gaudi.paged import FlatPaged, InitialPaged

__all__ = ["FlatPaged", "FusedSdpa", "InitialPaged"]
