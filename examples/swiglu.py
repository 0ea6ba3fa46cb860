"""A fused SwiGLU in Triton, tuned by a decorator: both projections and the gate in one kernel.

    python examples/swiglu.py

Without a GPU it runs in Triton's interpreter. On a GPU, tune it for a shape of yours; later runs launch the winner::

    python -m autotune search --kernel examples.swiglu:swiglu_kernel --shape m=4096,n=11008,k=4096
"""

import os

import torch

if __name__ == "__main__" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import triton
import triton.language as tl

import autotune


@autotune.tuned(
    parameters={"BM": [64, 128], "BN": [64, 128], "BK": [64], "num_warps": [4, 8], "num_stages": [3, 4]},
    key=["m", "n", "k"],
    inputs={"x_ptr": ("m", "k"), "gate_ptr": ("k", "n"), "up_ptr": ("k", "n"), "out_ptr": ("m", "n")},
    grid=lambda meta: (triton.cdiv(meta["m"], meta["BM"]), triton.cdiv(meta["n"], meta["BN"])),
    reference=lambda x_ptr, gate_ptr, up_ptr: torch.nn.functional.silu(x_ptr @ gate_ptr) * (x_ptr @ up_ptr),
    cost=lambda shape: 4 * shape.m * shape.n * shape.k,
    name="swiglu",
)
@triton.jit
def swiglu_kernel(x_ptr, gate_ptr, up_ptr, out_ptr, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Compute ``silu(x @ gate) * (x @ up)`` of ``x`` ``[m, k]`` and two weights ``[k, n]``, contiguous."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    gate = tl.zeros([BM, BN], dtype=tl.float32)
    up = tl.zeros([BM, BN], dtype=tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        is_x, is_weight = (rows[:, None] < m) & (inner[None, :] < k), (inner[:, None] < k) & (columns[None, :] < n)
        weights = inner[:, None].to(tl.int64) * n + columns[None, :]
        x = tl.load(x_ptr + rows[:, None].to(tl.int64) * k + inner[None, :], mask=is_x, other=0.0)
        gate = tl.dot(x, tl.load(gate_ptr + weights, mask=is_weight, other=0.0), gate)
        up = tl.dot(x, tl.load(up_ptr + weights, mask=is_weight, other=0.0), up)
    out = gate * tl.sigmoid(gate) * up
    mask = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(out_ptr + rows[:, None].to(tl.int64) * n + columns[None, :], out.to(out_ptr.dtype.element_ty), mask=mask)


if __name__ == "__main__":
    device, m, n, k = ("cuda" if torch.cuda.is_available() else "cpu"), 130, 200, 100
    x, gate, up = (torch.randn(sizes, device=device).half() for sizes in ((m, k), (k, n), (k, n)))
    out = torch.empty(m, n, device=device, dtype=torch.float16)
    swiglu_kernel[lambda meta: (triton.cdiv(m, meta["BM"]), triton.cdiv(n, meta["BN"]))](x, gate, up, out, m, n, k)
    expected = torch.nn.functional.silu(x.double() @ gate.double()) * (x.double() @ up.double())
    error = ((out.double() - expected).abs().max() / expected.abs().max()).item()
    print(f"swiglu with {swiglu_kernel.best_config}: largest error {error:.1e} of the largest value")
