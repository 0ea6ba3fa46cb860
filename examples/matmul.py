"""Matrix multiplication in Triton, tuned by a decorator.

    python examples/matmul.py

Without a GPU it runs in Triton's interpreter. On a GPU, tune it for a shape of yours; later runs launch the winner::

    python -m autotune search --kernel examples.matmul:matmul_kernel --shape m=4096,n=4096,k=4096
"""

import os

import torch

if __name__ == "__main__" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import triton
import triton.language as tl

import autotune


@autotune.tuned(
    parameters={"BM": [64, 128], "BN": [128, 256], "BK": [64], "num_warps": [4, 8], "num_stages": [3, 4]},
    key=["m", "n", "k"],
    inputs={"a_ptr": ("m", "k"), "b_ptr": ("k", "n"), "c_ptr": ("m", "n")},
    grid=lambda meta: (triton.cdiv(meta["m"], meta["BM"]) * triton.cdiv(meta["n"], meta["BN"]),),
    reference=lambda a_ptr, b_ptr: a_ptr @ b_ptr,
    cost=lambda shape: 2 * shape.m * shape.n * shape.k,
    name="matmul",
)
@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Compute ``c`` ``[m, n]`` of ``a`` ``[m, k]`` and ``b`` ``[k, n]``, contiguous; eight rows of tiles share L2."""
    group = 8 * tl.cdiv(n, BN)
    first = tl.program_id(0) // group * 8
    height = min(tl.cdiv(m, BM) - first, 8)
    rows = (first + tl.program_id(0) % group % height) * BM + tl.arange(0, BM)
    columns = tl.program_id(0) % group // height * BN + tl.arange(0, BN)
    total = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        is_a, is_b = (rows[:, None] < m) & (inner[None, :] < k), (inner[:, None] < k) & (columns[None, :] < n)
        a = tl.load(a_ptr + rows[:, None].to(tl.int64) * k + inner[None, :], mask=is_a, other=0.0)
        b = tl.load(b_ptr + inner[:, None].to(tl.int64) * n + columns[None, :], mask=is_b, other=0.0)
        total = tl.dot(a, b, total)
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c_ptr + rows[:, None].to(tl.int64) * n + columns[None, :], total.to(c_ptr.dtype.element_ty), mask=mask)


if __name__ == "__main__":
    device, m, n, k = ("cuda" if torch.cuda.is_available() else "cpu"), 200, 130, 100
    a, b = torch.randn(m, k, device=device).half(), torch.randn(k, n, device=device).half()
    c = torch.empty(m, n, device=device, dtype=torch.float16)
    matmul_kernel[lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)](a, b, c, m, n, k)
    error = (c.double() - a.double() @ b.double()).abs().max().item()
    print(f"matmul with {matmul_kernel.best_config}: largest error {error:.1e}")
