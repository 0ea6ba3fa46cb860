"""Kernels of a user's under ``autotune.tuned``, each with something that a drop-in for Triton's autotuner must take."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from typing import Any

import torch
import triton
import triton.language as tl

import autotune

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (128, 256, 512) for warps in (2, 4)]


def by_block(meta: dict[str, Any]) -> tuple[int]:
    return (triton.cdiv(meta["size"], meta["BLOCK"]),)


@autotune.tuned(
    CONFIGS,
    key=["size"],
    inputs={"x_ptr": ("size",), "out_ptr": ("size",), "factor": 3.0},
    grid=by_block,
    reference=lambda x_ptr, factor: x_ptr * factor,
    name="scale",
)
@triton.jit
def scale(x_ptr, out_ptr, size, factor, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < size)
    tl.store(out_ptr + offsets, x * factor, mask=offsets < size)


def few_blocks(configs: list[Any], named: dict[str, Any], **options: Any) -> list[Any]:
    assert named["x_ptr"].dtype in (torch.float16, torch.float32)
    return [each for each in configs if each.kwargs["BLOCK"] <= max(128, named["size"])]


@autotune.tuned(
    CONFIGS,
    key=["size"],
    prune_configs_by={"early_config_prune": few_blocks},
    reset_to_zero=["sum_ptr"],
    inputs={"x_ptr": ("size",), "sum_ptr": (1, "float32")},
    grid=by_block,
    reference=lambda x_ptr: x_ptr.sum().reshape(1),
    name="total",
)
@triton.heuristics({"IS_EVEN": lambda args: args["size"] % args["BLOCK"] == 0})
@triton.jit
def total(x_ptr, sum_ptr, size, BLOCK: tl.constexpr, IS_EVEN: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets) if IS_EVEN else tl.load(x_ptr + offsets, mask=offsets < size, other=0.0)
    tl.atomic_add(sum_ptr, tl.sum(x.to(tl.float32)))


@autotune.tuned(
    CONFIGS,
    key=["size"],
    restore_value=["x_ptr"],
    inputs=lambda shape: {
        "x_ptr": torch.randn(shape.size).to(getattr(torch, shape.dtype)),
        "steps_ptr": torch.ones(1, dtype=torch.int32),
        "size": shape.size,
    },
    grid=by_block,
    name="step",
)
@triton.jit
def step(x_ptr, steps_ptr, size, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < size)
    tl.store(x_ptr + offsets, x + tl.load(steps_ptr), mask=offsets < size)


@autotune.tuned(
    parameters={"BLOCK": [64, 128], "num_warps": [1, 2]},
    key=["rows", "columns", "KIND"],
    inputs={"x": ("columns", "rows"), "y": ("rows", "columns"), "KIND": "KIND"},
    grid=lambda meta: (meta["rows"], triton.cdiv(meta["columns"], meta["BLOCK"])),
    reference=lambda x, KIND: x.T.exp() if KIND == "exp" else x.T,
    name="transpose",
)
@triton.jit
def transpose(x, y, rows, columns, stride_xc, stride_xr, stride_yr, stride_yc, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    value = tl.load(x + column * stride_xc + row * stride_xr, mask=mask, other=0.0)
    if KIND == "exp":
        value = tl.exp(value.to(tl.float32))
    tl.store(y + row * stride_yr + column * stride_yc, value.to(y.dtype.element_ty), mask=mask)


@triton.heuristics({"OFFSET": lambda args: 1})
@autotune.tuned(CONFIGS, key=["size"], name="wrapped")
@triton.jit
def wrapped(x_ptr, size, BLOCK: tl.constexpr, OFFSET: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offsets, offsets + OFFSET, mask=offsets < size)


@autotune.tuned(CONFIGS, key=["size"], mode="first_call", name="gather")
@triton.heuristics({"PROGRAMS": lambda args: triton.cdiv(args["size"], args["BLOCK"])})
@triton.jit
def gather(x_ptr, index_ptr, out_ptr, stride, size, TYPE: tl.constexpr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """Take elements of ``x`` at places that only a launch knows: neither inputs nor a grid are declared."""
    for block in range(tl.program_id(0), PROGRAMS, tl.num_programs(0)):
        offsets = block * BLOCK + tl.arange(0, BLOCK)
        places = tl.load(index_ptr + offsets, mask=offsets < size, other=0)
        x = tl.load(x_ptr + places * stride, mask=offsets < size)
        tl.store(out_ptr + offsets, x.to(TYPE), mask=offsets < size)


KERNELS = (scale, total, step, transpose, wrapped.fn, gather)
