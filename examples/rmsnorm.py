"""RMSNorm in Triton, tuned by a decorator.

    python examples/rmsnorm.py

Without a GPU it runs in Triton's interpreter. On a GPU, tune it for a shape of yours; later runs launch the winner::

    python -m autotune search --kernel examples.rmsnorm:rmsnorm_kernel --shape rows=4096,width=4096,dtype=bfloat16
"""

import os

import torch

if __name__ == "__main__" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import triton
import triton.language as tl

import autotune


@autotune.tuned(
    parameters={"BLOCK": [1024, 2048, 4096, 8192], "num_warps": [4, 8, 16]},
    key=["rows", "width"],
    inputs={"x_ptr": ("rows", "width"), "weight_ptr": ("width",), "out_ptr": ("rows", "width"), "eps": 1e-6},
    grid=lambda meta: (meta["rows"],),
    reference=lambda x_ptr, weight_ptr, eps: torch.nn.functional.rms_norm(x_ptr, x_ptr.shape[1:], weight_ptr, eps),
    name="rmsnorm",
)
@triton.jit
def rmsnorm_kernel(x_ptr, weight_ptr, out_ptr, rows, width, eps, BLOCK: tl.constexpr):
    """Divide each row of ``x`` ``[rows, width]`` by its root mean square, and scale it by ``weight`` ``[width]``."""
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row + columns, mask=columns < width, other=0.0).to(tl.float32)  # stays in registers
    squares = x * x
    for start in range(BLOCK, width, BLOCK):
        rest = tl.load(x_ptr + row + start + columns, mask=start + columns < width, other=0.0).to(tl.float32)
        squares += rest * rest
    scale = tl.rsqrt(tl.sum(squares) / width + eps)
    for start in range(0, width, BLOCK):
        mask = start + columns < width
        if start > 0:
            x = tl.load(x_ptr + row + start + columns, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + start + columns, mask=mask, other=0.0).to(tl.float32)
        out = (x * scale * weight).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + row + start + columns, out, mask=mask)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, weight = torch.randn(64, 1000, device=device), torch.randn(1000, device=device)
    out = torch.empty_like(x)
    rmsnorm_kernel[(64,)](x, weight, out, 64, 1000, 1e-6)
    error = (out - torch.nn.functional.rms_norm(x, (1000,), weight, 1e-6)).abs().max().item()
    print(f"rmsnorm with {rmsnorm_kernel.best_config}: largest error {error:.1e}")
