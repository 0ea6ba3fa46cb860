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

# A descriptor of a tensor in device memory is written at each launch, to memory that the launch asks for. It holds in
# the thread that sets it: a server does so in each.
triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))


@autotune.tuned(
    parameters={"BM": [128, 64], "BN": [256, 128], "BK": [64, 32], "PROGRAMS": [132, 65536], "num_warps": [8, 4]},
    key=["m", "n", "k"],
    inputs={"a_ptr": ("m", "k"), "b_ptr": ("k", "n"), "c_ptr": ("m", "n")},
    grid=lambda meta: (min(meta["PROGRAMS"], triton.cdiv(meta["m"], meta["BM"]) * triton.cdiv(meta["n"], meta["BN"])),),
    reference=lambda a_ptr, b_ptr: a_ptr @ b_ptr,
    cost=lambda shape: 2 * shape.m * shape.n * shape.k,
    name="matmul",
)
@triton.heuristics({"ALIGNED": lambda meta: meta["n"] % 8 == 0 and meta["k"] % 8 == 0})
@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROGRAMS: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Compute ``c`` ``[m, n]`` of ``a`` ``[m, k]`` and ``b`` ``[k, n]``, contiguous and of 16 bits.

    Eight rows of tiles share L2. With ``PROGRAMS`` as many as a GPU has SMs (132: H100, H200) each computes several
    tiles, and reads the next one while it writes the last. Rows of a multiple of 16 bytes are copied by the tensor
    memory accelerator; others are loaded element by element.
    """
    if ALIGNED:
        a_tiles = tl.make_tensor_descriptor(a_ptr, [m, k], [k, 1], [BM, BK])
        b_tiles = tl.make_tensor_descriptor(b_ptr, [k, n], [n, 1], [BK, BN])
        c_tiles = tl.make_tensor_descriptor(c_ptr, [m, n], [n, 1], [BM, BN])
    high, group = tl.cdiv(m, BM), 8 * tl.cdiv(n, BN)
    for tile in tl.range(tl.program_id(0), high * group // 8, PROGRAMS, flatten=ALIGNED):
        first = tile // group * 8
        height = min(high - first, 8)
        row, column = (first + tile % group % height) * BM, tile % group // height * BN
        rows, columns = row + tl.arange(0, BM), column + tl.arange(0, BN)
        total = tl.zeros([BM, BN], dtype=tl.float32)
        for start in range(0, k, BK):
            if ALIGNED:
                a, b = a_tiles.load([row, start]), b_tiles.load([start, column])
            else:
                inner = start + tl.arange(0, BK)
                is_a, is_b = (rows[:, None] < m) & (inner[None, :] < k), (inner[:, None] < k) & (columns[None, :] < n)
                a = tl.load(a_ptr + rows[:, None].to(tl.int64) * k + inner[None, :], mask=is_a, other=0.0)
                b = tl.load(b_ptr + inner[:, None].to(tl.int64) * n + columns[None, :], mask=is_b, other=0.0)
            total = tl.dot(a, b, total)
        c = total.to(c_ptr.dtype.element_ty)
        if ALIGNED:
            c_tiles.store([row, column], c)
        else:
            mask = (rows[:, None] < m) & (columns[None, :] < n)
            tl.store(c_ptr + rows[:, None].to(tl.int64) * n + columns[None, :], c, mask=mask)


if __name__ == "__main__":
    device, error = "cuda" if torch.cuda.is_available() else "cpu", 0.0

    def tiles(meta: dict[str, int]) -> tuple[int]:
        return (min(meta["PROGRAMS"], triton.cdiv(meta["m"], meta["BM"]) * triton.cdiv(meta["n"], meta["BN"])),)

    for m, n, k in ((200, 136, 104), (199, 131, 101)):
        a, b = torch.randn(m, k, device=device).half(), torch.randn(k, n, device=device).half()
        c = torch.empty(m, n, device=device, dtype=torch.float16)
        matmul_kernel[tiles](a, b, c, m, n, k)
        error = max(error, (c.double() - a.double() @ b.double()).abs().max().item())
    print(f"matmul with {matmul_kernel.best_config}: largest error {error:.1e}")
