# mypy: allow-untyped-decorators
"""The precision of products of float32 tiles."""

import triton
import triton.language as tl
from triton import knobs
from triton.language.target_info import cuda_capability_geq


@triton.constexpr_function
def product_precision(dtype: tl.dtype) -> str:
    """Return the ``input_precision`` of ``tl.dot`` for tiles of a dtype; only float32 has a choice.

    NVIDIA's tensor cores multiply float32 as three numbers of bfloat16 a factor, which hold all of its 24 bits; of the
    nine products the three smallest, below 2^-24 of the whole, are left out (Henry, Tang and Heinecke, arXiv
    1904.06376). Three products of TF32, which torch's efficient SDPA takes, are faster and less exact: tensor cores cut
    off every sum, and in TF32 sum twice as often. With "tf32x3" here, none of 149 configs met the bound of
    ``correctness`` over 128 tokens; with six of bfloat16 all 149 did (NVIDIA H200, 2026-11-22, ``benchmarks.record
    winners --only float32 --sampler exhaustive``: batch 1, 8 heads of 64, full).

    Other GPUs and the interpreter multiply by IEEE's rules. So do compute capabilities 10.0 to 11, where the sum of
    each product takes tensor memory of its own, of which there is too little (Triton 3.6).
    """
    has_mma = cuda_capability_geq(8, 0) and not cuda_capability_geq(10, 0)
    is_split = (has_mma or cuda_capability_geq(12, 0)) and not knobs.runtime.interpret
    return "bf16x6" if dtype == tl.float32 and is_split else "ieee"


def splits_float32() -> bool:
    """Tell if products of float32 tiles are six products of bfloat16 here."""
    return str(product_precision(tl.float32)) == "bf16x6"
