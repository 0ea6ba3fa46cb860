"""RMSNorm in Triton by the full contract: an operation with a space, a reference and a cost formula of its own.

    python -m examples.rmsnorm_contract

Without a GPU it runs in Triton's interpreter. On a GPU, tune it for a shape of yours::

    python -m autotune search --import examples.rmsnorm_contract --operation row_norm --shape rows=4096,width=4096

``examples/rmsnorm.py`` does the same by a decorator; what stands here can also have rules, baselines, several
implementations and features of its own.
"""

import math
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

if __name__ == "__main__" and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import triton
import triton.language as tl

import autotune
from autotune.implementation import Implementation
from autotune.operation import Cost, Definition, Operation
from autotune.shape import Shape
from autotune.space import Parameter, Space


@triton.jit
def row_norm_kernel(x_ptr, weight_ptr, out_ptr, width, eps, BLOCK: tl.constexpr):
    """Divide each row of ``x`` ``[rows, width]`` by its root mean square, and scale it by ``weight`` ``[width]``."""
    row = tl.program_id(0).to(tl.int64) * width
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + columns, mask=columns < width, other=0.0).to(tl.float32)
        squares += x * x
    scale = tl.rsqrt(tl.sum(squares) / width + eps)
    for start in range(0, width, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < width
        x = tl.load(x_ptr + row + columns, mask=mask, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(out_ptr + row + columns, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape(Shape):
    FAMILY: ClassVar[tuple[str, ...]] = ("dtype",)  # neighbours differ in the other fields alone
    rows: int
    width: int
    dtype: str = "bfloat16"


class RowNormDefinition(Definition):
    def make_inputs(self, shape, *, seed, device, data="normal"):
        generator = torch.Generator(device).manual_seed(seed)
        sizes, dtype = ((shape.rows, shape.width), (shape.width,)), getattr(torch, shape.dtype)
        return tuple(torch.randn(size, generator=generator, device=device).to(dtype) for size in sizes)

    def check_shapes(self, shape):
        return [replace(shape, rows=min(shape.rows, 33))]

    def empty_outputs(self, inputs):
        return (torch.full_like(inputs[0], math.nan),)

    def reference(self, inputs, *, dtype=None):
        x, weight = (tensor.to(dtype or torch.float64) for tensor in inputs)
        return (torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6),)


class RowNorm:
    def launch(self, config, inputs, outputs):
        row_norm_kernel[inputs[0].shape[:1]](*inputs, *outputs, inputs[0].shape[1], 1e-6, **config)

    def warmup(self, config, shape, *, every_output=False):
        x = torch.empty(shape.rows, shape.width, dtype=getattr(torch, shape.dtype), device="meta")
        return [row_norm_kernel.warmup(x, x[0], x, shape.width, 1e-6, **config, grid=x.shape[:1])]

    def bind(self, config, shape):
        def row_norm(x, weight):
            self.launch(config, (x, weight), (out := torch.empty_like(x),))
            return out

        return row_norm


def cost(shape):
    return Cost(flops=4 * shape.rows * shape.width, bytes=2 * 2 * shape.rows * shape.width)


OPERATION = Operation(
    name="row_norm", shape_class=RowShape, cost=cost, definition="examples.rmsnorm_contract:RowNormDefinition"
)
SPACE = Space((Parameter("BLOCK", (1024, 2048, 4096, 8192)), Parameter("num_warps", (4, 8, 16))))
IMPLEMENTATION = Implementation(
    name="triton", operation="row_norm", space=SPACE, kernel="examples.rmsnorm_contract:RowNorm"
)
autotune.register("row_norm", "examples.rmsnorm_contract:OPERATION")
autotune.register_implementation("row_norm", "triton", "examples.rmsnorm_contract:IMPLEMENTATION")

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # where this is run as a file
    from examples import rmsnorm_contract  # the module that the references name

    device, name = ("cuda", None) if torch.cuda.is_available() else ("cpu", "NVIDIA H200")
    x, weight = torch.randn(64, 1000, device=device), torch.randn(1000, device=device)
    row_norm = autotune.get_kernel(rmsnorm_contract.RowShape(rows=64, width=1000, dtype="float32"), device=name)
    error = (row_norm(x, weight) - torch.nn.functional.rms_norm(x, (1000,), weight, 1e-6)).abs().max().item()
    print(f"row_norm with {row_norm.config}: largest error {error:.1e}")
