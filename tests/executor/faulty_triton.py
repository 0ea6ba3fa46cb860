"""A real Triton kernel that goes wrong on a real GPU, on demand; children import it by its registered name."""

# Triton's language: the jit decorator and its functions have no types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

from autotune.device import Device
from autotune.implementation import Implementation
from autotune.operation import Cost, Operation
from autotune.registry import register, register_implementation
from autotune.shape import AttentionShape
from autotune.space import Config, Parameter, Space
from autotune.trial import Candidate
from tests.executor.faulty import FaultyKernel, Inputs

SHAPE: Final = AttentionShape(batch=1, heads=1, seq_q=64, head_dim=64, dtype="bfloat16")
BLOCK: Final = 1024
FAULTS: Final = (
    *("fine", "endless", "out_of_bounds", "trap", "too_much_shared_memory", "wrong", "nan"),
    *("compiler_hangs", "compiler_child_hangs"),
)
NUMBERS: Final = 20  # of one fault; the kernel does not know its number, so that each fault is compiled once
STAGES: Final = 8  # of 40 KB each: no GPU holds them
ENDLESS_NS = tl.constexpr(60 * 10**9)  # if it is not ended, the GPU is free again after a minute


@triton.jit
def _double(x_ptr, out_ptr, length, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    """``out = 2 x``, or what FAULT says."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < length
    x = tl.load(x_ptr + offsets, mask=mask, other=0.0)
    if FAULT == "endless":
        now = globaltimer()
        end = now + ENDLESS_NS
        while now < end:
            now = globaltimer()
    elif FAULT == "out_of_bounds":
        # 8 TiB further: beyond the GPU's memory, and beyond what the host could lend it (heterogeneous memory).
        tl.store(out_ptr + offsets.to(tl.int64) + (1 << 42), x, mask=mask)
    elif FAULT == "trap":
        tl.inline_asm_elementwise("trap; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)
    elif FAULT == "wrong":
        x += 1
    elif FAULT == "nan":
        x *= float("nan")
    elif FAULT == "too_much_shared_memory":
        x += tl.sum(_deep_product(x_ptr, length))
    tl.store(out_ptr + offsets, 2 * x, mask=mask)


@triton.jit
def _deep_product(x_ptr, length):
    """A product whose pipeline has ``num_stages`` stages of 40 KB."""
    rows, columns, inner = tl.arange(0, 64), tl.arange(0, 256), tl.arange(0, 64)
    total = tl.zeros((64, 256), dtype=tl.float32)
    for start in range(0, length, 64):
        a = tl.load(x_ptr + rows[:, None] * 64 + start + inner[None, :])
        b = tl.load(x_ptr + (start + inner)[:, None] * 256 + columns[None, :])
        total = tl.dot(a, b, total)
    return total


class FaultyTritonKernel(FaultyKernel):
    """Doubles its input in Triton, or fails as its config says."""

    def launch(self, config: Config, inputs: Inputs, out: tuple[torch.Tensor, ...]) -> None:
        length = inputs.x.numel()
        _double[(triton.cdiv(length, BLOCK),)](
            inputs.x, out[0], length, FAULT=config["FAULT"], BLOCK=BLOCK, num_stages=STAGES
        )

    def warmup(self, config: Config, shape: AttentionShape, *, every_output: bool = False) -> Any:
        if config["FAULT"] == "compiler_hangs":
            time.sleep(600)
        if config["FAULT"] == "compiler_child_hangs":
            subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=True)
        x = torch.empty(shape.seq_q, shape.head_dim, dtype=getattr(torch, shape.dtype), device="meta")
        return (_double.warmup(x, x, x.numel(), FAULT=config["FAULT"], BLOCK=BLOCK, num_stages=STAGES, grid=(1,)),)


def config(fault: str, number: int = 0) -> Config:
    return Config(FAULT=fault, NUMBER=number)


def candidate(fault: str, number: int = 0) -> Candidate:
    return Candidate("triton", config(fault, number))


def _default(shape: AttentionShape, device: Device) -> Config:
    return config("fine")


OPERATION: Final = Operation(
    name="faulty_triton",
    shape_class=AttentionShape,
    cost=lambda shape: Cost(flops=1, bytes=1),
    definition=f"{__name__}:KERNEL",
)
IMPLEMENTATION: Final = Implementation(
    name="triton",
    operation="faulty_triton",
    space=Space(
        (Parameter("FAULT", FAULTS), Parameter("NUMBER", tuple(range(NUMBERS)))),
        lambda config, shape, device: None,
        _default,
    ),
    kernel=f"{__name__}:KERNEL",
    sources=(Path(__file__),),
    entry=("_double",),
)
KERNEL: Final = FaultyTritonKernel()
register("faulty_triton", f"{__name__}:OPERATION")
register_implementation("faulty_triton", "triton", f"{__name__}:IMPLEMENTATION")
